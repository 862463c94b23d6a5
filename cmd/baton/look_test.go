package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// tensor allocates one in shared memory.
func (p *place) tensor(c *client.Client, shape ...int64) *client.Tensor {
	p.t.Helper()
	x, err := c.Zeros(p.ctx(), dlpack.Float32, shape)
	require.NoError(p.t, err)
	return x
}

func TestStatusTellsWhatThereIsWithoutItself(t *testing.T) {
	p := newPlace(t)
	server := p.serveNATS()
	var s broker.Status
	p.json(&s, "status")
	assert.Equal(t, server.cmd.Process.Pid, s.PID)
	assert.Equal(t, "1.2.3-test", s.Version)
	assert.Equal(t, p.socket(), s.Socket)
	assert.Equal(t, broker.Counts{}, s.Counts)

	c := p.client()
	bundle(p, c, "model")
	_, err := c.Topic(p.ctx(), "t")
	require.NoError(t, err)
	_, err = c.Queue(p.ctx(), "q")
	require.NoError(t, err)
	p.json(&s, "status")
	assert.Equal(t, 1, s.Counts.Sessions)
	assert.Equal(t, 1, s.Counts.Names)
	assert.Equal(t, 1, s.Counts.Topics)
	assert.Equal(t, 1, s.Counts.Queues)
	assert.Positive(t, s.Counts.Storages)

	assert.Positive(t, s.Memory.Left)
	assert.LessOrEqual(t, s.Memory.Left, s.Memory.Limit-s.Memory.Granted-s.Memory.Lanes)

	text := p.must("status")
	for _, line := range []string{`broker +pid \d+, version 1\.2\.3-test, on \S+`, `sessions +1`, `names +1`, `queues +1`,
		`memory granted +[\d.]+ MiB of .+`, `NATS +embedded, connected nats://127\.0\.0\.1:\d+`} {
		assert.Regexp(t, `(?m)^`+line+`$`, text)
	}
}

func TestStatusTellsThatALimitIsReached(t *testing.T) {
	p := newPlace(t)
	p.serve("--memory", "8MiB")
	c := p.client()
	for err := error(nil); err == nil; {
		_, err = c.Alloc(p.ctx(), dlpack.Uint8, []int64{1 << 20})
		require.True(t, err == nil || errors.Is(err, protocol.ErrQuotaExceeded), err)
	}
	var s broker.Status
	p.json(&s, "status")
	assert.Less(t, s.Memory.Left, uint64(2<<20))
	assert.Greater(t, s.Memory.Free, uint64(64<<20))
}

func TestStatusWaitsForABrokerAsLongAsTold(t *testing.T) {
	p := newPlace(t)
	p.baton("status", "--timeout", "1ms").fails(t, 4, "no broker answers", "")
	waiting := p.start(p.command("status", "--timeout", "1m"))
	p.serve()
	r := waiting.wait()
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "broker")
}

func TestStatusEndsAtASignalWhileItWaits(t *testing.T) {
	p := newPlace(t)
	// A broker that takes the connection and says nothing.
	l, err := net.Listen("unix", p.file("mute.sock"))
	require.NoError(t, err)
	defer l.Close()
	waiting := p.start(p.command("status", "--address", p.file("mute.sock"), "--timeout", "1m"))
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	waiting.signal(syscall.SIGINT)
	r := waiting.wait()
	assert.Equal(t, 128+int(syscall.SIGINT), r.code)
	assert.Empty(t, r.err)
}

