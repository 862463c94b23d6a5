package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// goesOn is a client that does one thing again and again: it says "ready", tells its
// count whenever it hears a line, and at the first error "lost" if the session is lost.
// What it holds it verifies then, and after it another session does the same.
type goesOn struct {
	Kind string
}

func init() { roles["goes on"] = playGoesOn }

// kindsThatGoOn succeed again and again as long as all of them are there; kindsThatWait
// wait for what does not come.
var (
	kindsThatGoOn = []string{"send", "read", "put", "get", "set", "watch", "get name"}
	kindsThatWait = []string{"wait read", "wait get", "wait watch", "wait room", "wait memory"}
)

// step makes what a kind does again and again. It keeps the first tensor that it has.
func (g goesOn) step(ctx context.Context, c *client.Client, hold func(*client.Tensor, uint64)) (func() error, error) {
	got := func(m *client.Message) (int, error) {
		k, err := verifyMessage(m)
		if err == nil {
			hold(m.Tensor(), k.Seed)
		}
		return k.ID, err
	}
	n := 0
	switch g.Kind {
	case "send", "put", "wait room":
		var to sender
		var err error
		if g.Kind == "send" {
			to, err = channel{Topic: "x"}.openSender(ctx, c)
		} else {
			to, err = channel{Queue: map[bool]string{true: "q", false: "full"}[g.Kind == "put"], Depth: 4}.openSender(ctx, c)
		}
		return func() error {
			err := sendNoted(ctx, c, to, 64, newNote(g.Kind, n))
			if err == nil {
				n++
			}
			return err
		}, err
	case "read", "wait read":
		t, err := c.Topic(ctx, map[bool]string{true: "x", false: "silent"}[g.Kind == "read"])
		if err != nil {
			return nil, err
		}
		r, err := t.Reader(ctx)
		return func() error {
			m, err := r.Receive(ctx)
			if err != nil {
				return err
			}
			defer m.Release()
			_, err = got(m)
			return err
		}, err
	case "get", "wait get":
		q, err := c.Queue(ctx, map[bool]string{true: "q", false: "empty"}[g.Kind == "get"], client.Depth(4))
		return func() error {
			m, err := q.Get(ctx)
			if err != nil {
				return err
			}
			defer m.Release()
			id, err := got(m)
			if err == nil && id != n {
				err = fmt.Errorf("item %d came where %d belongs", id, n)
			}
			n++
			return err
		}, err
	case "set":
		return func() error {
			n++
			_, err := publish(ctx, c, "n", uint64(n))
			return err
		}, nil
	case "watch", "wait watch":
		w, err := c.Watch(ctx, map[bool]string{true: "n", false: "unset"}[g.Kind == "watch"])
		return func() error {
			b, err := w.Next(ctx)
			if err != nil {
				return err
			}
			defer b.Release()
			return verifyBundle(b, b.Revision)
		}, err
	case "get name":
		return func() error {
			b, err := c.Get(ctx, "n", client.WaitForName(time.Hour))
			if err != nil {
				return err
			}
			defer b.Release()
			return verifyBundle(b, b.Revision)
		}, nil
	case "wait memory":
		return func() error {
			x, err := filled(ctx, c, 1<<20, 1, client.WaitForMemory(time.Hour))
			if err == nil {
				hold(x, 1) // the first; what follows waits for room
			}
			return err
		}, nil
	}
	return nil, fmt.Errorf("no kind %q", g.Kind)
}

func playGoesOn(p *testkit.Child) error {
	var g goesOn
	if err := p.Config(&g); err != nil {
		return err
	}
	c, err := p.Connect()
	if err != nil {
		return err
	}
	var held *client.Tensor
	var seed uint64
	hold := func(x *client.Tensor, s uint64) {
		if held == nil {
			held, seed = x.Retain(), s
		}
	}
	intact := func() error {
		if held == nil {
			return nil
		}
		words, err := client.Slice[uint64](held)
		if err != nil {
			return err
		}
		return verify(words, seed)
	}
	step, err := g.step(p.Context(), c, hold)
	if err != nil {
		return err
	}
	var count atomic.Int64
	told := make(chan error, 1)
	go func() {
		var line string
		for {
			if err := p.Hear(&line); err != nil {
				told <- err
				return
			}
			if line == "count" {
				p.Say(count.Load())
			} else {
				told <- nil
			}
		}
	}()
	if err := p.Say("ready"); err != nil {
		return err
	}
	for err == nil && p.Context().Err() == nil {
		if err = step(); err == nil {
			count.Add(1)
			time.Sleep(time.Millisecond)
		}
	}
	if p.Context().Err() != nil { // the test wants no more of it
		if err := intact(); err != nil {
			return err
		}
		return c.Close()
	}
	if !errors.Is(err, protocol.ErrSessionLost) {
		return fmt.Errorf("after %d: %w", count.Load(), err)
	}
	for range 3 {
		if err := step(); !errors.Is(err, protocol.ErrSessionLost) {
			return fmt.Errorf("after the loss: %w", err)
		}
	}
	if err := intact(); err != nil {
		return err
	}
	if err := p.Say("lost"); err != nil {
		return err
	}
	if err := <-told; err != nil { // there is a broker again
		return err
	}
	again, err := c.Reopen(p.Context())
	if err != nil {
		return err
	}
	if _, err := publish(p.Context(), again, "again", 1); err != nil {
		return err
	}
	if err := step(); !errors.Is(err, protocol.ErrSessionLost) {
		return fmt.Errorf("beside a new session: %w", err)
	}
	if err := intact(); err != nil {
		return err
	}
	if held != nil {
		held.Release()
	}
	if err := c.Close(); err != nil {
		return err
	}
	if err := p.Say("again"); err != nil {
		return err
	}
	if err := <-told; err != io.EOF {
		return fmt.Errorf("heard more: %w", err)
	}
	return again.Close()
}
