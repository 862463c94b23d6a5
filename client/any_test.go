package client

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// passed is a context whose deadline has passed: a wait looks once.
func passed(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	t.Cleanup(cancel)
	return ctx
}

// several are a reader, a queue and a watch, each of a client.
type several struct {
	name  string // of the watch
	topic *Topic
	r     *Reader
	q     *Queue
	w     *Watch
}

func openSeveral(t *testing.T, name string, ofTopic, ofQueue, ofWatch *Client) (s several) {
	t.Helper()
	s.name = "w/" + name
	var err error
	s.topic, err = ofTopic.Topic(t.Context(), "t/"+name)
	require.NoError(t, err)
	s.r, err = s.topic.Reader(t.Context())
	require.NoError(t, err)
	s.q, err = ofQueue.Queue(t.Context(), "q/"+name)
	require.NoError(t, err)
	s.w, err = ofWatch.Watch(t.Context(), s.name)
	require.NoError(t, err)
	return s
}

func (s several) wait(ctx context.Context) ([]int, error) { return WaitAny(ctx, s.r, s.q, s.w) }

// waiting waits in another goroutine, until it sleeps in the set of the queue.
func (s several) waiting(t *testing.T, of *Client) <-chan []int {
	t.Helper()
	found := make(chan []int, 1)
	go func() {
		ready, err := s.wait(context.Background())
		if err != nil {
			panic(err)
		}
		found <- ready
	}()
	eventually(t, "it sleeps", func() bool { return len(found) > 0 || asleep(of, s.q.t.Info.Topic, 0) == 1 })
	return found
}

func TestWaitAnyNamesAllThatAreReadyUntilTheyAreTaken(t *testing.T) {
	all := sessions(t, 2)
	c, other := all[0], all[1]
	s, theirs := openSeveral(t, "a", c, c, c), openSeveral(t, "a", other, other, other)
	x := alloc(t, other)
	defer x.Release()
	_, err := s.wait(passed(t))
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.NoError(t, theirs.topic.Send(t.Context(), x))
	require.NoError(t, theirs.q.Put(t.Context(), x))
	for range 3 {
		ready, err := WaitAny(t.Context(), s.r, s.q, s.w, s.q, s.r)
		require.NoError(t, err)
		require.Equal(t, []int{0, 1, 3, 4}, ready)
	}
	ready, err := s.wait(passed(t))
	require.NoError(t, err)
	require.Equal(t, []int{0, 1}, ready, "it looks once")
	m, err := s.r.TryReceive(t.Context())
	require.NoError(t, err)
	m.Release()
	m, err = s.q.TryGet(t.Context())
	require.NoError(t, err)
	m.Release()
	_, err = s.wait(passed(t))
	require.ErrorIs(t, err, protocol.ErrTimeout)
	_, err = other.Set(t.Context(), "w/a", x)
	require.NoError(t, err)
	ready, err = s.wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, []int{2}, ready)
	_, err = WaitAny(t.Context())
	require.ErrorIs(t, err, protocol.ErrInvalid)
}

// Whichever session an object is of, what comes there ends the wait, and so does each end.
func TestWaitAnyIsEndedByWhatComesAndByEachEnd(t *testing.T) {
	for _, place := range []string{"one session", "three sessions"} {
		t.Run(place, func(t *testing.T) {
			all := sessions(t, 4)
			c, ofQueue, ofWatch, other := all[0], all[0], all[0], all[3]
			if place == "three sessions" {
				ofQueue, ofWatch = all[1], all[2]
			}
			x := alloc(t, other)
			defer x.Release()
			var theirs several
			for i, end := range []struct {
				name string
				at   int
				err  error // of the call that does not wait
				do   func(several) error
			}{
				{"message", 0, nil, func(several) error { return theirs.topic.Send(t.Context(), x) }},
				{"item", 1, nil, func(several) error { return theirs.q.Put(t.Context(), x) }},
				{"revision", 2, nil, func(several) error { _, err := other.Set(t.Context(), theirs.name, x); return err }},
				{"queue closed", 1, protocol.ErrClosed, func(s several) error { return s.q.Close() }},
				{"topic ended", 0, protocol.ErrClosed, func(several) error { return theirs.topic.End(t.Context()) }},
				{"queue ended", 1, protocol.ErrClosed, func(several) error { return theirs.q.End(t.Context()) }},
				{"session closed", 2, protocol.ErrClosed, func(several) error { return ofWatch.Close() }},
			} {
				name := strconv.Itoa(i)
				theirs = openSeveral(t, name, other, other, other)
				s := openSeveral(t, name, c, ofQueue, ofWatch)
				found := s.waiting(t, other)
				require.NoError(t, end.do(s), end.name)
				ready := <-found
				require.Contains(t, ready, end.at, end.name)
				calls := []func() (bool, error){
					func() (bool, error) { m, err := s.r.TryReceive(t.Context()); return release(m), err },
					func() (bool, error) { m, err := s.q.TryGet(t.Context()); return release(m), err },
					func() (bool, error) { b, err := s.w.TryNext(t.Context()); return releaseBundle(b), err },
				}
				has, err := calls[end.at]()
				require.True(t, has == (end.err == nil) && errors.Is(err, end.err), "%s: %v %v", end.name, has, err)
				if end.name != "session closed" {
					require.Equal(t, []int{end.at}, ready, end.name)
				}
			}
		})
	}
}