func TestLsListsEachKind(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	bundle(p, c, "weights/a")
	bundle(p, c, "other")
	topic, err := c.Topic(p.ctx(), "batches", client.Overwrite(false), client.Depth(4))
	require.NoError(t, err)
	x := p.tensor(c, 1000)
	require.NoError(t, topic.Send(p.ctx(), x))
	_, err = x.Handle(p.ctx(), client.LeaseFor(1000*time.Second))
	require.NoError(t, err)
	pid := os.Getpid()

	row := func(kind, begins string, more ...string) []string {
		t.Helper()
		out := p.must(append([]string{"ls", kind}, more...)...)
		for _, l := range lines(out) {
			if strings.HasPrefix(strings.TrimSpace(l), begins) {
				return fields(l)
			}
		}
		t.Fatalf("no row %q in\n%s", begins, out)
		return nil
	}
	names := row("names", "weights/a")
	assert.Equal(t, []string{"weights/a", "1", "published", "2", "56 B"}, names[:5])
	assert.Equal(t, []string{fmt.Sprintf("tester (pid %d)", os.Getpid()), "0", "-"}, names[6:])
	assert.Len(t, lines(p.must("ls", "names", "weights/*")), 2, "a header and one name")
	assert.Equal(t, []string{"batches", "topic", "open", "4", "lossless", "1", "0", "1"}, row("topics", "batches")[:8])
	session := row("sessions", fmt.Sprint(c.Session()))
	assert.Equal(t, []string{"tester", fmt.Sprint(pid), fmt.Sprint(os.Geteuid()), "go dev", "default", "live"}, session[1:7])
	assert.Len(t, lines(p.must("ls", "sessions")), 2, "a header and the one session that is not ls")
	segment := row("segments", "0")
	assert.Equal(t, []string{"memfd", "granted", "tester", fmt.Sprint(pid)}, segment[2:6])
	assert.Contains(t, p.must("ls", "leases"), "tester")
	assert.Regexp(t, `(?m)in 1\dm \d+s$`, p.must("ls", "leases"))

	for _, kind := range []string{"names", "topics", "sessions", "segments", "storages", "leases"} {
		var rows []map[string]any
		p.json(&rows, "ls", kind)
		assert.NotEmpty(t, rows, kind)
		p.json(&rows, "ls", strings.TrimSuffix(kind, "s"))
		assert.NotEmpty(t, rows, kind)
		p.json(&rows, "ls", kind, "nothing-is-called-this")
		assert.NotNil(t, rows)
		assert.Empty(t, rows, kind)
	}
	var all map[string][]json.RawMessage
	p.json(&all, "ls")
	assert.Len(t, all["names"], 2)
	assert.Len(t, all["topics"], 1)
	assert.Len(t, all["sessions"], 1)
	text := p.must("ls")
	assert.Contains(t, text, "weights/a")
	assert.Contains(t, text, "batches")
	assert.Contains(t, text, "tester")
}

func TestLsStoragesTellsWhoHoldsWhat(t *testing.T) {
	t.Setenv("BATON_TRACE", "1")
	p := newPlace(t)
	p.serve()
	maker := p.client(client.WithName("maker"))
	x := p.tensor(maker, 1000)
	h, err := x.Handle(p.ctx(), client.LeaseFor(time.Hour))
	require.NoError(t, err)
	taker := p.client(client.WithName("taker"))
	y, err := taker.Open(p.ctx(), h)
	require.NoError(t, err)

	var rows []broker.StorageRow
	p.json(&rows, "ls", "storages")
	require.Len(t, rows, 1)
	r := rows[0]
	assert.Equal(t, "maker", r.Creator)
	assert.Equal(t, os.Getpid(), r.CreatorPID)
	assert.GreaterOrEqual(t, r.Bytes, uint64(4000))
	assert.Regexp(t, `look_test\.go:\d+$`, r.Trace)
	holders := map[string]bool{}
	for _, h := range r.Holders {
		holders[h.Session] = true
	}
	assert.True(t, holders["maker"] && holders["taker"], "%v", r.Holders)

	text := lines(p.must("ls", "storages"))
	require.Len(t, text, 2)
	assert.Contains(t, text[1], fmt.Sprintf("maker (pid %d)", os.Getpid()))
	assert.Contains(t, text[1], fmt.Sprintf("taker (pid %d)", os.Getpid()))
	assert.Regexp(t, `look_test\.go:\d+$`, text[1])

	y.Release()
	x.Release()
	require.NoError(t, maker.ReleaseHandle(p.ctx(), h))
	p.json(&rows, "ls", "storages")
	assert.Empty(t, rows)
}

