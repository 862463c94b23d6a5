package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/protocol"
)

func logged() (*events.Ring, *slog.Logger, *strings.Builder) {
	var text strings.Builder
	r := events.New()
	return r, slog.New(r.Handler(slog.NewTextHandler(&text, nil))), &text
}

func TestRingKeepsTheLast(t *testing.T) {
	r, log, _ := logged()
	for i := range events.Most + 10 {
		log.Info(fmt.Sprint("line ", i))
	}
	all := r.Since(0, 0)
	require.Len(t, all.Events, events.Most)
	assert.Equal(t, "line 10", all.Events[0].Text)
	assert.Equal(t, uint64(events.Most+10), all.Last)
	for i, e := range all.Events {
		require.Equal(t, uint64(i+11), e.Number)
	}
	some := r.Since(all.Last-3, 2)
	require.Len(t, some.Events, 2)
	assert.Equal(t, all.Events[events.Most-2:], some.Events)
	assert.Empty(t, r.Since(all.Last, 0).Events)
	assert.Empty(t, r.Since(all.Last+5, 0).Events, "of another numbering")
}

func TestLinesBecomeEvents(t *testing.T) {
	r, log, text := logged()
	log.Debug("of no kind: a look")
	log.Debug("name set", events.Of(events.Name), "name", "a/b", "bytes", uint64(7))
	log.With(events.Of(events.NATS)).Debug("of a kind that all lines of its part have")
	log.With(events.Of(events.NATS), "url", "nats://x").Warn("gone", "error", errors.New("closed"))
	log.Info(strings.Repeat("ä", 500), "long", strings.Repeat("x", 10000), "short", true)
	list := r.Since(0, 0).Events
	require.Len(t, list, 3)
	assert.Equal(t, "name", list[0].Kind)
	assert.Equal(t, "debug", list[0].Level)
	assert.Equal(t, `{"name":"a/b","bytes":7}`, string(list[0].Details))
	assert.Equal(t, "nats", list[1].Kind)
	assert.Equal(t, `{"url":"nats://x","error":"closed"}`, string(list[1].Details))
	assert.Equal(t, "broker", list[2].Kind)
	assert.Less(t, len(list[2].Text), 300)
	assert.Less(t, len(list[2].Details), 3000)
	assert.True(t, json.Valid(list[2].Details))
	assert.NotContains(t, text.String(), "name set", "the log has its own level")
	assert.Contains(t, text.String(), "event=nats")
}

func TestWhatRepeatsItselfIsCountedInOneEvent(t *testing.T) {
	r, log, _ := logged()
	for i := range 100 {
		log.Warn("refused", events.Of(events.Refused), "op", "grant")
		log.Warn("refused", events.Of(events.Refused), "op", fmt.Sprint("other", i%2))
	}
	list := r.Since(0, 0).Events
	require.Len(t, list, 3)
	assert.Equal(t, 100, list[0].Times)
	assert.False(t, list[0].Until.Before(list[0].At))
	assert.Equal(t, 50, list[1].Times)
}

func TestEventsOfThePreviousBrokerComeFirst(t *testing.T) {
	old, log, _ := logged()
	for i := range events.Most + 5 {
		log.Info(fmt.Sprint("old ", i))
	}
	from := old.Since(0, 0)
	r, log, _ := logged()
	log.Info("begins")
	r.Continue(from)
	log.Info("serves")
	now := r.Since(0, 0)
	assert.Equal(t, from.Epoch, now.Epoch)
	require.Len(t, now.Events, events.Most)
	assert.Equal(t, "begins", now.Events[events.Most-2].Text)
	assert.Equal(t, from.Last+2, now.Last)
	assert.Equal(t, []string{"begins", "serves"}, texts(r.Since(from.Last, 0)))

	other, log, _ := logged()
	log.Info("begins")
	other.Continue(protocol.EventsReply{}) // of a broker that said nothing
	assert.Equal(t, []string{"begins"}, texts(other.Since(0, 0)))
	assert.NotEqual(t, from.Epoch, other.Since(0, 0).Epoch)
	assert.True(t, r.Handler(slog.DiscardHandler).Enabled(context.Background(), slog.LevelDebug))
}

func texts(r protocol.EventsReply) (list []string) {
	for _, e := range r.Events {
		list = append(list, e.Text)
	}
	return list
}

// Many events of a kind do not push out all others: beyond some they are counted.
func TestManyOfAKindAreCountedInOneEvent(t *testing.T) {
	r, log, text := logged()
	log.Info("before")
	for i := range 3000 {
		log.Warn("a name is lost", events.Of(events.Memory), "name", fmt.Sprint("n", i))
	}
	log.Info("behind")
	list := r.Since(0, 0).Events
	require.Less(t, len(list), 100)
	assert.Equal(t, "before", list[0].Text)
	assert.Equal(t, "behind", list[len(list)-1].Text)
	assert.JSONEq(t, `{"name":"n0"}`, string(list[1].Details))
	rest := list[len(list)-2]
	assert.Equal(t, []string{"memory", "warn", "a name is lost; others like it"}, []string{rest.Kind, rest.Level, rest.Text})
	assert.Equal(t, uint64(3000), uint64(rest.Times)+uint64(len(list)-3), "each is kept or counted")
	assert.NotNil(t, rest.Until)
	assert.Equal(t, 3000, strings.Count(text.String(), "a name is lost"), "the log has each")
}
