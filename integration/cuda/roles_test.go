package cuda

import (
	"fmt"
	"time"

	"github.com/baton-ipc/baton/client"
)

func init() {
	roles["produce"] = on(produce)
	roles["consume"] = on(consume)
	roles["relay"] = on(relay)
}

// soon ends topics with the sessions that have them open, so that what they keep is freed.
var soon = client.Linger(time.Millisecond)

// course says what producers and consumers do.
type course struct {
	Topic, Queue string
	Count        int
	Bytes        int64
	// Add is what relays on the way have added to the number of each message.
	Add byte
	// Hold keeps the last message, reports it, and waits to be told to go on.
	Hold bool
}

// produce sends tensors whose bytes are all the number of the message, one after
// another on its stream, and waits to be told to end.
func produce(w *worker) error {
	var k course
	if err := w.Config(&k); err != nil {
		return err
	}
	send, err := k.sender(w)
	if err != nil {
		return err
	}
	if err := w.pause("ready"); err != nil {
		return err
	}
	for i := range k.Count {
		if err := w.sendFilled(k.Bytes, byte(i), send); err != nil {
			return err
		}
	}
	return w.finish("sent")
}

func (k course) sender(w *worker) (func(*client.Tensor) error, error) {
	s := client.Stream(w.stream)
	if k.Queue != "" {
		q, err := w.c.Queue(w.ctx, k.Queue, client.Depth(4), soon)
		return func(t *client.Tensor) error { return q.Put(w.ctx, t, s) }, err
	}
	topic, err := w.c.Topic(w.ctx, k.Topic, client.Overwrite(false), client.Depth(4), soon)
	return func(t *client.Tensor) error { return topic.Send(w.ctx, t, s) }, err
}

func (k course) receiver(w *worker) (func() (*client.Message, error), error) {
	if k.Queue != "" {
		q, err := w.c.Queue(w.ctx, k.Queue, client.Depth(4), soon)
		return func() (*client.Message, error) { return q.Get(w.ctx) }, err
	}
	topic, err := w.c.Topic(w.ctx, k.Topic, client.Overwrite(false), client.Depth(4), soon)
	if err != nil {
		return nil, err
	}
	r, err := topic.Reader(w.ctx)
	return func() (*client.Message, error) { return r.Receive(w.ctx) }, err
}

// consume receives what produce sends and checks every byte.
func consume(w *worker) error {
	var k course
	if err := w.Config(&k); err != nil {
		return err
	}
	receive, err := k.receiver(w)
	if err != nil {
		return err
	}
	if err := w.Say("ready"); err != nil {
		return err
	}
	for i := range k.Count {
		m, err := receive()
		if err != nil {
			return err
		}
		if b, err := m.Bundle(); err != nil {
			return fmt.Errorf("message %d: %v: %w", i, b, err)
		}
		if err := w.expect(m.Tensor(), byte(i)+k.Add); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if k.Hold && i == k.Count-1 {
			if err := w.pause("holding"); err != nil {
				return err
			}
			if err := w.expect(m.Tensor(), byte(i)+k.Add); err != nil {
				return fmt.Errorf("held: %w", err)
			}
		}
		m.Release()
	}
	return w.finish("received")
}

// relay overwrites what it gets from one queue and passes it on
// to the next, without waiting for its stream.
func relay(w *worker) error {
	var k struct {
		From, To string
		Add      byte
		Count    int
	}
	if err := w.Config(&k); err != nil {
		return err
	}
	from, err := w.c.Queue(w.ctx, k.From, client.Depth(4), soon)
	if err != nil {
		return err
	}
	to, err := w.c.Queue(w.ctx, k.To, client.Depth(4), soon)
	if err != nil {
		return err
	}
	if err := w.Say("ready"); err != nil {
		return err
	}
	for i := range k.Count {
		m, err := from.Get(w.ctx)
		if err != nil {
			return err
		}
		t := m.Tensor()
		if err := w.fill(t, byte(i)+k.Add); err != nil {
			return err
		}
		if err := to.Put(w.ctx, t, client.Stream(w.stream)); err != nil {
			return err
		}
		m.Release()
	}
	<-w.ctx.Done()
	return nil
}
