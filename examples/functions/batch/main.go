// Command batch is the Go part of examples/functions/train.py, which starts it: it provides batches of digits.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

const pixels = 64

// Pick is what a caller says of the batch that it wants.
type Pick struct {
	Step int
	Rows int `baton:"rows,default=64"`
}

// Batch is what it gets: a dict of two tensors.
type Batch struct{ Pictures, Labels *client.Tensor }

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: batch NAME (run examples/functions/train.py)")
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, name string) error {
	c, err := client.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	published, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	defer published.Release()
	pictures, err := client.Slice[float32](published.Tensor("pictures"))
	if err != nil {
		return err
	}
	labels, err := client.Slice[int64](published.Tensor("labels"))
	if err != nil {
		return err
	}
	batch := func(ctx context.Context, in Pick) (Batch, error) {
		return fill(ctx, c, pictures, labels, in)
	}
	doc := client.Doc("Pictures and labels, drawn at random: the same for the same step.")
	r, err := client.Handle(c, name+"/batch", batch, doc)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the trainer has ended, in whichever way
	return r.Close(ctx)
}

// fill draws a batch into new tensors, which are released when they were sent.
func fill(ctx context.Context, c *client.Client, pictures []float32, labels []int64, in Pick) (b Batch, err error) {
	if in.Rows < 1 || in.Rows > len(labels) {
		return b, fmt.Errorf("a batch of %d rows: there are %d", in.Rows, len(labels))
	}
	rows := int64(in.Rows)
	if b.Pictures, err = c.Alloc(ctx, dlpack.Float32, []int64{rows, pixels}); err != nil {
		return b, err
	}
	if b.Labels, err = c.Alloc(ctx, dlpack.Int64, []int64{rows}); err != nil {
		b.Pictures.Release()
		return b, err
	}
	x, err := client.Slice[float32](b.Pictures)
	if err != nil {
		return b, err
	}
	y, err := client.Slice[int64](b.Labels)
	if err != nil {
		return b, err
	}
	random := rand.New(rand.NewPCG(uint64(in.Step), 0))
	for i := range y {
		k := random.IntN(len(labels))
		copy(x[i*pixels:(i+1)*pixels], pictures[k*pixels:])
		y[i] = labels[k]
	}
	return b, nil
}
