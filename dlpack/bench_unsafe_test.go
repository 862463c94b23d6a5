package dlpack_test

import (
	"testing"

	"github.com/baton-ipc/baton/dlpack"
)

func BenchmarkExportReleaseReap(b *testing.B) {
	a, p := newArena(b), newPool(b)
	s := spec(a, 16, 16)
	s.Word, s.Delta = put(a, uint64(0)), drop
	for b.Loop() {
		m, err := p.Export(s)
		if err != nil {
			b.Fatal(err)
		}
		_ = dlpack.Release(m)
		p.Reap(nil)
	}
}

// BenchmarkRelease measures the deleter, called from Go.
func BenchmarkRelease(b *testing.B) {
	a, p := newArena(b), newPool(b)
	s := spec(a, 16, 16)
	s.Word, s.Delta = put(a, uint64(0)), drop
	held := make([]*dlpack.ManagedTensorVersioned, 1000)
	fill := func() {
		p.Reap(nil)
		for i := range held {
			held[i], _ = p.Export(s)
		}
	}
	fill()
	b.ResetTimer()
	for i := range b.N {
		_ = dlpack.Release(held[i%len(held)])
		if i%len(held) == len(held)-1 {
			b.StopTimer()
			fill()
			b.StartTimer()
		}
	}
}

func BenchmarkConsumeRelease(b *testing.B) {
	a, p := newArena(b), newPool(b)
	s := spec(a, 16, 16)
	for b.Loop() {
		m, err := p.Export(s)
		if err != nil {
			b.Fatal(err)
		}
		x, err := dlpack.Consume(m)
		if err != nil {
			b.Fatal(err)
		}
		_ = x.Release()
		p.Reap(nil)
	}
}
