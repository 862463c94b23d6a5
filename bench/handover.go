package bench

import (
	"context"
	"fmt"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
)

func init() {
	roles["oneway"] = oneWay
	roles["cycle"] = cycle
}

// ends is what a process of a pair has open: the topic it sends to and the
// reader of the other's.
type ends struct {
	c     *client.Client
	to    *client.Topic
	from  *client.Reader
	shape [1]int64
}

// open joins two topics, one for each direction. Both sides have met when it
// returns, so nothing that is sent afterwards is missed.
func open(ctx context.Context, s *seat) (*ends, error) {
	c, err := connect(ctx, s.Socket, "bench")
	if err != nil {
		return nil, err
	}
	e := &ends{c: c}
	names := [2]string{s.Path + "/there", s.Path + "/back"}
	if e.to, err = c.Topic(ctx, names[s.Side]); err != nil {
		return nil, err
	}
	other, err := c.Topic(ctx, names[1-s.Side])
	if err != nil {
		return nil, err
	}
	if e.from, err = other.Reader(ctx); err != nil {
		return nil, err
	}
	if err := ballast(ctx, s, e); err != nil {
		return nil, err
	}
	s.meet()
	return e, nil
}

// take polls until a message is there.
func (e *ends) take(ctx context.Context) (*client.Message, error) {
	for {
		if m, err := e.from.TryReceive(ctx); m != nil || err != nil {
			return m, err
		}
	}
}

// fill makes a tensor whose first and last byte are v.
func (e *ends) fill(ctx context.Context, bytes int64, v byte) (*client.Tensor, error) {
	e.shape[0] = bytes
	t, err := e.c.Alloc(ctx, dlpack.Uint8, e.shape[:])
	if err != nil {
		return nil, err
	}
	b, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	b[0], b[len(b)-1] = v, v
	return t, nil
}

// check reads the first and the last byte of a message.
func check(m *client.Message, v byte) error {
	b, err := m.Bundle()
	if err != nil {
		return err
	}
	if len(b.Tensors()) != 1 {
		return fmt.Errorf("message %d has %d tensors, not 1", m.Sequence, len(b.Tensors()))
	}
	p, err := b.Tensors()[0].Bytes()
	if err != nil {
		return err
	}
	if p[0] != v || p[len(p)-1] != v {
		return fmt.Errorf("message %d carries %d and %d, not %d", m.Sequence, p[0], p[len(p)-1], v)
	}
	return nil
}

// oneWay hands tensors over one at a time, both sides busy. The answer is a word
// of the page, so that only the hand-over is measured.
func oneWay(ctx context.Context, s *seat) error {
	depart, arrive, publish := s.series(seriesDepart), s.series(seriesArrive), s.series(seriesPublish)
	e, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer e.c.Close()
	for i := range uint64(s.N) {
		s.turn(int(i))
		if s.Side == left {
			t, err := e.fill(ctx, s.Bytes, byte(i))
			if err != nil {
				return err
			}
			depart[i] = sys.Monotonic()
			if err := e.to.Send(ctx, t); err != nil {
				return err
			}
			t.Release()
			s.awaitSpin(linePong, i+1)
			continue
		}
		m, err := e.take(ctx)
		arrive[i] = sys.Monotonic()
		if err != nil {
			return err
		}
		publish[i] = m.Stamp
		if err := check(m, byte(i)); err != nil {
			return err
		}
		m.Release()
		s.store(linePong, i+1)
	}
	s.turn(s.N)
	s.meet()
	return nil
}

// cycle is what a program does: allocate, fill, send, take, read, answer on a
// second topic with a tensor of eight bytes, take that, drop both.
func cycle(ctx context.Context, s *seat) error {
	depart, back := s.series(seriesDepart), s.series(seriesBack)
	e, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer e.c.Close()
	for i := range s.N {
		s.turn(i)
		if err := e.round(ctx, s, i, e.take, depart, back); err != nil {
			return err
		}
	}
	s.turn(s.N)
	s.meet()
	return nil
}

// round is one round of a cycle: the left side passes and takes the answer, and notes both
// times, the right side takes and answers.
func (e *ends) round(ctx context.Context, s *seat, i int, take func(context.Context) (*client.Message, error), depart, back []uint64) error {
	if s.Side == left {
		depart[i] = sys.Monotonic()
		if err := e.pass(ctx, s.Bytes, byte(i)); err != nil {
			return err
		}
	}
	m, err := take(ctx)
	if err != nil {
		return err
	}
	if err := check(m, byte(i)); err != nil {
		return err
	}
	m.Release()
	if s.Side == left {
		back[i] = sys.Monotonic()
		return nil
	}
	return e.pass(ctx, 8, byte(i))
}

// pass allocates, fills and sends.
func (e *ends) pass(ctx context.Context, bytes int64, v byte) error {
	t, err := e.fill(ctx, bytes, v)
	if err != nil {
		return err
	}
	defer t.Release()
	return e.to.Send(ctx, t)
}
