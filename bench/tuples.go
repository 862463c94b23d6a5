package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
)

func init() {
	roles["tuples"] = func(ctx context.Context, s *seat) error { return overNATS(ctx, s, sendTuples) }
	roles["bare"] = func(ctx context.Context, s *seat) error { return overNATS(ctx, s, publishBare) }
}

// overNATS counts at a plain nats.go subscriber, on the right, what the left
// side sends. No more than Count messages are under way at a time, so that
// neither the topic nor the server drops any.
func overNATS(ctx context.Context, s *seat, send func(context.Context, *seat, string) error) error {
	subject := "baton.default.topic." + strings.ReplaceAll(s.Path, "/", ".")
	if s.Side == left {
		return send(ctx, s, subject)
	}
	nc, err := s.nats()
	if err != nil {
		return err
	}
	defer nc.Close()
	arrive := s.series(seriesArrive)
	i, bytes, ring := 0, 0, max(s.Count/4, 1)
	done := make(chan struct{})
	sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
		if i >= len(arrive) {
			return
		}
		arrive[i] = sys.Monotonic()
		bytes += len(m.Data)
		if i++; i%ring == 0 || s.Slice > 0 && i%s.Slice == 0 || i == len(arrive) {
			s.store(lineCount, uint64(i))
			sys.FutexWake(s.word32(lineCount))
		}
		if i == len(arrive) {
			close(done)
		}
	})
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	s.meet()
	select {
	case <-done:
	case <-ctx.Done():
		return ctx.Err()
	}
	s.report("bytes", float64(bytes)/float64(i))
	s.meet()
	return nil
}

// nats connects to the broker's NATS as any user of it would.
func (s *seat) nats() (*nats.Conn, error) {
	info, err := natsbridge.ReadInfo(s.Directory)
	if err != nil {
		return nil, err
	}
	return info.Connect(nats.Name("baton-bench"))
}

// sendTuples sends messages in a topic, whose tuples the broker publishes.
func sendTuples(ctx context.Context, s *seat, _ string) error {
	c, err := connect(ctx, s.Socket, "bench")
	if err != nil {
		return err
	}
	defer c.Close()
	topic, err := c.Topic(ctx, s.Path, client.Depth(max(2*s.Count, 8)))
	if err != nil {
		return err
	}
	t, err := c.Alloc(ctx, dlpack.Uint8, []int64{s.Bytes})
	if err != nil {
		return err
	}
	defer t.Release()
	s.meet()
	err = s.paced(func(int) error { return topic.Send(ctx, t) }, nil)
	s.meet()
	return err
}

// publishBare publishes as many bytes as a tuple has.
func publishBare(_ context.Context, s *seat, subject string) error {
	nc, err := s.nats()
	if err != nil {
		return err
	}
	defer nc.Close()
	data := make([]byte, s.Bytes)
	s.meet()
	err = s.paced(func(int) error { return nc.Publish(subject, data) }, nc.Flush)
	s.meet()
	return err
}

// stalled is how long the subscriber may be silent before something is wrong.
const stalled = 20 * time.Second

// paced calls send for each round while the window allows, and flush before it
// waits for the other side. Where the job names a pace, each round waits asleep,
// so that broker and subscriber have both processors, and is flushed at once. It
// notes when each went out.
func (s *seat) paced(send func(i int) error, flush func() error) error {
	depart := s.series(seriesDepart)
	for i := range s.N {
		if s.Slice > 0 && i%s.Slice == 0 {
			if err := s.window(i-1+s.Count, flush); err != nil { // all of the last slice
				return err
			}
			s.turn(i)
		}
		if err := s.window(i, flush); err != nil {
			return err
		}
		nap(s.Every)
		depart[i] = sys.Monotonic()
		if err := send(i); err != nil {
			return err
		}
		if s.Every > 0 && flush != nil {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	err := s.window(s.N-1+s.Count, flush)
	s.turn(s.N)
	return err
}

// nap sleeps for less than the runtime's timers can: in an idle process they are
// rounded up to a millisecond.
func nap(d time.Duration) {
	if d > 0 {
		var word uint32
		sys.FutexWait(&word, 0, d)
	}
}

// window waits until message i may go out.
func (s *seat) window(i int, flush func() error) error {
	flushed := flush == nil
	for began := time.Now(); ; {
		got := s.load(lineCount)
		if int(got) >= i+1-s.Count {
			return nil
		}
		if !flushed {
			if err := flush(); err != nil {
				return err
			}
			flushed = true
			continue
		}
		if time.Since(began) > stalled {
			return fmt.Errorf("the subscriber has %d of %d messages and gets no more", got, i)
		}
		sys.FutexWait(s.word32(lineCount), uint32(got), time.Second)
	}
}
