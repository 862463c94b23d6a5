package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

func TestQuotaOfTheWholeNamesTheLargestHolders(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Memory = 10 << 20 })
	var peers []*peer
	for i, name := range []string{"small", "largest", "large", "middle"} {
		p := connect(t, b.socket, name)
		p.alloc([]uint64{4096, 4 << 20, 3 << 20, 2 << 20}[i])
		peers = append(peers, p)
	}
	e := peers[0].refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 2 << 20, Chunks: 1})
	require.EqualValues(t, 10<<20, e.Detail["limit"])
	require.EqualValues(t, 9<<20+4096, e.Detail["used"])
	largest := e.Detail["largest"].([]any)
	require.Len(t, largest, 3)
	for i, name := range []string{"largest", "large", "middle"} {
		require.Equal(t, name, largest[i].(map[string]any)["session"])
		require.Contains(t, e.Message, name)
	}
	require.NotContains(t, e.Message, "small")
	ev, _ := peers[1].read()
	require.Equal(t, protocol.EventCollect, ev.Event, "idle owners are asked to recycle")
	peers[0].refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 52, Chunks: 1})
	peers[0].refused(protocol.CodeInvalid, protocol.OpGrant, protocol.Grant{Bytes: 1<<64 - 1, Chunks: 1})
	peers[0].refused(protocol.CodeInvalid, protocol.OpGrant, protocol.Grant{Bytes: 0, Chunks: 1})
	peers[0].refused(protocol.CodeInvalid, protocol.OpGrant, protocol.Grant{Bytes: 1, Chunks: -1})
	peers[0].alloc(1 << 19)
}

// An idle owner is asked for each refusal, also for one that comes shortly after
// another: a client that waits for memory must not wait longer than that owner needs.
func TestIdleOwnersAreAskedAgainForWhoIsRefusedNext(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Memory = 4 << 20 })
	idle, p, q := connect(t, b.socket, "idle"), connect(t, b.socket, "p"), connect(t, b.socket, "q")
	s := idle.alloc(4 << 20)
	idle.row.Drop(s.Index)
	for _, refused := range []*peer{p, q, p} {
		e := refused.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1})
		require.Contains(t, e.Remedy, "wait for memory (others are asked for what is not held)")
		ev, _ := idle.read()
		require.Equal(t, protocol.EventCollect, ev.Event)
	}
}

func TestQuotaOfOneSessionLeavesOthersAlone(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.SessionMemory = 1 << 20 })
	p, q := connect(t, b.socket, "p"), connect(t, b.socket, "q")
	require.EqualValues(t, 1<<20, p.hello.Limits.SessionBytes)
	s := p.alloc(1 << 20)
	other := connect(t, b.socket, "other")
	other.alloc(1 << 19)
	e := p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1, Chunks: 1})
	require.Len(t, e.Detail["largest"], 1, "its own session alone: others do not count to its quota")
	require.Contains(t, e.Message, "; largest: p (pid ")
	q.alloc(1 << 20)
	p.row.Drop(s.Index)
	p.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	p.alloc(1 << 20)
}

// A client that deletes what an ended process had set may have its memory at once.
func TestNobodyIsRefusedForWhatTheDeadLeftUnheld(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Memory = 1 << 20 })
	p := connect(t, b.socket, "p")
	for range 20 {
		setter := connect(t, b.socket, "setter")
		s := setter.alloc(1 << 20)
		setter.must(protocol.OpNameSet, nameSet("n", s), nil)
		setter.row.Drop(s.Index)
		setter.must(protocol.OpBye, struct{}{}, nil)
		p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1})
		p.must(protocol.OpNameDelete, protocol.NameRef{Name: "n"}, nil)
		s = p.alloc(1 << 20)
		p.row.Drop(s.Index)
		p.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	}
}

func TestFullMachineIsAnErrorBeforeItIsACrash(t *testing.T) {
	free := uint64(200 << 20)
	b := serve(t, func(c *broker.Config) {
		c.ReadMemory = func() (sys.Memory, error) { return sys.Memory{Total: 1 << 30, Available: free}, nil }
	})
	p := connect(t, b.socket, "p")
	var g protocol.GrantReply
	fds, err := p.call(protocol.OpGrant, protocol.Grant{Bytes: 100 << 20, Chunks: 1}, &g)
	require.NoError(t, err)
	e := p.refused(protocol.CodeOutOfMemory, protocol.OpGrant, protocol.Grant{Bytes: 50 << 20, Chunks: 1})
	require.Contains(t, e.Message, "p (pid", "what was granted counts before its pages are reserved")
	fds[0].Close()
	p.must(protocol.OpReturn, protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}, nil)
	fds, err = p.call(protocol.OpGrant, protocol.Grant{Bytes: 50 << 20, Chunks: 1}, &g)
	require.NoError(t, err)
	fds[0].Close()
	p.refused(protocol.CodeOutOfMemory, protocol.OpGrant, protocol.Grant{Bytes: 200 << 20, Chunks: 1})
}

func TestFullContainerOfAClientIsAnErrorThatNamesTheHolders(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "p")
	var g protocol.GrantReply
	free := uint64(100 << 20)
	fds, err := p.call(protocol.OpGrant, protocol.Grant{Bytes: 20 << 20, Chunks: 1, Free: &free}, &g)
	require.NoError(t, err)
	fds[0].Close()
	e := p.refused(protocol.CodeOutOfMemory, protocol.OpGrant, protocol.Grant{Bytes: 50 << 20, Chunks: 1, Free: &free})
	require.Contains(t, e.Message, "the client's container")
	require.Contains(t, e.Message, "p (pid")
}

// The client's pages are charged to the container of the client.
func TestContainerOfTheBrokerDoesNotBindClientsElsewhere(t *testing.T) {
	b := serve(t, func(c *broker.Config) {
		c.ReadMemory = func() (sys.Memory, error) {
			return sys.Memory{Total: 64 << 30, Available: 32 << 30, Limit: 128 << 20, Used: 100 << 20}, nil
		}
	})
	p := connect(t, b.socket, "p")
	free := uint64(8 << 30)
	fds, err := p.call(protocol.OpGrant, protocol.Grant{Bytes: 512 << 20, Chunks: 1, Free: &free}, nil)
	require.NoError(t, err)
	fds[0].Close()
	p.refused(protocol.CodeOutOfMemory, protocol.OpGrant, protocol.Grant{Bytes: 512 << 20, Chunks: 1})
}