func release(m *Message) bool {
	if m != nil {
		m.Release()
	}
	return m != nil
}

func releaseBundle(b *Bundle) bool {
	if b != nil {
		b.Release()
	}
	return b != nil
}

// A goroutine that waits stands in no group's set: a taker is rung for each item.
func TestWaitAnyLeavesTheWakesToTheTakers(t *testing.T) {
	all := sessions(t, 3)
	q, took := takers(t, all[:2])
	x := alloc(t, all[0])
	defer x.Release()
	topic := q.t.Info.Topic
	s, err := openSeveral(t, "b", all[2], all[2], all[2]), error(nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	s.q, err = all[2].Queue(t.Context(), "q")
	require.NoError(t, err)
	go func() {
		for {
			if _, err := s.wait(ctx); err != nil {
				done <- err
				return
			}
		}
	}()
	for range 100 {
		eventually(t, "both sleep", func() bool { return asleep(all[0], topic, 1) == 1 && asleep(all[0], topic, 0) == 1 })
		before := rung(all[1])
		require.NoError(t, q.Put(t.Context(), x))
		<-took
		require.Greater(t, rung(all[1]), before, "the taker has looked by itself")
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

// Goroutines of one session share its bell: what ends the wait of one leaves the others.
func TestGoroutinesThatWaitForSeveralShareABell(t *testing.T) {
	all := sessions(t, 2)
	c, other := all[0], all[1]
	const n, rounds = 6, 50
	x := alloc(t, other)
	defer x.Release()
	took := make(chan int, n)
	var queues []*Queue
	for i := range 2 * n {
		q, err := other.Queue(t.Context(), "q/"+string(rune('a'+i)))
		require.NoError(t, err)
		queues = append(queues, q)
	}
	ended := make(chan error, n)
	for i := range n {
		var mine [2]*Queue
		for k := range mine {
			q, err := c.Queue(t.Context(), "q/"+string(rune('a'+2*i+k)))
			require.NoError(t, err)
			mine[k] = q
		}
		go func() {
			for {
				ready, err := WaitAny(context.Background(), mine[0], mine[1])
				for _, k := range ready {
					var m *Message
					if m, err = mine[k].TryGet(context.Background()); release(m) {
						took <- 2*i + k
					}
				}
				if err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	for round := range rounds {
		var want, got []int
		for i := range n {
			at := 2*i + (round+i)%2
			require.NoError(t, queues[at].Put(t.Context(), x))
			want = append(want, at)
		}
		for range n {
			got = append(got, <-took)
		}
		slices.Sort(got)
		require.Equal(t, want, got)
	}
	for _, q := range queues {
		require.NoError(t, q.End(t.Context()))
	}
	for range n {
		require.ErrorIs(t, <-ended, protocol.ErrClosed)
	}
}

// What is looked at often is received in its order, and once.
func TestWaitAnyChangesNothing(t *testing.T) {
	all := sessions(t, 4)
	topic, err := all[0].Topic(t.Context(), "t", Overwrite(false), Depth(64))
	require.NoError(t, err)
	r, err := topic.Reader(t.Context())
	require.NoError(t, err)
	for i := range 60 {
		theirs, err := all[1+i%3].Topic(t.Context(), "t")
		require.NoError(t, err)
		require.NoError(t, theirs.Send(t.Context(), i))
	}
	for i := range 60 {
		for range 30 {
			ready, err := WaitAny(passed(t), r)
			require.NoError(t, err)
			require.Equal(t, []int{0}, ready)
		}
		m, err := r.TryReceive(t.Context())
		require.NoError(t, err)
		v, err := m.Value()
		require.NoError(t, err)
		require.EqualValues(t, i, v)
		m.Release()
	}
	_, err = WaitAny(passed(t), r)
	require.ErrorIs(t, err, protocol.ErrTimeout)
}
