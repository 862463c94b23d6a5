package bench

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
)

func TestY(t *testing.T) {
	ctx := context.Background()
	b, err := serve(ctx, "/tmp/h/devserve")
	if err != nil {
		t.Fatal(err)
	}
	defer b.stop()
	n, _ := strconv.Atoi(os.Getenv("NN"))
	o, err := runPair(ctx, [2]int{0, 1}, job{Role: os.Getenv("ROLE"), N: n, Bytes: 4096, Address: b.socket(), Path: "bench/t"})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("send-held %+v publish-held %+v cycle %+v\n", quantilesOf(o.gaps(seriesArrive, seriesDepart, n/10)), quantilesOf(o.gaps(seriesArrive, seriesPublish, n/10)), quantilesOf(o.gaps(seriesBack, seriesDepart, n/10)))
}
