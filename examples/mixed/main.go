// Command mixed is the Go part of examples/python/mixed.py, which starts it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

const (
	messages = 10
	depth    = 64 // of senders that have ended, so many messages are kept of all together
	rows     = 32
	pixels   = 64
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("usage: mixed NAME NUMBER PARTIES (run examples/python/mixed.py)")
	}
	name := args[0]
	number, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	parties, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	c, err := client.Connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	topic, err := c.Topic(ctx, name, client.Depth(depth))
	if err != nil {
		return err
	}
	reader, err := topic.Reader(ctx, client.StartAll) // also what was sent before: the topic keeps it
	if err != nil {
		return err
	}
	if err := send(ctx, c, topic, name, number); err != nil {
		return err
	}
	total := 0.0
	for range parties * messages {
		m, err := reader.Receive(ctx)
		if err != nil {
			return err
		}
		pictures, err := client.Slice[float32](m.Tensor()) // the sender's memory
		if err != nil {
			return err
		}
		for _, p := range pictures {
			total += float64(p)
		}
		m.Release()
	}
	fmt.Printf("Go: %d messages, sum %.4f\n", parties*messages, total)
	return nil
}

// send sends this party's share of the published pictures.
func send(ctx context.Context, c *client.Client, topic *client.Topic, name string, number int) error {
	published, err := c.Get(ctx, name)
	if err != nil {
		return err
	}
	defer published.Release()
	all, err := client.Slice[float32](published.Tensor("pictures"))
	if err != nil {
		return err
	}
	for i := number * messages; i < (number+1)*messages; i++ {
		batch, err := c.AllocBundle(ctx, client.Spec{Name: "pictures", DType: dlpack.Float32, Shape: []int64{rows, pixels}})
		if err != nil {
			return err
		}
		x, err := client.Slice[float32](batch.Tensor("pictures"))
		if err != nil {
			return err
		}
		copy(x, all[i*rows*pixels:])
		if err := topic.Send(ctx, batch, client.Meta(map[string]string{"from": "Go"})); err != nil {
			return err
		}
		batch.Release()
	}
	return nil
}