func TestLsFollowsEveryPage(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	x := p.tensor(c, 1)
	const n = 600 // more than two pages
	for i := range n {
		_, err := c.Set(p.ctx(), fmt.Sprintf("n/%d", i), x)
		require.NoError(t, err)
	}
	var rows []broker.NameRow
	p.json(&rows, "ls", "names")
	seen := map[string]bool{}
	for _, r := range rows {
		seen[r.Name] = true
	}
	assert.Len(t, rows, n)
	assert.Len(t, seen, n)
}

func TestLsAndShowKeepNamespacesApart(t *testing.T) {
	p := newPlace(t)
	p.serve()
	bundle(p, p.client(client.WithNamespace("team")), "model")
	var rows []broker.NameRow
	p.json(&rows, "ls", "names")
	assert.Empty(t, rows)
	p.json(&rows, "ls", "names", "--namespace", "team")
	assert.Len(t, rows, 1)
	p.baton("show", "model").fails(t, 3, `nothing is called "model"`, "--namespace")
	p.setenv("BATON_NAMESPACE", "team")
	p.must("show", "model")
}

func TestShowTellsANamesTensors(t *testing.T) {
	p := newPlace(t)
	p.serve()
	bundle(p, p.client(), "model")
	var found []struct {
		Kind    string
		Row     broker.NameRow
		Tensors []struct {
			Name, DType string
			Shape       []int64
			Bytes       int64
			ReadOnly    bool
		}
	}
	p.json(&found, "show", "model")
	require.Len(t, found, 1)
	assert.Equal(t, "name", found[0].Kind)
	assert.Equal(t, uint64(1), found[0].Row.Revision)
	require.Len(t, found[0].Tensors, 2)
	w := found[0].Tensors[1]
	assert.Equal(t, "w", w.Name)
	assert.Equal(t, "float32", w.DType)
	assert.Equal(t, []int64{4, 2}, w.Shape)
	assert.Equal(t, int64(32), w.Bytes)
	assert.True(t, w.ReadOnly)

	text := p.must("show", "name", "model")
	assert.Regexp(t, `(?m)^name +model$`, text)
	assert.Regexp(t, `(?m)^layer/b +int64\[3\] +24 B$`, text)
	assert.NotContains(t, text, "meta")
}

func TestShowTellsTheMetaOfAName(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	_, err := c.Set(p.ctx(), "model", p.tensor(c, 3), client.Meta(map[string]any{"step": 800, "by": "a\nb"}))
	require.NoError(t, err)
	var found []struct {
		Meta struct {
			Step int
			By   string
		}
	}
	p.json(&found, "show", "model")
	require.Len(t, found, 1)
	assert.Equal(t, 800, found[0].Meta.Step)
	assert.Equal(t, "a\nb", found[0].Meta.By)
	assert.Regexp(t, `(?m)^meta +{"by":"a\\nb","step":800}$`, p.must("show", "name", "model"))
}

func TestShowTellsWhoSendsInATopicAndWhatWaitsInAQueue(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "both")
	require.NoError(t, err)
	x := p.tensor(c, 10)
	require.NoError(t, topic.Send(p.ctx(), x))
	q, err := c.Queue(p.ctx(), "work")
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, q.Put(p.ctx(), x))
	}
	bundle(p, c, "both")

	var found []struct {
		Kind    string
		Lanes   []struct{ Sender, State string }
		Waiting *int
	}
	p.json(&found, "show", "both")
	require.Len(t, found, 2, "a name and a topic may be called the same")
	assert.Equal(t, "name", found[0].Kind)
	assert.Equal(t, "topic", found[1].Kind)
	require.Len(t, found[1].Lanes, 1)
	assert.Contains(t, found[1].Lanes[0].Sender, "tester")
	assert.Equal(t, "live", found[1].Lanes[0].State)
	assert.Nil(t, found[1].Waiting)

	found = nil
	p.json(&found, "show", "topic", "work")
	require.Len(t, found, 1)
	assert.Equal(t, "queue", found[0].Kind)
	require.NotNil(t, found[0].Waiting)
	assert.Equal(t, 3, *found[0].Waiting)
	assert.Regexp(t, `(?m)^waiting +3$`, p.must("show", "work"))
	assert.Regexp(t, `(?m)^waiting +3$`, p.must("show", "queue", "work"))
	p.baton("show", "queue", "both").fails(t, 3, `nothing is called "both"`, "")
	n, err := q.Len(p.ctx())
	require.NoError(t, err)
	assert.Equal(t, 3, n, "nothing was taken")
}

