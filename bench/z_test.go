package bench

import (
	"context"
	"fmt"
	"github.com/baton-ipc/baton/dlpack"
	"os"
	"runtime/pprof"
	"testing"
	"time"
)

func TestZ(t *testing.T) {
	ctx := context.Background()
	b, err := serve(ctx, "/tmp/h/devserve")
	if err != nil {
		t.Fatal(err)
	}
	defer b.stop()
	ca, _ := b.connect(ctx)
	cb, _ := b.connect(ctx)
	ta, err := ca.Topic(ctx, "x/y")
	if err != nil {
		t.Fatal(err)
	}
	tb, _ := cb.Topic(ctx, "x/y")
	r, err := tb.Reader(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e := &ends{c: ca, to: ta, from: r}
	const n = 20000
	names := []string{"alloc+fill", "send", "release", "poll-empty", "take", "check", "mrelease", "clock"}
	var series [8][]int64
	f, _ := os.Create("/tmp/h/cpu.prof")
	pprof.StartCPUProfile(f)
	base := time.Now()
	now := func() int64 { return int64(time.Since(base)) }
	for pass := 0; pass < 40; pass++ {
		for i := range n {
			t0 := now()
			x, err := e.fill(ctx, 4096, byte(i))
			if err != nil {
				t.Fatal(err)
			}
			t1 := now()
			if err := ta.Send(ctx, x); err != nil {
				t.Fatal(err)
			}
			t2 := now()
			x.Release()
			t3 := now()
			m, err := r.TryReceive(ctx)
			t4 := now()
			check(m, byte(i))
			t5 := now()
			m.Release()
			t6 := now()
			r.TryReceive(ctx)
			t7 := now()
			t8 := now()
			if pass == 39 {
				for k, v := range []int64{t1 - t0, t2 - t1, t3 - t2, t7 - t6, t4 - t3, t5 - t4, t6 - t5, t8 - t7} {
					series[k] = append(series[k], v)
				}
			}
		}
	}
	pprof.StopCPUProfile()
	for k, n := range names {
		fmt.Printf("%-12s %+v\n", n, quantilesOf(series[k]))
	}
	x, _ := ca.Alloc(ctx, dlpack.Uint8, []int64{4096})
	_ = x
}
