package bench

import (
	"context"
	"strings"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
)

// underWay is how many messages a stream has under way at most.
const underWay = 48

// streams measures how many messages of 4 KiB go through in a second, in Go and, where
// its program is at hand, in Rust beside iceoryx2.
func (b *bencher) streams(ctx context.Context, group string) error {
	j := job{N: b.opts.rounds(100000), Bytes: sizes[0].bytes, Count: underWay}
	all := []contender{b.spinTrip(group)}
	add := func(name, role, floor string, bar *Bar, programs [2]string) {
		j.Role, j.programs = role, programs
		f := b.figure(group, name, UnitRate)
		if floor != "" {
			f.against(floor, bar)
		}
		all = append(all, contender{j, []reading{rate(f, seriesArrive, 0)}})
	}
	var ice string
	if both := [2]string{b.opts.Rust, b.opts.Rust}; b.opts.Rust != "" {
		ice = iceName + "publish-subscribe"
		add(ice, "iceoryx2-stream", "", nil, both)
		add("Rust, topic", "stream topic", ice, times(1/0.3), both)
		add("Rust, lossless topic", "stream lossless", ice, times(1/0.3), both)
		add("Rust, queue", "stream queue", ice, times(1/0.3), both)
	}
	for _, way := range []string{"topic", "lossless topic", "queue"} {
		add("Go, "+way, "stream "+strings.Fields(way)[0], ice, nil, [2]string{})
	}
	return b.inTurn(ctx, group, []measurement{b.comparison("streams", all...)})
}

func init() {
	roles["stream topic"] = func(ctx context.Context, s *seat) error {
		return stream(ctx, s, true, client.Depth(2*s.Count))
	}
	roles["stream lossless"] = func(ctx context.Context, s *seat) error {
		return stream(ctx, s, false, client.Depth(s.Count), client.Overwrite(false))
	}
	roles["stream queue"] = streamQueue
}

// stream sends as fast as it goes. In a topic that overwrites the reader says how far
// it is, and the sender minds that; a lossless topic keeps its sender back itself.
func stream(ctx context.Context, s *seat, windowed bool, options ...client.TopicOption) error {
	e, topic, err := openStream(ctx, s, options...)
	if err != nil {
		return err
	}
	defer e.c.Close()
	if s.Side == left {
		e.to = topic
		s.meet()
		return s.feed(windowed, func(v byte) error { return e.pass(ctx, s.Bytes, v) })
	}
	r, err := topic.Reader(ctx)
	if err != nil {
		return err
	}
	s.meet()
	return s.drain(func() (*client.Message, error) { return r.Receive(ctx) })
}

func openStream(ctx context.Context, s *seat, options ...client.TopicOption) (*ends, *client.Topic, error) {
	c, err := connect(ctx, s.Socket, "bench")
	if err != nil {
		return nil, nil, err
	}
	topic, err := c.Topic(ctx, s.Path, options...)
	return &ends{c: c}, topic, err
}

// streamQueue is stream through a queue, which keeps its sender back itself.
func streamQueue(ctx context.Context, s *seat) error {
	c, err := connect(ctx, s.Socket, "bench")
	if err != nil {
		return err
	}
	defer c.Close()
	queue, err := c.Queue(ctx, s.Path, client.Depth(s.Count))
	if err != nil {
		return err
	}
	e := &ends{c: c}
	s.meet()
	if s.Side == right {
		return s.drain(func() (*client.Message, error) { return queue.Get(ctx) })
	}
	return s.feed(false, func(v byte) error {
		t, err := e.fill(ctx, s.Bytes, v)
		if err != nil {
			return err
		}
		defer t.Release()
		return queue.Put(ctx, t)
	})
}

// feed calls pass for each round. Before a slice ends all has arrived.
func (s *seat) feed(windowed bool, pass func(v byte) error) error {
	for i := range s.N {
		if s.Slice > 0 && i%s.Slice == 0 {
			s.awaitSpin(lineCount, uint64(i))
			s.turn(i)
		}
		if windowed && i >= s.Count {
			s.awaitSpin(lineCount, uint64(i+1-s.Count))
		}
		if err := pass(byte(i)); err != nil {
			return err
		}
	}
	s.awaitSpin(lineCount, uint64(s.N))
	s.turn(s.N)
	s.meet()
	return nil
}

// drain takes each round's message and says how far it is. The clock is read where rate
// uses a reading: at the first round of a slice that counts, and at its last.
func (s *seat) drain(take func() (*client.Message, error)) error {
	arrive := s.series(seriesArrive)
	for i := range s.N {
		s.turn(i)
		m, err := take()
		if err != nil {
			return err
		}
		if err := check(m, byte(i)); err != nil {
			return err
		}
		m.Release()
		if at := i % max(s.Slice, 1); at == warm(s.Slice) || at == s.Slice-1 {
			arrive[i] = sys.Monotonic()
		}
		s.store(lineCount, uint64(i+1))
	}
	s.turn(s.N)
	s.meet()
	return nil
}
