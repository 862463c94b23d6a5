package client

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
	"github.com/stretchr/testify/require"
)

// requests counts the requests that a client has made.
func requests(c *Client) uint64 {
	k := c.link.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.next
}

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
		slots[fmt.Sprint(m.held.storages[0].at.Owner)] = true
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

	// One who sends needs nothing of those who read.
	var readers []*Reader
	for _, topic := range topics[1:] {
		r, err := topic.Reader(t.Context())
		require.NoError(t, err)
		readers = append(readers, r)
	}
	x := alloc(t, all[0])
	defer x.Release()
	require.NoError(t, topics[0].Send(t.Context(), x))
	require.LessOrEqual(t, peersMapped(all[0]), 3, "itself, the broker, and the one who has received from it")
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

// What is read in the midst of a change is left out.
func TestRecordsThatAreNotWholeAreLeftOut(t *testing.T) {
	r := topicRecord{shm.NewRegion(shm.BytesOf(make([]uint64, protocol.TopicRecordSize/8)))}
	lane := func(n uint64, slot, state uint32, incarnation uint64) {
		at := protocol.TopicLanes + n*protocol.LaneRecordSize
		r.r.Store64(at+protocol.LaneRecordSerial, 7+n)
		r.r.Store64(at+protocol.LaneRecordOffset, n*protocol.PageBytes)
		r.r.Store32(at+protocol.LaneRecordSlot, slot)
		r.r.Store32(at+protocol.LaneRecordState, state)
		r.r.Store64(at+protocol.LaneRecordIncarnation, incarnation)
	}
	lane(1, 5, protocol.LaneLive, 20)
	lane(2, 5, protocol.LaneLive, 0)
	lane(3, protocol.MaxSessions, protocol.LaneLive, 21)
	lane(4, 5, protocol.LaneClosed, 22)
	lane(5, 6, protocol.LaneAdopted, 23)
	lane(6, 6, protocol.LaneLive, 24)
	require.Empty(t, r.lanes())
	r.r.Store32(protocol.TopicLanesEnd, 6)
	require.Equal(t, []laneRecord{{1, 5, protocol.LaneLive, 8, protocol.PageBytes, 20},
		{5, 6, protocol.LaneAdopted, 12, 5 * protocol.PageBytes, 23}}, r.lanes())
	r.r.Store32(protocol.TopicLanesEnd, 1<<31)
	require.Len(t, r.lanes(), 3, "the table has an end")

	r.r.Store64(protocol.TopicGroups+2*protocol.GroupRecordSize+protocol.GroupID, 9)
	require.Empty(t, r.groups())
	r.r.Store32(protocol.TopicGroupsEnd, 1<<31)
	require.Equal(t, []groupRecord{{2, 9}}, r.groups())
	r.r.Store64(protocol.TopicReaders, 3)
	r.r.Store64(protocol.TopicReaders+8*(protocol.BitmapWords-1), 1<<63)
	require.Equal(t, 3, r.readers())
}

func TestNameOfAnotherIsMadeFitToBePrinted(t *testing.T) {
	r := shm.NewRegion(shm.BytesOf(make([]uint64, 1024)))
	for said, name := range map[string]string{"": "", "worker-1": "worker-1", "naïve": "naïve", "a\x00b": "a",
		"a\x1b[2J": "a\uFFFD[2J", "\xff\xfe": "\uFFFD\uFFFD", "123456789012345678901234567890123456789012345678901234567890123456": "1234567890123456789012345678901234567890123456789012345678901234"} {
		clear(r.Bytes(protocol.SessionSender, protocol.SessionNameBytes))
		copy(r.Bytes(protocol.SessionSender, protocol.SessionNameBytes), said)
		require.Equal(t, name, senderName(r), "%q", said)
	}
}

// A queue's items stay while its group is being made anew: no group at all is done with them.
func TestQueueWhoseGroupIsNotListedKeepsItsItems(t *testing.T) {
	c, _ := pair(t)
	q, err := c.Queue(t.Context(), "q")
	require.NoError(t, err)
	x := alloc(t, c)
	defer x.Release()
	require.NoError(t, q.Put(t.Context(), x))
	q.t.mu.must()
	q.t.withdrawLocked(&groupsView{whole: true})
	q.t.withdrawLocked(&groupsView{})
	q.t.mu.end()
	n, err := q.Len(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A process may have hundreds of sessions.
func TestTablesOfASessionAreSmall(t *testing.T) {
	const part = 1024
	for _, what := range []reflect.Type{reflect.TypeFor[Client](), reflect.TypeFor[pages](), reflect.TypeFor[handles.Pool]()} {
		t.Logf("%s: %d bytes", what, what.Size())
	}
	all := reflect.TypeFor[Client]().Size() + reflect.TypeFor[pages]().Size() + reflect.TypeFor[handles.Pool]().Size() + 3*part
	require.Less(t, all, uintptr(20<<10))
}
