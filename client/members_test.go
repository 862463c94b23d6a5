package client

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/session"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// requests counts the requests that a client has made.
func requests(c *Client) uint64 { return c.s.Link.Requests() }

func TestTopicOfAHundredSessionsNeedsFewRequests(t *testing.T) {
	const n = 100
	all := sessions(t, n+1)
	topics := make([]*Topic, n)
	for i, c := range all[:n] {
		var err error
		topics[i], err = c.Topic(t.Context(), "t", Depth(2))
		require.NoError(t, err)
		x := alloc(t, c)
		require.NoError(t, topics[i].Send(t.Context(), x))
		x.Release()
	}
	c := all[n]
	topic, err := c.Topic(t.Context(), "t")
	require.NoError(t, err)
	before := requests(c)
	r, err := topic.Reader(t.Context(), StartAll)
	require.NoError(t, err)
	require.EqualValues(t, 1+(n+protocol.MaxPeers-1)/protocol.MaxPeers, requests(c)-before, "to read, and the files of the others")
	slots := map[string]bool{}
	before = requests(c)
	for range n {
		m, err := r.Receive(t.Context())
		require.NoError(t, err)
		slots[fmt.Sprint(m.taken.Held.Storages[0].At.Owner)] = true
		m.Release()
	}
	require.Len(t, slots, n)
	require.EqualValues(t, (n+protocol.MaxPeers-1)/protocol.MaxPeers, requests(c)-before, "the memory of the others, with its files")

	before = requests(c)
	for range 3 {
		for i := range topics {
			x := alloc(t, all[i])
			require.NoError(t, topics[i].Send(t.Context(), x))
			x.Release()
			m, err := r.Receive(t.Context())
			require.NoError(t, err)
			m.Release()
		}
	}
	require.Equal(t, before, requests(c), "all is mapped")

	// A sender needs nothing of the readers.
	var readers []*Reader
	for _, topic := range topics[1:] {
		r, err := topic.Reader(t.Context())
		require.NoError(t, err)
		readers = append(readers, r)
	}
	x := alloc(t, all[0])
	defer x.Release()
	require.NoError(t, topics[0].Send(t.Context(), x))
	require.LessOrEqual(t, peersMapped(all[0]), 3, "itself, the broker, and the session that has received from it")
	for _, r := range readers {
		m, err := r.Receive(t.Context())
		require.NoError(t, err)
		m.Release()
	}
	m, err := topic.Members(t.Context())
	require.NoError(t, err)
	require.Len(t, m.Senders, n)
	require.Equal(t, n, m.Readers)
}

func TestMembersTellsWhoSendsAndWhoLeft(t *testing.T) {
	c, o := pair(t)
	topic, err := c.Topic(t.Context(), "t")
	require.NoError(t, err)
	other, err := o.Topic(t.Context(), "t")
	require.NoError(t, err)
	x := alloc(t, c)
	defer x.Release()
	require.NoError(t, topic.Send(t.Context(), x))
	r, err := other.Reader(t.Context())
	require.NoError(t, err)
	name := c.opts.name
	m, err := other.Members(t.Context())
	require.NoError(t, err)
	require.Equal(t, Members{Senders: []Sender{{Name: name, Session: c.Session()}}, Readers: 1}, m)
	require.NoError(t, r.Close())
	require.NoError(t, topic.Close())
	m, err = other.Members(t.Context())
	require.NoError(t, err)
	require.Equal(t, Members{Senders: []Sender{{Name: name, Session: c.Session(), Ended: true}}, LastLeft: name}, m)
}

// A process may have hundreds of sessions.
func TestTablesOfASessionAreSmall(t *testing.T) {
	const part = 1024
	all := uintptr(0)
	for _, what := range []reflect.Type{reflect.TypeFor[session.Session](), reflect.TypeFor[memory.Memory](), reflect.TypeFor[lanes.Topics](), reflect.TypeFor[sessionfiles.Files](), reflect.TypeFor[handles.Pool]()} {
		t.Logf("%s: %d bytes", what, what.Size())
		all += what.Size()
	}
	require.Less(t, all+3*part, uintptr(20<<10))
}
