package bench

import (
	"context"

	"github.com/baton-ipc/baton/internal/sys"
)

func init() { roles["wake"] = wake }

// wake hands a tensor to a receiver that sleeps, which passes it on to the sender,
// which sleeps meanwhile. The sender looks at the receiver's page until that one has parked, and
// lets it fall asleep, as the bare futex does.
func wake(ctx context.Context, s *seat) error {
	depart, arrive, back := s.series(seriesDepart), s.series(seriesArrive), s.series(seriesBack)
	e, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer e.c.Close()
	var o *observer
	if s.Side == right {
		s.store(lineCount, e.c.Session())
	}
	s.meet()
	if s.Side == left {
		if o, err = observe(ctx, s.Socket, s.load(lineCount)); err != nil {
			return err
		}
		defer o.close()
	}
	last := uint64(0)
	for i := range uint64(s.N) {
		s.turn(int(i))
		if s.Side == left {
			t, err := e.fill(ctx, s.Bytes, byte(i))
			if err != nil {
				return err
			}
			last = o.awaitParked(last)
			linger(asleep)
			depart[i] = sys.Monotonic()
			if err := e.to.Send(ctx, t); err != nil {
				return err
			}
			t.Release()
		}
		m, err := e.from.Receive(ctx)
		if err != nil {
			return err
		}
		if s.Side == left {
			back[i] = sys.Monotonic()
		} else {
			arrive[i] = sys.Monotonic()
			if err := e.to.Send(ctx, m.Tensor()); err != nil {
				return err
			}
		}
		if err := check(m, byte(i)); err != nil {
			return err
		}
		m.Release()
	}
	s.turn(s.N)
	s.meet()
	return nil
}
