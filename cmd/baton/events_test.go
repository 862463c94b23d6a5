package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// events are those of `baton events --json`.
func (p *place) events(args ...string) (list []protocol.Event) {
	p.t.Helper()
	return parseEvents(p.t, p.must(append([]string{"events", "--json"}, args...)...))
}

func parseEvents(t *testing.T, text string) (list []protocol.Event) {
	t.Helper()
	for _, line := range lines(text) {
		var e protocol.Event
		if line != "" {
			require.NoError(t, json.Unmarshal([]byte(line), &e), line)
			list = append(list, e)
		}
	}
	return list
}

// find returns the newest event of a kind and text, with its details.
func find(list []protocol.Event, kind, text string) (found protocol.Event, details map[string]any) {
	for _, e := range list {
		if e.Kind == kind && e.Text == text {
			found, details = e, map[string]any{}
			json.Unmarshal(e.Details, &details)
		}
	}
	return found, details
}

func TestEventsTellWhatHappened(t *testing.T) {
	p := newPlace(t)
	p.serve("--session-memory", "8MiB")
	c := p.client()
	bundle(p, c, "weights/a")
	bundle(p, c, "weights/a") // the same again is no event
	p.must("delete", "weights/a")
	for range 3 {
		_, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{64 << 20})
		require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	}
	topic, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	reader := p.start(p.command("tail", "batches"))
	p.until("it reads", func() bool { return p.hasSession("baton tail") })
	require.NoError(t, reader.cmd.Process.Kill())
	reader.wait()
	p.until("its death is told", func() bool { return len(p.events("--kind", "death")) == 1 })
	require.NoError(t, topic.Close())

	list := p.events()
	for i, e := range list {
		assert.Equal(t, uint64(i+1), e.Number)
	}
	_, set := find(list, "name", "name set")
	assert.Equal(t, "weights/a", set["name"])
	assert.Equal(t, 1.0, set["revision"])
	_, gone := find(list, "name", "name deleted")
	assert.Equal(t, 2.0, gone["revision"])
	refused, details := find(list, "refused", "refused")
	assert.GreaterOrEqual(t, refused.Times, 3) // a client tries again where others may give memory back
	assert.Equal(t, "QuotaExceeded", details["code"])
	assert.Equal(t, "tester", details["name"])
	_, died := find(list, "death", "session ended")
	assert.Equal(t, float64(reader.cmd.Process.Pid), died["pid"])

	text := p.must("events", "-n", "1", "--kind", "refused")
	assert.Regexp(t, `^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  refused   refused \(\d+ times, until .*\)  code=QuotaExceeded  op=grant  name=tester  pid=\d+  uid=\d+  error="`, text)
	for _, kind := range events.Kinds {
		p.events("--kind", kind)
	}
	_, err = client.Handle(c, "f", func(context.Context, struct{}) (int, error) { return 1, nil })
	require.NoError(t, err)
	require.Len(t, p.events("--kind", events.Function), 1)
	assert.Contains(t, p.must("__complete", "events", "--kind", ""), "function\n")
	assert.Contains(t, p.must("help", "events"), "function, ")
	p.baton("events", "--kind", "weather").fails(t, 2, "weather", "")
}

// What happens in the last moment before the broker ends is told, and then that it has ended.
func TestAFollowerHearsTheLastEventsOfABroker(t *testing.T) {
	p := newPlace(t)
	for i := range 5 {
		s := p.serve()
		follower := p.start(p.command("events", "-f", "--kind", "steered,name"))
		p.must("limit", "--memory", "1GiB")
		p.until("it follows", func() bool { return strings.Contains(follower.out.String(), "limit") })
		c := p.client()
		_, err := c.Set(p.ctx(), fmt.Sprint("first/", i), p.tensor(c, 4))
		require.NoError(t, err)
		_, err = c.Set(p.ctx(), fmt.Sprint("last/", i), p.tensor(c, 4))
		require.NoError(t, err)
		s.signal(syscall.SIGTERM)
		s.wait()
		p.until("it says that the broker has ended", func() bool { return strings.Contains(follower.err.String(), "the broker has ended") })
		assert.Contains(t, follower.out.String(), fmt.Sprint("name=last/", i))
		follower.signal(syscall.SIGINT)
		follower.wait()
	}
}

func TestEventsGoOnWithABrokerThatTakesOver(t *testing.T) {
	p := newPlace(t)
	first := p.serve()
	follower := p.start(p.command("events", "-f", "--json", "--kind", "session,takeover"))
	session := func(name string) {
		t.Helper()
		c := p.client(client.WithName(name))
		p.until(name+" is told", func() bool {
			return strings.Contains(follower.out.String(), fmt.Sprintf(`"name":%q`, name))
		})
		c.Close()
	}
	session("of the first")
	before := p.events()
	second := p.serve("--replace")
	first.wait()
	after := p.events()
	require.Greater(t, len(after), len(before))
	assert.Equal(t, before, after[:len(before)])
	took, _ := find(after, "takeover", "took over")
	assert.NotZero(t, took.Number)
	session("of the second")
	assert.Contains(t, follower.out.String(), `"text":"took over"`, "with the number that the first would have given next")

	// A kill takes the events along. A session that lives on is not missing.
	stays := p.client(client.WithName("stays"))
	require.NoError(t, second.cmd.Process.Kill())
	second.wait()
	p.serve()
	require.NoError(t, stays.Broker(p.ctx(), protocol.OpStatus, nil, nil))
	list := p.events()
	_, details := find(list, "takeover", "took over")
	assert.Equal(t, "a broker that had ended", details["from"])
	assert.Equal(t, 1.0, details["sessions"])
	p.until("the follower goes on", func() bool { return strings.Contains(follower.out.String(), "a broker that had ended") })
	follower.signal(syscall.SIGINT)
	assert.Equal(t, 128+int(syscall.SIGINT), follower.wait().code)
}