// The setter of a name is known to the next broker, also where another session had made the name.
func TestSetterOfANameIsKnownToTheNextBroker(t *testing.T) {
	p := newPlace(t)
	former := p.serve()
	first, second := p.client(), p.client(client.WithName("second"))
	bundle(p, first, "model")
	bundle(p, second, "model")
	setter := func() string {
		var rows []broker.NameRow
		p.json(&rows, "ls", "names")
		require.Len(t, rows, 1)
		return rows[0].Setter
	}
	want := fmt.Sprintf("second (pid %d)", os.Getpid())
	require.Equal(t, want, setter())
	require.NoError(t, former.cmd.Process.Kill())
	former.wait()
	p.serve()
	assert.Equal(t, want, setter())
}

func TestShowOpensNoSession(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	bundle(p, c, "model")
	_, err := c.Topic(p.ctx(), "t")
	require.NoError(t, err)
	q, err := c.Queue(p.ctx(), "q")
	require.NoError(t, err)
	require.NoError(t, q.Put(p.ctx(), p.tensor(c, 10)))
	before := p.events()
	for _, what := range [][]string{{"name", "model"}, {"topic", "t"}, {"queue", "q"}, {"model"}} {
		p.must(append([]string{"show"}, what...)...)
	}
	assert.Equal(t, before, p.events(), "a look is no event")
}

func TestShowFindsSessionsSegmentsStoragesAndLeasesByNumber(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	x := p.tensor(c, 1000)
	h, err := x.Handle(p.ctx(), client.LeaseFor(time.Hour))
	require.NoError(t, err)
	var found []struct {
		Kind     string
		Segments []broker.SegmentRow
		Storages []broker.StorageRow
	}
	for _, by := range []string{"tester", fmt.Sprint(c.Session()), fmt.Sprint(os.Getpid())} {
		found = nil
		p.json(&found, "show", "session", by)
		require.Len(t, found, 1, by)
		assert.Len(t, found[0].Segments, 1)
		require.Len(t, found[0].Storages, 1)
		assert.Equal(t, h.Index, found[0].Storages[0].Index)
	}
	found = nil
	p.json(&found, "show", "segment", fmt.Sprint(found0(t, p)))
	require.Len(t, found, 1)
	assert.Len(t, found[0].Storages, 1)
	assert.Contains(t, p.must("show", "storage", fmt.Sprint(h.Index)), "tester")
	require.NotNil(t, h.Lease)
	assert.Regexp(t, `(?m)^lease +`+fmt.Sprint(*h.Lease)+`$`, p.must("show", "lease", fmt.Sprint(*h.Lease)))
	p.baton("show", "storage", "65000").fails(t, 3, `nothing is called "65000"`, "baton ls")
	p.baton("show", "storage", "abc").fails(t, 3, `nothing is called "abc"`, "")
	p.baton("show", "*").fails(t, 3, `nothing is called "*"`, "")
}

// found0 is the number of the only segment.
func found0(t *testing.T, p *place) uint32 {
	t.Helper()
	var rows []broker.SegmentRow
	p.json(&rows, "ls", "segments")
	require.Len(t, rows, 1)
	return rows[0].Segment
}

// A session's user is one row, by name and number.
func TestShowNamesTheUser(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client(client.WithName("trainer"))
	provides(p, c, "vision/scale", scales)
	me, err := user.Current()
	require.NoError(t, err)
	for _, what := range [][]string{{"session", "trainer"}, {"function", "vision/scale"}} {
		text := p.must("show", what[0], what[1])
		assert.Regexp(t, fmt.Sprintf(`(?m)^user +%s \(uid %s\)$`, me.Username, me.Uid), text)
		assert.NotRegexp(t, `(?m)^uid `, text)
		assert.Len(t, regexp.MustCompile(`(?m)^user `).FindAllString(text, -1), 1, text)
	}
}
