package bench

import (
	"context"
	"fmt"
	"os"
	"testing"
)

func TestMain(m *testing.M) { Child(); os.Exit(m.Run()) }
func TestX(t *testing.T) {
	ctx := context.Background()
	b, err := serve(ctx, "/tmp/h/devserve")
	if err != nil {
		t.Fatal(err)
	}
	defer b.stop()
	cpus := [2]int{0, 1}
	k := 0
	for i := 0; i < 3; i++ {
		for _, r := range []string{"spin"} {
			n := 20000
			if r == "futex" {
				n = 1000
			}
			o, err := runPair(context.Background(), cpus, job{Role: r, N: n})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("%s oneway %+v rtt %+v\n", r, quantilesOf(o.gaps(seriesArrive, seriesDepart, n/10)), quantilesOf(o.gaps(seriesBack, seriesDepart, n/10)))
		}
		for _, sz := range []int64{4096, 1 << 20, 16 << 20} {
			n := 20000
			k++
			o, err := runPair(context.Background(), cpus, job{Role: "oneway", N: n, Bytes: sz, Address: b.socket(), Path: fmt.Sprint("bench/t", k)})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("oneway %d send-held %+v publish-held %+v\n", sz, quantilesOf(o.gaps(seriesArrive, seriesDepart, n/10)), quantilesOf(o.gaps(seriesArrive, seriesPublish, n/10)))
			k++
			o, err = runPair(context.Background(), cpus, job{Role: "cycle", N: n, Bytes: sz, Address: b.socket(), Path: fmt.Sprint("bench/t", k)})
			if err != nil {
				t.Fatal(err)
			}
			fmt.Printf("cycle %d %+v\n", sz, quantilesOf(o.gaps(seriesBack, seriesDepart, n/10)))
		}
	}
}
