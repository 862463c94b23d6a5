package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// fetch gets a path with a token.
func fetch(t *testing.T, url, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	a, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	require.NoError(t, err)
	return a.StatusCode, string(body)
}

// endpoint is where a broker's HTTP endpoint listens.
func (s *server) endpoint() string {
	s.p.t.Helper()
	s.logs("HTTP endpoint")
	return "http://" + regexp.MustCompile(`msg="HTTP endpoint" .*address=(\S+)`).FindStringSubmatch(s.err.String())[1]
}

// rendered is the page's document in a browser that has looked at the broker a few times.
func (p *place) rendered(url string) string {
	p.t.Helper()
	testkit.Need(p.t, "chromium")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+p.t.TempDir(),
		"--virtual-time-budget=4000", "--dump-dom", url)
	out, err := cmd.Output()
	require.NoError(p.t, err)
	page, _, _ := strings.Cut(string(out), "<script>")
	return page
}

// traffic has two sessions exchange messages, one of them with a name that is HTML, and returns
// what to call to have them exchange more.
func traffic(p *place) {
	c := p.client(client.WithName(`<img src=x onerror="document.title=1">`))
	topic, err := c.Topic(p.ctx(), "batches/train", client.Depth(4))
	require.NoError(p.t, err)
	r, err := p.client(client.WithName("trainer")).Topic(p.ctx(), "batches/train")
	require.NoError(p.t, err)
	reader, err := r.Reader(p.ctx())
	require.NoError(p.t, err)
	x := p.tensor(c, 1024)
	for range 10 {
		require.NoError(p.t, topic.Send(p.ctx(), x))
	}
	m, err := reader.Receive(p.ctx())
	require.NoError(p.t, err)
	m.Release()
	bundle(p, c, "weights/actor")
}

// called has a session provide a function, and another one call it, which has a private topic for replies from then on.
func called(p *place) *client.Client {
	provides(p, p.client(client.WithName("worker")), "vision/scale@2", func(_ context.Context, x int) (int, error) {
		if x < 0 {
			return 0, errors.New("below 0")
		}
		return 2 * x, nil
	})
	c := p.client(client.WithName("caller"))
	for _, x := range []int{1, 2, -1} {
		y, err := client.Call[int](p.ctx(), c, "vision/scale", x)
		if x >= 0 {
			require.NoError(p.t, err)
		}
		assert.Equal(p.t, max(2*x, 0), y)
	}
	return c
}

func TestPageShowsWhoSendsWhatToWhom(t *testing.T) {
	p := newPlace(t)
	s := p.serve("--http", "127.0.0.1:0")
	traffic(p)
	called(p)
	text := p.rendered(s.endpoint() + "/")
	assert.Contains(t, text, "<title>Baton, pid ")
	assert.NotContains(t, text, "<img", "a name is text")
	assert.Contains(t, text, "&lt;img src=x onerror")
	for _, part := range []string{
		`<b class="">4</b><span>sessions</span>`, `>batches/train<title>`, `>trainer \(pid \d+\), lost 6<title>`, `<path class="edge`,
		`<td class="n" title="4">4</td>`, `<td class="" title="vision/scale@2">vision/scale@2</td>`, `<span>calls waiting</span>`,
		`and 1 private, without a name`, `title="weights/actor"`, `<td class="">session</td><td>session opened</td>`, `: 4\.0 MiB`,
	} {
		assert.Regexp(t, part, text)
	}
	s.signal(15)
	s.wait()
}

func TestPageWantsTheTokenForItsData(t *testing.T) {
	p := newPlace(t)
	s := p.serve("--http", "127.0.0.1:0", "--http-token-file", p.write("token", "secret\n"))
	traffic(p)
	text := p.rendered(s.endpoint() + "/")
	assert.Contains(t, text, "wants a token")
	assert.NotContains(t, text, "trainer")
	code, _ := fetch(t, s.endpoint()+"/api/look", "wrong")
	assert.Equal(t, http.StatusUnauthorized, code)
	code, body := fetch(t, s.endpoint()+"/api/look", "secret")
	require.Equal(t, http.StatusOK, code)
	var l struct {
		Status broker.Status
		Flows  []broker.FlowRow
	}
	require.NoError(t, json.Unmarshal([]byte(body), &l))
	require.Len(t, l.Flows, 1)
	assert.Equal(t, uint64(10), l.Flows[0].Writers[0].Sent)
	assert.Equal(t, uint64(1), l.Flows[0].Readers[0].Taken)
	assert.NotZero(t, l.Flows[0].Readers[0].Lost)
}

func TestMetricsCountMessages(t *testing.T) {
	p := newPlace(t)
	s := p.serve("--http", "127.0.0.1:0", "--metrics-topics", "1")
	traffic(p)
	c := p.client()
	queue, err := c.Queue(p.ctx(), "jobs")
	require.NoError(t, err)
	require.NoError(t, queue.Put(p.ctx(), p.tensor(c, 16)))
	_, body := fetch(t, s.endpoint()+"/metrics", "")
	for _, line := range []string{`baton_messages_total{what="sent"} 11`, `baton_messages_total{what="taken"} 1`, `baton_message_bytes_total 41024`,
		`baton_messages_waiting 1`, `baton_queues_without_takers 1`, `baton_messages_unacknowledged 0`, `baton_session_deaths_total 0`,
		`baton_topic_messages_total{kind="topic",namespace="default",topic="batches/train",what="sent"} 10`} {
		assert.Contains(t, body, line+"\n")
	}
	assert.Equal(t, 3, strings.Count(body, "\nbaton_topic_messages_total{"), "one topic has its own")

	require.NoError(t, queue.Close())
	p.serve("--http", "127.0.0.1:0", "--replace") // the totals begin with what topics count
	s.wait()
	var st broker.Status
	p.json(&st, "status")
	require.NotNil(t, st.Takeover)
	assert.Equal(t, "a living broker", st.Takeover.From)
	assert.Zero(t, st.Takeover.Missing)
}
