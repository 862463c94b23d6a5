package cabi_test

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
)

const (
	take = 1<<20 + 1
	drop = 1<<20 - 1
)

func TestCCompilerAgreesOnTheLayout(t *testing.T) {
	h := needHarness(t)
	var f struct {
		Structs map[string]struct {
			Size, Align int
			Fields      map[string]struct{ Offset, Width int }
		}
	}
	b, err := os.ReadFile("../testdata/layout.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &f))
	want := map[string]string{}
	for name, s := range f.Structs {
		want[name] = fmt.Sprintf("%d %d", s.Size, s.Align)
		for field, x := range s.Fields {
			want[name+"."+field] = fmt.Sprintf("%d %d", x.Offset, x.Width)
		}
	}
	buf := make([]byte, 16<<10)
	h.layout(&buf[0], uintptr(len(buf)))
	text, _, _ := strings.Cut(string(buf), "\x00")
	got := map[string]string{}
	for line := range strings.Lines(text) {
		name, numbers, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		got[name] = numbers
	}
	assert.NotEmpty(t, got)
	assert.Equal(t, want, got)
}

func TestCReadsAndDeletesAnExportedTensor(t *testing.T) {
	h, p := needHarness(t), newPool(t)
	data, sum := floats(t, 12)
	word := &words(t, 1)[0]
	*word = take
	for name, strides := range map[string][]int64{"compact": nil, "transposed": {1, 3}} {
		t.Run(name, func(t *testing.T) {
			*word = take
			m, err := p.Export(&dlpack.Spec{Data: data, Device: dlpack.CPUDevice, DType: dlpack.Float32,
				Shape: []int64{3, 4}, Strides: strides, Flags: dlpack.FlagReadOnly, Word: word, Delta: drop, Cookie: 3})
			require.NoError(t, err)
			assert.Equal(t, sum, h.sum(m, dlpack.FlagReadOnly), "negative: the number of the check that failed")
			h.callNull(m)
			assert.Equal(t, uint64(take), atomic.LoadUint64(word), "NULL has no owner")
			assert.Equal(t, int32(1), h.registers(m), "registers of the caller and the stack are kept")
			assert.Equal(t, uint64(take+drop), atomic.LoadUint64(word))
			list := []uintptr{addr(m)}
			h.deleteAll(&list[0], 1)
			assert.Equal(t, uint64(take+drop), atomic.LoadUint64(word), "a second call does nothing")
			var cookies []uint64
			p.Reap(func(c uint64) { cookies = append(cookies, c) })
			assert.Equal(t, []uint64{3}, cookies)
		})
	}
}

// C threads, which Go did not start, delete while goroutines export, one
// goroutine reaps, the garbage collector runs and the profiler interrupts
// all threads. Each cookie comes back once, each word ends with count 0.
func TestDeletersRunOnThreadsThatGoDidNotStart(t *testing.T) {
	h, p := needHarness(t), newPool(t)
	data, _ := floats(t, 64)
	const threads, exporters, rounds, batch = 8, 2, 20, 4_000
	const total = exporters * rounds * batch
	ledger := words(t, 32)
	if pprof.StartCPUProfile(io.Discard) == nil { // taken when go test profiles
		defer pprof.StopCPUProfile()
	}

	var group sync.WaitGroup
	var done atomic.Bool
	for e := range exporters {
		group.Go(func() {
			for r := range rounds {
				legacy := int32(r % 2)
				list := make([]uintptr, batch)
				for i := range list {
					id := (e*rounds+r)*batch + i
					word := &ledger[id%len(ledger)]
					atomic.AddUint64(word, take)
					s := dlpack.Spec{Data: data, Device: dlpack.CPUDevice, DType: dlpack.Float32,
						Shape: []int64{8, 8}, Word: word, Delta: drop, Cookie: uint64(id)}
					if id%5 == 0 {
						s.Shape = []int64{1, 1, 1, 1, 1, 1, 1, 1, 1, 8, 8}
					}
					var err error
					if legacy == 1 {
						var m *dlpack.ManagedTensor
						m, err = p.ExportLegacy(&s)
						list[i] = addr(m)
					} else {
						var m *dlpack.ManagedTensorVersioned
						m, err = p.Export(&s)
						list[i] = addr(m)
					}
					if !assert.NoError(t, err) {
						return
					}
				}
				assert.Zero(t, h.deleteOnThreads(&list[0], batch, threads, legacy))
			}
		})
	}
	collector := make(chan struct{})
	go func() {
		defer close(collector)
		for !done.Load() {
			runtime.GC()
		}
	}()
	seen := make([]uint8, total)
	count := func(c uint64) { seen[c]++ }
	got := 0
	exported := make(chan struct{})
	go func() { group.Wait(); close(exported) }()
	for running := true; running; {
		select {
		case <-exported:
			running = false
		default:
		}
		n := p.Reap(count)
		if n == 0 && running {
			runtime.Gosched()
		}
		got += n
	}
	done.Store(true)
	<-collector

	assert.Equal(t, total, got)
	for id, n := range seen {
		require.EqualValues(t, 1, n, "cookie %d", id)
	}
	var sequence uint64
	for i := range ledger {
		w := atomic.LoadUint64(&ledger[i])
		assert.Zero(t, w&(1<<20-1), "count of word %d", i)
		sequence += w >> 20
	}
	assert.Equal(t, uint64(2*total), sequence, "one take and one drop for each tensor")
	assert.Zero(t, p.Stats().Live)
}

func BenchmarkDeleterCalledByC(b *testing.B) {
	h, p := needHarness(b), newPool(b)
	data, _ := floats(b, 64)
	word := &words(b, 1)[0]
	s := &dlpack.Spec{Data: data, Device: dlpack.CPUDevice, DType: dlpack.Float32, Shape: []int64{8, 8},
		Word: word, Delta: drop}
	list := make([]uintptr, 1000)
	var ns int64
	n := 0
	for b.Loop() {
		for i := range list {
			m, err := p.Export(s)
			if err != nil {
				b.Fatal(err)
			}
			list[i] = addr(m)
		}
		ns += h.deleteAll(&list[0], uintptr(len(list)))
		n += p.Reap(nil)
	}
	b.ReportMetric(float64(ns)/float64(n), "ns/delete")
}
