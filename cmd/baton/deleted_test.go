package main_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

// unacknowledged makes a queue of five items of which two are taken.
func unacknowledged(p *place) {
	p.t.Helper()
	c := p.client()
	q, err := c.Queue(p.ctx(), "k", client.Redeliver(true))
	require.NoError(p.t, err)
	for range 5 {
		x, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{16})
		require.NoError(p.t, err)
		require.NoError(p.t, q.Put(p.ctx(), x))
		x.Release()
	}
	for range 2 {
		m, err := q.Get(p.ctx())
		require.NoError(p.t, err)
		p.t.Cleanup(m.Release)
	}
}

func TestWaitingIsTheSameEverywhere(t *testing.T) {
	p := newPlace(t)
	s := p.serve("--http", "127.0.0.1:0", "--metrics-topics", "1")
	unacknowledged(p)
	var rows []broker.TopicRow
	p.json(&rows, "ls", "topics", "k")
	require.Len(t, rows, 1)
	assert.Equal(t, []int{5, 3, 2}, []int{rows[0].Kept, rows[0].Waiting, rows[0].Unacknowledged})
	assert.Regexp(t, `(?m)^waiting +3\nunacknowledged +2$`, p.must("show", "queue", "k"))
	assert.Regexp(t, `(?m)WAITING +UNACKNOWLEDGED +KEPT`, p.must("top", "-n", "1", "-i", "100ms"))
	assert.Regexp(t, `(?m)^k +queue .* 3 +2 +5 +1 +1$`, p.must("top", "-n", "1", "-i", "100ms"))
	_, body := fetch(t, s.endpoint()+"/metrics", "")
	for _, line := range []string{`baton_messages_waiting 3`, `baton_queues_without_takers 0`, `baton_messages_unacknowledged 2`,
		`baton_topic_messages_waiting{kind="queue",namespace="default",topic="k"} 3`,
		`baton_topic_messages_unacknowledged{kind="queue",namespace="default",topic="k"} 2`} {
		assert.Contains(t, body, line+"\n")
	}
}

func TestDeletedQueueIsListedByItsFormerName(t *testing.T) {
	p := newPlace(t)
	p.serve()
	unacknowledged(p)
	p.must("delete", "k", "--yes")
	for _, args := range [][]string{{"ls", "topics", "k"}, {"show", "k"}, {"top", "-n", "1", "-i", "100ms"}} {
		assert.Contains(t, p.must(args...), "k (deleted)", "baton %v", args)
	}
	var held []struct{ Index uint32 }
	p.until("what was not taken is free", func() bool {
		p.json(&held, "ls", "storages")
		return len(held) == 2
	})
	out := p.must("why", "storage", fmt.Sprint(held[0].Index))
	assert.Contains(t, out, "queue k (deleted), for a taker: claimed by tester")
	assert.Contains(t, out, "when its taker is finished with it, or ends")
	p.baton("delete", "k", "--yes").fails(t, 3, "there is no name, topic, queue or function k", "baton ls")
	p.baton("purge", "k", "--yes").fails(t, 3, "there is no topic or queue k", "")
	again, err := p.client().Queue(p.ctx(), "k")
	require.NoError(t, err)
	require.NoError(t, again.Close())
	assert.Contains(t, p.must("delete", "k", "--yes"), "deleted queue k: 0 messages dropped", "the one that has the name")
}
