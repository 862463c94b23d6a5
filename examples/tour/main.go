// Command tour shows a hand-over in one screen: this process fills tensors and
// sends them; a second one, started by it, receives them without a copy.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	run := produce
	if len(os.Args) > 1 && os.Args[1] == "consume" {
		run = consume
	}
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

// produce puts three batches on a queue and publishes weights under a name.
func produce(ctx context.Context) error {
	// region produce
	c, err := client.Connect(ctx) // starts the user's broker if none runs
	if err != nil {
		return err
	}
	defer c.Close()
	queue, err := c.Queue(ctx, "tour/batches")
	if err != nil {
		return err
	}
	for i := range 3 {
		batch, err := c.Alloc(ctx, dlpack.Float32, []int64{2, 3})
		if err != nil {
			return err
		}
		x, err := client.Slice[float32](batch) // the shared memory itself
		if err != nil {
			return err
		}
		for k := range x {
			x[k] = float32(10*i + k)
		}
		if err := queue.Put(ctx, batch, client.Meta(map[string]int{"batch": i})); err != nil {
			return err
		}
		batch.Release() // the queue holds it now
	}
	// endregion
	weights, err := c.Zeros(ctx, dlpack.Float64, []int64{4})
	if err != nil {
		return err
	}
	revision, err := c.Set(ctx, "tour/weights", map[string]*client.Tensor{"w": weights}, client.Ephemeral())
	if err != nil {
		return err
	}
	weights.Release()
	fmt.Printf("published tour/weights, revision %d\n", revision)

	if err := queue.End(ctx); err != nil { // takers drain it, then get ErrClosed
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	other := exec.CommandContext(ctx, self, "consume")
	other.Stdout, other.Stderr = os.Stdout, os.Stderr
	return other.Run()
}

// consume takes the batches in another process and gets the name.
func consume(ctx context.Context) error {
	// region consume
	c, err := client.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	queue, err := c.Queue(ctx, "tour/batches")
	if err != nil {
		return err
	}
	for {
		m, err := queue.Get(ctx)
		if errors.Is(err, protocol.ErrClosed) {
			break
		}
		if err != nil {
			return err
		}
		x, err := client.Slice[float32](m.Tensor()) // no copy: the producer's bytes
		if err != nil {
			return err
		}
		fmt.Printf("batch %d: %v, first %v, last %v\n", m.Sequence, m.Tensor().Shape(), x[0], x[len(x)-1])
		m.Release()
	}
	// endregion
	weights, err := c.Get(ctx, "tour/weights")
	if err != nil {
		return err
	}
	defer weights.Release()
	fmt.Printf("got tour/weights, revision %d: %v\n", weights.Revision, weights.Names())
	return nil
}
