package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

// What purge and compact did is said in JSON as well.
func TestPurgeAndCompactSayInJSONWhatWasDone(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	x, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{100})
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, topic.Send(p.ctx(), x))
	}
	small, err := x.Slice(0, 5, 15)
	require.NoError(t, err)
	_, err = c.Set(p.ctx(), "w", small)
	require.NoError(t, err)
	x.Release()
	small.Release()
	var done []map[string]any
	for _, messages := range []float64{3, 0} {
		p.json(&done, "purge", "batches", "--yes")
		assert.Equal(t, []map[string]any{{"name": "batches", "kind": "topic", "messages": messages, "openers": 1.0}}, done)
	}
	var compacted []map[string]any
	p.json(&compacted, "compact", "w")
	assert.Equal(t, []map[string]any{{"name": "w", "revision": 2.0, "before": 1.0, "bytes": 10.0, "brokers_alone": true}}, compacted)
	r := p.baton("compact", "--json", "nothing")
	assert.Equal(t, 3, r.code)
	assert.JSONEq(t, "[]", r.out)
}

// levelsOf are the lines of a server's log at INFO and above, by what they say.
func levelsOf(log string) (said []string) {
	for _, m := range regexp.MustCompile(`(?m)level=(?:INFO|WARN|ERROR) msg=("[^"]*"|\S+)`).FindAllStringSubmatch(log, -1) {
		said = append(said, m[1])
	}
	return said
}

// Looks that a program makes each second would fill the log.
func TestLooksLeaveNothingInTheLogByDefault(t *testing.T) {
	p := newPlace(t)
	var logs [2][]string
	for i := range logs {
		broker := p.serve()
		if i == 1 {
			for _, what := range []string{"names", "topics", "functions", "sessions", "segments", "storages", "leases"} {
				p.must("ls", what)
			}
			p.must("ls")
			p.must("status")
			p.must("events")
		}
		p.must("stop")
		require.Zero(t, broker.wait().code)
		logs[i] = levelsOf(broker.err.String())
	}
	require.NotEmpty(t, logs[0])
	assert.Equal(t, logs[0], logs[1])
}

func TestMetricsCountARedeliveryAndTimeATakeover(t *testing.T) {
	p := newPlace(t)
	first := p.serve()
	c := p.client()
	_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
	require.NoError(t, err)
	q, err := c.Queue(p.ctx(), "work", client.Redeliver(true))
	require.NoError(t, err)
	x, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	require.NoError(t, q.Put(p.ctx(), x))
	x.Release()
	taker := exec.Command(os.Args[0])
	taker.Env = append(slices.Clone(p.env), roleHolder+"=item")
	out, err := taker.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, taker.Start())
	defer taker.Wait()
	defer taker.Process.Kill()
	_, err = out.Read(make([]byte, 1)) // it has the item
	require.NoError(t, err)
	next := p.serve("--http", "127.0.0.1:0", "--replace")
	first.wait()
	value := func(metric string) float64 {
		_, body := fetch(t, next.endpoint()+"/metrics", "")
		m := regexp.MustCompile(`(?m)^` + metric + ` (\S+)$`).FindStringSubmatch(body)
		require.NotNil(t, m, "%s in\n%s", metric, body)
		v, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		return v
	}
	assert.Zero(t, value("baton_messages_redelivered_total"))
	assert.Greater(t, value(`baton_takeover_seconds\{from="[^"]+"\}`), 0.0)
	require.NoError(t, taker.Process.Kill())
	p.until("the item is free", func() bool { return value("baton_messages_redelivered_total") > 0 })
	assert.Equal(t, 1.0, value("baton_messages_redelivered_total"))
	m, err := q.Get(p.ctx())
	require.NoError(t, err)
	m.Release()
	assert.Equal(t, 1.0, value("baton_messages_redelivered_total"))
}

// Names of programs alone may be alike.
func TestSendersAndSettersAreListedWithTheirProcess(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	x, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	require.NoError(t, topic.Send(p.ctx(), x))
	_, err = c.Set(p.ctx(), "w", x)
	require.NoError(t, err)
	x.Release()
	assert.Regexp(t, fmt.Sprintf(`(?m)^SENDER +PID +STATE\ntester +%d +\S`, os.Getpid()), p.must("show", "batches"))
	assert.Regexp(t, fmt.Sprintf(`(?m)^w .* tester \(pid %d\)`, os.Getpid()), p.must("ls", "names"))
}

// What has no name is called by the number that `ls topics --all` shows.
func TestAQueueWithoutANameIsCalledByItsNumber(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	queues := make([]*client.Queue, 2)
	for i := range queues {
		q, err := c.Queue(p.ctx(), "")
		require.NoError(t, err)
		require.NoError(t, q.Put(p.ctx(), p.tensor(c, 1)))
		queues[i] = q
	}
	var rows []broker.TopicRow
	p.json(&rows, "ls", "topics", "--all")
	require.Len(t, rows, 2)
	called := fmt.Sprint(rows[0].ID)
	assert.Contains(t, p.must("ls", "topics", "--all"), "(private "+called+")")
	var shown []any
	p.json(&shown, "show", "queue", called)
	assert.Len(t, shown, 1)
	said := p.must("why", "queue", called)
	assert.Regexp(t, `\n +1 .*baton purge `+called+`\n`, said)
	assert.Contains(t, p.must("purge", called, "--yes"), "purged queue "+called+": 1 message dropped")
	left := 0
	for _, q := range queues {
		m, err := q.TryGet(p.ctx())
		require.NoError(t, err)
		if m != nil {
			m.Release()
			left++
		}
	}
	assert.Equal(t, 1, left)
	r := p.baton("purge", "123456789", "--yes")
	assert.Equal(t, 3, r.code)
	assert.Contains(t, r.err, `there is no topic or queue "123456789"`)
}
