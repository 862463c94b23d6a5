package main_test

import (
	"encoding/json"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
)

// leave puts two items of 4 KiB into a queue, and sends one message to a topic, that linger so long after this.
func (p *place) leave(queue, topic string, linger time.Duration) {
	p.t.Helper()
	c := p.client(client.WithName("producer"))
	q, err := c.Queue(p.ctx(), queue, client.Linger(linger))
	require.NoError(p.t, err)
	t, err := c.Topic(p.ctx(), topic, client.Linger(linger))
	require.NoError(p.t, err)
	for range 2 {
		x := p.tensor(c, 1024)
		require.NoError(p.t, q.Put(p.ctx(), x))
		x.Release()
	}
	require.NoError(p.t, t.Send(p.ctx(), p.tensor(c, 1024)))
	require.NoError(p.t, c.Close())
}

// metric is the value of a metric that the broker serves.
func (s *server) metric(name string) float64 {
	s.p.t.Helper()
	_, body := fetch(s.p.t, s.endpoint()+"/metrics", "")
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(body)
	require.NotNil(s.p.t, m, "%s in\n%s", name, body)
	v, err := strconv.ParseFloat(m[1], 64)
	require.NoError(s.p.t, err)
	return v
}

func TestQueueThatLingersSaysWhenItEnds(t *testing.T) {
	p := newPlace(t)
	p.serve()
	began := time.Now()
	p.leave("work", "news", time.Hour)
	ends := regexp.MustCompile(`lingering, ends in (1h|59m)`)
	for _, args := range [][]string{{"ls", "topics"}, {"show", "queue", "work"}, {"why", "queue", "work"}, {"why", "topic", "news"}} {
		assert.Regexp(t, ends, p.must(args...), "%v", args)
	}
	assert.Regexp(t, `when it was taken, or in (1h|59m)[^|]{0,5} with the queue, which no session has open`, p.must("why", "queue", "work"))
	var rows []struct {
		State  string
		Linger float64
		Since  time.Time `json:"lingers_since"`
		Ends   float64   `json:"ends_in_seconds"`
	}
	p.json(&rows, "ls", "topics", "work")
	require.Len(t, rows, 1)
	assert.Equal(t, "lingering", rows[0].State)
	assert.WithinRange(t, rows[0].Since, began, time.Now())
	assert.LessOrEqual(t, rows[0].Ends, rows[0].Linger)
	assert.Positive(t, rows[0].Ends)

	c := p.client()
	_, err := c.Queue(p.ctx(), "work")
	require.NoError(t, err)
	for _, args := range [][]string{{"ls", "topics", "work"}, {"show", "queue", "work"}, {"why", "queue", "work"}} {
		assert.NotRegexp(t, "ends in|which no session", p.must(args...), "%v", args)
	}
}

// What no command asked for is in the log, an event, and counted.
func TestWhatEndsWithItsQueueOrTopicIsTold(t *testing.T) {
	p := newPlace(t)
	broker := p.serve("--http", "127.0.0.1:0", "--metrics-topics", "10")
	value := broker.metric
	assert.Zero(t, value(`baton_messages_dropped_total{kind="queue",reason="linger"}`))
	p.leave("work", "news", time.Millisecond)
	type dropped struct {
		Topic, Namespace, Reason, Linger string
		Messages, Bytes                  int
		By                               string `json:"created_by"`
	}
	got := map[string]dropped{}
	p.until("both have ended", func() bool {
		for _, e := range p.events("--kind", "memory") {
			var d dropped
			require.NoError(t, json.Unmarshal(e.Details, &d))
			if e.Text == "dropped: no session had it open for as long as it lingers" {
				got[e.Level+" "+d.Topic] = d
			}
		}
		return len(got) == 2
	})
	by := got["warn queue work"].By
	assert.Equal(t, map[string]dropped{
		"warn queue work": {"queue work", "default", "linger", "1ms", 2, 8192, by},
		"info topic news": {"topic news", "default", "linger", "1ms", 1, 4096, by},
	}, got)
	assert.Contains(t, by, "producer")
	broker.logs(`level=WARN msg="dropped: no session had it open for as long as it lingers" event=memory topic="queue work"`)
	assert.Equal(t, 2.0, value(`baton_messages_dropped_total{kind="queue",reason="linger"}`))
	assert.Equal(t, 1.0, value(`baton_messages_dropped_total{kind="topic",reason="linger"}`))

	// A sender that opens a closed queue again frees what a former run has left.
	c := p.client()
	q, err := c.Queue(p.ctx(), "again")
	require.NoError(t, err)
	require.NoError(t, q.Put(p.ctx(), p.tensor(c, 1)))
	require.NoError(t, q.End(p.ctx()))
	require.NoError(t, c.Close())
	c = p.client()
	q, err = c.Queue(p.ctx(), "again")
	require.NoError(t, err)
	require.NoError(t, q.Put(p.ctx(), p.tensor(c, 1)))
	assert.Equal(t, 1.0, value(`baton_messages_dropped_total{kind="queue",reason="reopened"}`))
	broker.logs(`msg="dropped: a sender opened it again after its close, and no session reads what it had" event=memory topic="queue again"`)
	p.must("purge", "again", "-y")
	assert.Equal(t, 1.0, value(`baton_messages_dropped_total{kind="queue",reason="purged"}`))

	// What was taken is not dropped.
	item := p.client(client.WithName("taker"))
	taken, err := item.Queue(p.ctx(), "done", client.Linger(time.Millisecond))
	require.NoError(t, err)
	require.NoError(t, taken.Put(p.ctx(), p.tensor(item, 1)))
	m, err := taken.Get(p.ctx())
	require.NoError(t, err)
	m.Release()
	require.NoError(t, item.Close())
	p.until("it has ended", func() bool { return p.baton("show", "queue", "done").code == 3 })
	assert.Equal(t, 2.0, value(`baton_messages_dropped_total{kind="queue",reason="linger"}`))
}
