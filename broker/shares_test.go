package broker_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func TestFrameBeforeHelloIsShort(t *testing.T) {
	b := serve(t, nil)
	p := &peer{t: t, w: dial(t, b.socket)}
	_, err := p.w.UnixConn.Write([]byte{0, 0, 64, 0, 0, 0, 0, 0}) // announces 4 MiB
	require.NoError(t, err)
	e, _ := p.read()
	require.NotNil(t, e.Error)
	require.Equal(t, protocol.CodeProtocol, e.Error.Code)
	q := connect(t, b.socket, "q")
	q.must(protocol.OpTopicOpen, protocol.TopicOpenRequest{Name: "x", Kind: "topic", Create: true, Token: ""}, nil)
}

// A client that breaks the protocol does not know what the broker carried out: it has no
// session any more, and no slot.
func TestSessionEndsWithItsConnectionWhereTheProtocolIsBroken(t *testing.T) {
	b := serve(t, nil)
	for _, broken := range [][]byte{{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, {3, 0, 0, 0, 0, 0, 0, 0, 'n', 'o', '!'}} {
		p := connect(t, b.socket, "p")
		_, err := p.w.UnixConn.Write(broken)
		require.NoError(t, err)
		e, _ := p.read()
		require.Equal(t, protocol.CodeProtocol, e.Error.Code)
		eventually(t, "the session is over", func() bool { return b.Status().Counts.Sessions == 0 })
		h := helloOf("p")
		h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret}
		(&peer{t: t, w: dial(t, b.socket)}).refused(protocol.CodeExpired, protocol.OpHello, h)
	}
	holds := connect(t, b.socket, "holds")
	s := holds.alloc(4096)
	_, err := holds.w.UnixConn.Write([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	require.NoError(t, err)
	eventually(t, "it is closed", func() bool { return b.Status().Counts.Closed == 1 })
	require.EqualValues(t, 1, holds.refcounts.Count(s.Index), "and keeps what it counts")
}

func TestOneProcessLeavesConnectionsToOthers(t *testing.T) {
	b := serve(t, nil)
	const size = protocol.MaxSessions + 128
	var last *net.UnixConn
	for range size - size/8 + 1 {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: b.socket})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		last = c
	}
	e, _ := (&peer{t: t, w: wire.New(last)}).read()
	require.NotNil(t, e.Error)
	require.Equal(t, protocol.CodeTooMany, e.Error.Code)
	require.Contains(t, e.Error.Message, "kept for others")
}

func TestLanesCountInTheQuota(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.SessionMemory = 1 << 20 })
	p := connect(t, b.socket, "p")
	large := func(name string) protocol.TopicInfo {
		return p.open(protocol.TopicOpenRequest{Name: name, Kind: "topic", Create: true, Depth: ptr(uint32(31)), Description: ptr(uint32(20 << 10)), Linger: ptr(0.0)})
	}
	first, second := large("first"), large("second")
	w := p.writer(first)
	require.EqualValues(t, protocol.LaneBytes(first.Slots, first.Stride), b.Status().Memory.Lanes)
	refusal := protocol.TopicWrite{TopicRef: ref(second), Offset: p.nextLane}
	p.refused(protocol.CodeQuota, protocol.OpTopicWrite, refusal)
	p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 600 << 10, Chunks: 1})
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(first), Role: protocol.RoleNameWrite, Offset: w.at}, nil)
	require.Zero(t, b.Status().Memory.Lanes)
	p.must(protocol.OpTopicWrite, refusal, nil)
}

// A client that has taken its share does not have another one at the next broker, whatever
// has ended of its process meanwhile.
func TestOneProcessHasOneShareAcrossBrokers(t *testing.T) {
	old, socket, _ := first(t, "")
	former, p := connect(t, socket, "former"), connect(t, socket, "greedy")
	topic := func(i int) protocol.TopicOpenRequest {
		return protocol.TopicOpenRequest{Name: fmt.Sprintf("t%d", i), Kind: "topic", Create: true, Linger: ptr(0.0)}
	}
	const share = protocol.MaxTopics - protocol.MaxTopics/8
	var last protocol.TopicInfo
	for i := range share {
		last = p.open(topic(i))
	}
	p.refused(protocol.CodeTooMany, protocol.OpTopicOpen, topic(share))
	former.must(protocol.OpBye, struct{}{}, nil) // after whose session the process's share is named
	old.kill()
	made := next(t, socket, nil)
	p2 := p.returns(socket)
	p2.resumed()
	made()
	p2.refused(protocol.CodeTooMany, protocol.OpTopicOpen, topic(share))
	p2.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(last), Role: protocol.RoleNameOpen, Opening: last.Opening}, nil)
	p2.open(topic(share))
	p2.refused(protocol.CodeTooMany, protocol.OpTopicOpen, topic(share+1))
}
