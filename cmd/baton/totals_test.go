package main_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
)

// totals are the counters of messages and the time when the broker's process began, as /metrics has them.
func (s *server) totals() map[string]float64 {
	_, body := fetch(s.p.t, s.endpoint()+"/metrics", "")
	all := map[string]float64{}
	for _, m := range regexp.MustCompile(`(?m)^(?:baton_messages_total\{what="(\w+)"\}|baton_message_(bytes)_total|process_(start)_time_seconds) (\S+)$`).FindAllStringSubmatch(body, -1) {
		n, err := strconv.ParseFloat(m[4], 64)
		require.NoError(s.p.t, err)
		all[m[1]+m[2]+m[3]] = n
	}
	return all
}

// Totals count what topics, lanes and readers that have ended counted, and never decrease while these end.
func TestTotalsCountWhatHasEndedAndNeverDecrease(t *testing.T) {
	p := newPlace(t)
	s := p.serve("--no-nats", "--http", "127.0.0.1:0")
	stays := p.client()
	shared, err := stays.Topic(p.ctx(), "shared", client.Depth(2))
	require.NoError(t, err)

	done, fell := make(chan struct{}), []string{}
	var watch sync.WaitGroup
	watch.Go(func() {
		for before := s.totals(); ; {
			now := s.totals()
			for what, n := range now {
				if n < before[what] {
					fell = append(fell, fmt.Sprintf("%s from %v to %v", what, before[what], n))
				}
			}
			before = now
			select {
			case <-done:
				return
			default:
			}
		}
	})
	const rounds, each = 12, 5
	var want broker.Traffic
	for i := range rounds {
		c := p.client()
		own, err := c.Topic(p.ctx(), fmt.Sprintf("own/%d", i), client.Depth(2), client.Linger(0))
		require.NoError(t, err)
		reader, err := own.Reader(p.ctx())
		require.NoError(t, err)
		other, err := c.Topic(p.ctx(), "shared")
		require.NoError(t, err)
		x := p.tensor(c, 16)
		for range each {
			require.NoError(t, own.Send(p.ctx(), x))
			require.NoError(t, other.Send(p.ctx(), x))
		}
		m, err := reader.Receive(p.ctx())
		require.NoError(t, err)
		want.Add(broker.Traffic{Sent: 2 * each, SentBytes: 2 * each * 64, Taken: 1, Lost: m.Lost})
		m.Release()
		x.Release()
		require.NoError(t, c.Close())
	}
	require.NoError(t, shared.Close())
	close(done)
	watch.Wait()
	assert.Empty(t, fell)
	require.NotZero(t, want.Lost)
	all := s.totals()
	assert.Equal(t, []float64{float64(want.Sent), float64(want.SentBytes), float64(want.Taken), float64(want.Lost)},
		[]float64{all["sent"], all["bytes"], all["taken"], all["lost"]})
	var rows []broker.TopicRow
	p.json(&rows, "ls", "topics")
	require.Len(t, rows, 1, "the others have ended")
	assert.Equal(t, uint64(rounds*each), rows[0].Sent, "its lanes have ended")

	// Another process counts anew, from what living topics count, and says since when.
	next := p.serve("--no-nats", "--http", "127.0.0.1:0", "--replace")
	s.wait()
	now := next.totals()
	assert.Greater(t, now["start"], all["start"])
	assert.Equal(t, []float64{rounds * each, rounds * each * 64, 0, 0}, []float64{now["sent"], now["bytes"], now["taken"], now["lost"]})
}

// Calls are counted apart, also when their function is no more.
func TestTotalsOfMessagesHaveNoCalls(t *testing.T) {
	p := newPlace(t)
	s := p.serve("--no-nats", "--http", "127.0.0.1:0")
	worker, caller := p.client(), p.client()
	provides(p, worker, "twice", func(_ context.Context, x int) (int, error) { return 2 * x, nil })
	for range 3 {
		_, err := client.Call[int](p.ctx(), caller, "twice", 1)
		require.NoError(t, err)
	}
	before := s.totals()
	assert.Equal(t, []float64{0, 0, 0, 0}, []float64{before["sent"], before["bytes"], before["taken"], before["lost"]}, "replies are none either")
	p.must("delete", "--kind", "function", "twice", "--yes")
	assert.Equal(t, before, s.totals(), "it is deleted, and open")
	require.NoError(t, worker.Close())
	require.NoError(t, caller.Close())
	p.until("it has ended", func() bool {
		var st broker.Status
		p.json(&st, "status")
		return st.Counts.Functions == 0
	})
	assert.Equal(t, before, s.totals())
}
