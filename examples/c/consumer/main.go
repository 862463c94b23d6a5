// Command consumer takes the batches of the loader in C, without a copy, until
// one of them is empty.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/baton-ipc/baton/client"
)

func main() {
	if err := consume(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "consumer:", err)
		os.Exit(1)
	}
}

func consume(ctx context.Context) error {
	c, err := client.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	queue, err := c.Queue(ctx, "c/batches")
	if err != nil {
		return err
	}
	for {
		m, err := queue.Get(ctx)
		if err != nil {
			return err
		}
		if m.Tensor() == nil {
			m.Release()
			return nil
		}
		x, err := client.Slice[float32](m.Tensor())
		if err != nil {
			return err
		}
		fmt.Printf("batch %d of %s: %v, first %v, last %v\n", m.Sequence, m.Sender, m.Tensor().Shape(), x[0], x[len(x)-1])
		m.Release()
	}
}
