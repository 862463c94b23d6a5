package broker_test

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/protocol"
)

// failed counts requests that failed, by op and code.
type failed struct {
	mu sync.Mutex
	n  map[string]int
}

func (f *failed) count(c *broker.Config) {
	f.n = map[string]int{}
	c.Observe = func(op string, _ time.Duration, code protocol.Code) {
		if code != "" {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.n[fmt.Sprint(op, " ", code)]++
		}
	}
}

func (f *failed) all() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.n)
}

// refusedEvents are the details of the refusals among the events.
func refusedEvents(p *peer) (list []string) {
	var reply protocol.EventsReply
	p.must(protocol.OpEvents, protocol.Events{}, &reply)
	for _, e := range reply.Events {
		if e.Kind == events.Refused {
			list = append(list, string(e.Details))
		}
	}
	return list
}

// A client asks for more than it needs, and for less where that is too much. A client that gets what it
// needs was refused nothing.
func TestRefusalWithAFallbackIsNoNews(t *testing.T) {
	var f failed
	b := serve(t, func(c *broker.Config) { c.Memory = 1 << 20; f.count(c) })
	p := connect(t, b.socket, "p")
	p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 2 << 20, Chunks: 1, Fallback: true})
	require.Empty(t, refusedEvents(p))
	require.Empty(t, f.all())
	p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 2 << 20, Chunks: 1})
	require.Len(t, refusedEvents(p), 1)
	require.Equal(t, map[string]int{"grant QuotaExceeded": 1}, f.all())
	p.refused(protocol.CodeInvalid, protocol.OpGrant, protocol.Grant{Chunks: 1, Fallback: true})
	assert.Equal(t, 1, f.all()["grant InvalidArgument"], "less would not help")
}
