//go:build devbench

package bench

import (
	"context"
	"fmt"
	"os"
	"runtime/pprof"
	"testing"
)
import "github.com/baton-ipc/baton/internal/sys"

func TestMain(m *testing.M) { Child(); os.Exit(m.Run()) }
func TestZ(t *testing.T) {
	ctx := context.Background()
	b, err := serve(ctx, "/tmp/h/baton")
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
	for pass := 0; pass < 40; pass++ {
		for i := range n {
			t0 := sys.Monotonic()
			x, err := e.fill(ctx, 4096, byte(i))
			if err != nil {
				t.Fatal(err)
			}
			t1 := sys.Monotonic()
			if err := ta.Send(ctx, x); err != nil {
				t.Fatal(err)
			}
			t2 := sys.Monotonic()
			x.Release()
			t3 := sys.Monotonic()
			m, err := r.TryReceive(ctx)
			t4 := sys.Monotonic()
			check(m, byte(i))
			t5 := sys.Monotonic()
			m.Release()
			t6 := sys.Monotonic()
			r.TryReceive(ctx)
			t7 := sys.Monotonic()
			t8 := sys.Monotonic()
			if pass%4 == 3 {
				for k, v := range []uint64{t1 - t0, t2 - t1, t3 - t2, t7 - t6, t4 - t3, t5 - t4, t6 - t5, t8 - t7} {
					series[k] = append(series[k], int64(v))
				}
			}
		}
	}
	pprof.StopCPUProfile()
	for k, n := range names {
		q := quantilesOf(series[k])
		fmt.Printf("%-12s p50 %5.0f p99 %6.0f mean-ish p99.9 %6.0f\n", n, q.P50, q.P99, q.P999)
	}
}

func TestY(t *testing.T) {
	ctx := context.Background()
	b, err := serve(ctx, "/tmp/h/baton")
	if err != nil {
		t.Fatal(err)
	}
	defer b.stop()
	n := 1000000
	o, err := runPair(ctx, [2]int{0, 1}, job{Role: os.Getenv("ROLE"), N: n, Bytes: 4096, Socket: b.socket(), Path: "bench/t"})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("send-held %+v\npublish-held %+v\ncycle %+v\n", quantilesOf(o.gaps(seriesArrive, seriesDepart, n/10)), quantilesOf(o.gaps(seriesArrive, seriesPublish, n/10)), quantilesOf(o.gaps(seriesBack, seriesDepart, n/10)))
}
