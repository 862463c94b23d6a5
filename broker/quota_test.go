package broker_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
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
	require.Equal(t, protocol.EventReclaim, ev.Event, "idle owners are asked for what they do not hold")
	peers[0].refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 52, Chunks: 1})
	peers[0].refused(protocol.CodeInvalid, protocol.OpGrant, protocol.Grant{Bytes: 1<<64 - 1, Chunks: 1})
	peers[0].refused(protocol.CodeInvalid, protocol.OpGrant, protocol.Grant{Bytes: 0, Chunks: 1})
	peers[0].refused(protocol.CodeInvalid, protocol.OpGrant, protocol.Grant{Bytes: 1, Chunks: -1})
	peers[0].alloc(1 << 19)
}

// asked reads until the session is asked for what it does not hold.
func (p *peer) asked() {
	p.t.Helper()
	for ev, _ := p.read(); ev.Event != protocol.EventReclaim; ev, _ = p.read() {
		require.NotEmpty(p.t, ev.Event)
	}
}

// gives gives a segment back, and says that there is no more.
func (p *peer) gives(s storage) {
	p.t.Helper()
	p.refcounts.Drop(s.Index)
	p.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	p.must(protocol.OpReclaimed, nil, nil)
}

// An idle owner is asked before each refusal, and the request waits for its answer. Requests that come meanwhile are
// carried out.
func TestARefusalWaitsForWhatIdleOwnersGiveBack(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Memory = 4 << 20 })
	idle, p := connect(t, b.socket, "idle"), connect(t, b.socket, "p")
	for range 3 {
		s := idle.alloc(4 << 20)
		id := p.send(protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1})
		idle.asked()
		p.must(protocol.OpStatus, nil, nil)
		idle.gives(s)
		e, fds := p.answer()
		require.Equal(t, id, e.ID)
		require.Nil(t, e.Error)
		require.Len(t, fds, 1)
		wire.CloseAll(fds)
		var g protocol.GrantReply
		require.NoError(t, json.Unmarshal(e.OK, &g))
		p.must(protocol.OpReturn, protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}, nil)
	}
}

// What a session does not hold is its own to use for something else.
func TestALaneGetsWhatItsSessionDoesNotHold(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Memory = 4 << 20 })
	p := connect(t, b.socket, "p")
	info := p.open(protocol.TopicOpenRequest{Name: "t", Kind: protocol.KindTopic, Create: true})
	s := p.alloc(4 << 20)
	at := p.nextLane
	require.NoError(t, p.fds[1].Reserve(int64(at), int64(protocol.LaneBytes(info.Slots, info.Stride))))
	id := p.send(protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref(info), Offset: at})
	p.asked()
	p.gives(s)
	e, _ := p.answer()
	require.Equal(t, id, e.ID)
	require.Nil(t, e.Error)
}

// Each lane counts: a refusal names the session that has them, and of those that linger the broker.
func TestARefusalNamesTheSessionsWithLanes(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Memory = 8 << 20 })
	innocent, many, ends, p := connect(t, b.socket, "innocent"), connect(t, b.socket, "many"), connect(t, b.socket, "ends"), connect(t, b.socket, "p")
	innocent.alloc(1 << 20)
	var lane uint64
	sends := func(p *peer, name string) *writer {
		info := p.open(protocol.TopicOpenRequest{Name: name, Kind: protocol.KindQueue, Create: true})
		lane = protocol.LaneBytes(info.Slots, info.Stride)
		return p.writer(info)
	}
	for i := range 20 {
		sends(many, fmt.Sprint("many/", i))
	}
	st := ends.alloc(4096)
	w := sends(ends, "ends")
	w.post("x", 0, []protocol.Ref{st.Ref})
	ends.bye()
	w.drop()
	ends.refcounts.Drop(st.Index)
	eventually(t, "the session has ended", func() bool { return len(list[broker.SessionRow](p, protocol.ListSessions, "ends")) == 0 })
	e := p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 7 << 20, Chunks: 1})
	require.Regexp(t, fmt.Sprintf(`largest: many \(pid \d+\): holds 0 bytes, was granted 0 bytes, has %d bytes in lanes;`, 20*lane), e.Message)
	require.Regexp(t, fmt.Sprintf(`; broker: names, leases, messages of ended sessions \(pid \d+\): holds 4096 bytes, was granted 4096 bytes, has %d bytes in lanes \(held by messages of ended sessions 4096 bytes\)$`, lane), e.Message)
	require.Contains(t, e.Remedy, "close queues and topics")
	require.Equal(t, 20*lane, list[broker.SessionRow](p, protocol.ListSessions, "many")[0].Lanes)
}

// Owners that do not answer, as suspended ones, keep nothing waiting for good.
func TestOwnersThatDoNotAnswerHoldUpNoRefusal(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Memory = 4 << 20 })
	idle, p := connect(t, b.socket, "idle"), connect(t, b.socket, "p")
	s := idle.alloc(4 << 20)
	for range 3 {
		e := p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1})
		require.Contains(t, e.Message, "largest: idle")
		idle.asked()
	}
	idle.gives(s)
	p.alloc(4 << 20)
}

// Their processes may end instead, and the connection of the request itself.
func TestARefusalThatWaitsOutlivesNoSession(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.Memory = 4 << 20 })
	idle, p, q := connect(t, b.socket, "idle"), connect(t, b.socket, "p"), connect(t, b.socket, "q")
	s := idle.alloc(4 << 20)
	p.send(protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1})
	idle.asked()
	p.w.Close()
	idle.must(protocol.OpReclaimed, nil, nil)
	q.send(protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1})
	idle.asked()
	idle.gives(s)
	e, fds := q.answer()
	require.Nil(t, e.Error)
	wire.CloseAll(fds)
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
	p.refcounts.Drop(s.Index)
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
		setter.refcounts.Drop(s.Index)
		setter.must(protocol.OpBye, struct{}{}, nil)
		p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1})
		p.must(protocol.OpNameDelete, protocol.NameRef{Name: "n"}, nil)
		s = p.alloc(1 << 20)
		p.refcounts.Drop(s.Index)
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

// A refusal tells what keeps the memory, and advises what frees that: also of one session's own quota.
func TestARefusalTellsSmallTensorsFromWhatOthersHold(t *testing.T) {
	for name, limit := range map[string]func(*broker.Config){
		"of all":     func(c *broker.Config) { c.Memory = 10 << 20 },
		"of session": func(c *broker.Config) { c.SessionMemory = 10 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t, serve(t, limit).socket, "p")
			const small, leases, collect = "copy the small tensors", "baton revoke LEASE", "baton collect"
			says := func(text string) {
				t.Helper()
				e := p.refused(protocol.CodeQuota, protocol.OpGrant, protocol.Grant{Bytes: 4 << 20, Chunks: 1})
				for _, advice := range []string{small, leases, collect} {
					if advice == text {
						require.Contains(t, e.Remedy, advice)
					} else {
						require.NotContains(t, e.Remedy, advice)
					}
				}
			}
			s := p.alloc(8 << 20)
			says("")
			p.must(protocol.OpLease, protocol.LeaseRequest{Lease: 1, Refs: []protocol.StorageRef{s.ref()}, Seconds: ptr(1000.0)}, nil)
			p.refcounts.Drop(s.Index)
			says(leases)
			require.NoError(t, p.refcounts.Take(s.Index))
			p.must(protocol.OpLeaseRevoke, protocol.LeaseRef{Lease: 1}, nil)
			p.entries.Describe(s.Index, 0, 4096, sys.Monotonic())
			says(small)
			p.refcounts.Drop(s.Index)
			says(collect)
		})
	}
}
