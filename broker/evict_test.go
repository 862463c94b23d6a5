package broker_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// recordState is the state that a session's record says.
func (p *peer) recordState() uint32 {
	return p.broker.Load32(protocol.BrokerSessions + uint64(p.hello.Slot)*protocol.SessionRecordSize + protocol.SessionState)
}

// evictBehind asks for an eviction and lets the answer be taken later.
func evictBehind(t *testing.T, socket string, serial uint64) func() protocol.EvictReply {
	op := operator(t, socket)
	op.send(protocol.OpEvict, protocol.Evict{Serial: serial})
	return func() (reply protocol.EvictReply) {
		e, _ := op.read()
		require.Nil(t, e.Error)
		require.NoError(t, json.Unmarshal(e.OK, &reply))
		return reply
	}
}

// The memory of a session that is evicted is the reaper's once its client has ended its side
// of the connection, and not before: it may be about to allocate there.
func TestEvictedSessionKeepsItsMemoryUntilItsClientHasHeard(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "p")
	s, free := p.alloc(4096), p.alloc(4096)
	p.refcounts.Drop(free.Index)
	answer := evictBehind(t, b.socket, p.hello.Serial)
	require.Equal(t, protocol.EventStopped, nextOf(p, protocol.EventStopped))
	require.Equal(t, protocol.EventEvicted, nextOf(p, protocol.EventEvicted))
	p.refused(protocol.CodeSessionLost, protocol.OpGrant, protocol.Grant{Bytes: 4096, Chunks: 1})
	collected(t, b)
	require.EqualValues(t, 8192, b.Status().Memory.Granted, "it may allocate in both")
	require.EqualValues(t, protocol.SessionLive, p.recordState())

	require.NoError(t, p.w.CloseWrite())
	reply := answer()
	require.Equal(t, protocol.EvictReply{Name: "p", PID: reply.PID, State: protocol.EvictedClosed, Held: 4096}, reply)
	_, _, err := p.w.Read()
	require.Error(t, err, "the connection ends")
	require.EqualValues(t, protocol.SessionClosed, p.recordState())
	eventually(t, "what it does not hold is free", func() bool { return b.Status().Memory.Granted == 4096 })
	p.refcounts.Drop(s.Index)
	eventually(t, "nothing is left", func() bool { return b.Status().Counts.Sessions == 0 && freed(b.Status()) })
}

// A session without a connection loses its part in everything at once, and keeps its memory. It
// is told when it comes back.
func TestEvictedSessionWithoutAConnectionIsToldWhenItIsBack(t *testing.T) {
	b := serve(t, nil)
	p, other, op := connect(t, b.socket, "p"), connect(t, b.socket, "other"), operator(t, b.socket)
	s := p.alloc(4096)
	info := p.open(topicOf("t"))
	other.open(topicOf("t"))
	w := p.writer(info)
	w.post("x", 0, []protocol.Ref{s.Ref})
	p.w.Close()
	eventually(t, "it is disconnected", func() bool { return states(other)[p.hello.Serial] == "disconnected" })
	var reply protocol.EvictReply
	op.must(protocol.OpEvict, protocol.Evict{Serial: p.hello.Serial}, &reply)
	require.Equal(t, []any{protocol.EvictedUnheard, uint64(4096), uint64(4096)}, []any{reply.State, reply.Held, reply.Granted})
	require.Equal(t, "evicted", states(other)[p.hello.Serial])
	rows := list[broker.TopicRow](other, protocol.ListTopics, "t")
	require.Equal(t, []int{0, 1, 1}, []int{rows[0].Writers, rows[0].Adopted, rows[0].Openers}, "what it sent is kept")
	collected(t, b)
	require.NotEqual(t, "orphan", list[broker.SegmentRow](other, protocol.ListSegments, "p")[0].State)

	p.w = dial(t, b.socket)
	h := helloOf("p")
	h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret}
	var again protocol.HelloReply
	fds, err := p.call(protocol.OpHello, h, &again)
	require.NoError(t, err)
	wire.CloseAll(fds)
	require.True(t, again.Resumed)
	nextOf(p, protocol.EventStopped)
	p.refused(protocol.CodeSessionLost, protocol.OpTopicOpen, topicOf("t"))
	require.NoError(t, p.w.CloseWrite())
	eventually(t, "it is a closed one", func() bool { return states(other)[p.hello.Serial] == "closed" })
	op.must(protocol.OpEvict, protocol.Evict{Serial: p.hello.Serial}, &reply)
	require.Equal(t, []any{protocol.EvictedClosed, uint64(4096)}, []any{reply.State, reply.Held}, "nothing more is to be done")
	require.Equal(t, "orphan", list[broker.SegmentRow](other, protocol.ListSegments, "p")[0].State)
	p.refcounts.Drop(s.Index)
	w.drop()
	eventually(t, "the session is over", func() bool { return b.Status().Counts.Sessions == 1 })
}

// A connection that ends without a word says nothing of what its client has heard.
func TestEvictedSessionWhoseConnectionBreaksHasNotHeard(t *testing.T) {
	b := serve(t, nil)
	p, other := connect(t, b.socket, "p"), connect(t, b.socket, "other")
	p.alloc(4096)
	answer := evictBehind(t, b.socket, p.hello.Serial)
	nextOf(p, protocol.EventStopped)
	p.w.Close()
	require.Equal(t, protocol.EvictedUnheard, answer().State)
	require.Equal(t, "evicted", states(other)[p.hello.Serial])
	require.EqualValues(t, protocol.SessionClosed, p.recordState(), "a client that looks finds that it is over")
	require.Equal(t, "granted", list[broker.SegmentRow](other, protocol.ListSegments, "p")[0].State)
}
