package bench

import (
	"context"
	"fmt"
	"sync"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
)

func init() {
	roles["crowd"] = crowd
	roles["recycling"] = recycling
}

// ballast is what a process of a pair holds beside what is measured.
func ballast(ctx context.Context, s *seat, e *ends) error {
	if s.Side == left {
		for k := 1; k < s.Storages; k++ {
			if _, err := e.c.Alloc(ctx, dlpack.Uint8, []int64{1}); err != nil {
				return fmt.Errorf("storage %d of %d: %w", k, s.Storages, err)
			}
		}
	}
	for k := 1; k < s.Topics; k++ {
		// Without linger: passes of a thousand topics each would fill the broker's table.
		t, err := e.c.Topic(ctx, fmt.Sprintf("%s/other-%d", s.Path, k), client.Linger(0))
		if err != nil {
			return fmt.Errorf("topic %d of %d: %w", k, s.Topics, err)
		}
		if s.Side == left {
			err = e.send(ctx, t)
		} else {
			_, err = t.Reader(ctx)
		}
		if err != nil {
			return fmt.Errorf("topic %d of %d: %w", k, s.Topics, err)
		}
	}
	return nil
}

// send sends a small tensor in a topic.
func (e *ends) send(ctx context.Context, to *client.Topic) error {
	t, err := e.fill(ctx, 256, 1)
	if err != nil {
		return err
	}
	defer t.Release()
	return to.Send(ctx, t)
}

// crowd is many sessions of one process, each with a topic of its own that it
// writes and reads, that share nothing with those measured. It stays until it is
// told to go.
func crowd(ctx context.Context, s *seat) error {
	err := s.sessions(ctx, func(k int, c *client.Client) error {
		t, err := c.Topic(ctx, fmt.Sprintf("%s/crowd-%d", s.Path, k), client.Linger(0))
		if err != nil {
			return err
		}
		r, err := t.Reader(ctx)
		if err != nil {
			return err
		}
		e := &ends{c: c, from: r}
		if err := e.send(ctx, t); err != nil {
			return err
		}
		m, err := e.take(ctx)
		if err == nil {
			m.Release()
		}
		return err
	})
	if err != nil {
		return err
	}
	s.store(lineCount, 1)
	sys.FutexWake(s.word32(lineCount))
	s.awaitAsleep(lineStop, 1)
	return nil
}

// sessions connects many clients and does f with each. They live as long as the
// process.
func (s *seat) sessions(ctx context.Context, f func(k int, c *client.Client) error) error {
	var group sync.WaitGroup
	errs := make(chan error, s.Sessions)
	turns := make(chan struct{}, 8)
	for k := range s.Sessions {
		group.Add(1)
		turns <- struct{}{}
		go func() {
			defer group.Done()
			defer func() { <-turns }()
			c, err := connect(ctx, s.Socket, "bench-crowd")
			if err == nil {
				err = f(k, c)
			}
			if err != nil {
				errs <- fmt.Errorf("session %d of %d: %w", k+1, s.Sessions, err)
			}
		}()
	}
	group.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// recycling times an owner's pool, on the left, while many sessions, on the
// right, are attached to its memory: each has received something that lies there
// and let go of it.
func recycling(ctx context.Context, s *seat) error {
	if s.Side == right {
		return attached(ctx, s)
	}
	e, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer e.c.Close()
	s.meet() // the sessions have their readers
	if err := e.pass(ctx, 256, 1); err != nil {
		return err
	}
	s.meet() // and their attachments
	shape := []int64{s.Bytes}
	op := func(int) error {
		t, err := e.c.Alloc(ctx, dlpack.Uint8, shape)
		if err == nil {
			t.Release()
		}
		return err
	}
	// The refcounts of sessions that are not mapped yet count as held, and are mapped
	// in the background.
	for before := uint64(0); ; {
		for i := range block {
			if err := op(i); err != nil {
				return err
			}
		}
		now := e.c.Stats().Recycled
		if now-before == block {
			break
		}
		before = now
	}
	err = timed(s, "ns", op)
	s.meet()
	return err
}

// attached is the other side: its own pair of topics, and one session more for
// each that is to be attached beside it.
func attached(ctx context.Context, s *seat) error {
	e, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer e.c.Close()
	clients := make([]*client.Client, s.Sessions-1)
	readers := []*client.Reader{e.from}
	var mu sync.Mutex
	more := *s
	more.Sessions--
	if err := more.sessions(ctx, func(k int, c *client.Client) error {
		t, err := c.Topic(ctx, s.Path+"/there")
		if err != nil {
			return err
		}
		r, err := t.Reader(ctx)
		mu.Lock()
		defer mu.Unlock()
		clients[k] = c
		readers = append(readers, r)
		return err
	}); err != nil {
		return err
	}
	s.meet()
	for _, r := range readers {
		m, err := r.Receive(ctx)
		if err != nil {
			return err
		}
		m.Release()
	}
	s.meet()
	s.meet() // the owner has measured
	for _, c := range clients {
		c.Close()
	}
	return nil
}
