package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// collected returns when the broker's reaper has looked at everything: it frees
// what an owner left that has just ended, and looks through all at each turn.
func collected(t *testing.T, b *served) {
	t.Helper()
	looks := connect(t, b.socket, "looks")
	for range 2 {
		p := connect(t, b.socket, "passing")
		s := p.alloc(4096)
		p.refcounts.Drop(s.Index)
		require.False(t, p.bye())
		eventually(t, "what it left is freed", func() bool {
			return len(list[broker.SegmentRow](looks, "segments", "passing")) == 0
		})
	}
	require.False(t, looks.bye())
}

func states(p *peer) map[uint64]string {
	all := map[uint64]string{}
	for _, row := range list[broker.SessionRow](p, "sessions", "*") {
		all[row.Serial] = row.State
	}
	return all
}

func TestClosedSessionKeepsWhatItHoldsUntilItLetsGo(t *testing.T) {
	b := serve(t, nil)
	p, watcher := connect(t, b.socket, "p"), connect(t, b.socket, "watcher")
	s, other := p.alloc(4096), p.alloc(4096)
	copy(s.region.Bytes(0, 5), "bytes")
	p.refcounts.Drop(other.Index)
	require.True(t, p.bye())
	collected(t, b)
	require.EqualValues(t, 4096, b.Status().Memory.Granted, "the other has gone")
	require.Equal(t, "bytes", string(s.region.Bytes(0, 5)))
	require.Equal(t, "closed", states(watcher)[p.hello.Serial])
	require.Equal(t, 1, b.Status().Counts.Closed)
	rows := list[broker.SegmentRow](watcher, "segments", "*")
	require.Len(t, rows, 1)
	require.Equal(t, "orphan", rows[0].State)
	// Others may begin to hold it, and keep it.
	watcher.attach(s.Ref)
	require.NoError(t, watcher.refcounts.Take(s.Index))
	p.refcounts.Drop(s.Index)
	eventually(t, "the session ends by itself", func() bool { return b.Status().Counts.Sessions == 1 })
	require.Equal(t, "bytes", string(s.region.Bytes(0, 5)))
	watcher.refcounts.Drop(s.Index)
	eventually(t, "nothing is left", func() bool { return freed(b.Status()) })
}

func TestByeOfASessionThatHoldsNothingEndsIt(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "p")
	s := p.alloc(4096)
	require.True(t, p.bye())
	require.True(t, p.bye(), "still")
	p.refcounts.Drop(s.Index)
	require.False(t, p.bye())
	require.Zero(t, b.Status().Counts.Sessions)
	_, _, err := p.w.Read()
	require.Error(t, err, "the connection has ended")
}

func TestClosedSessionMayOnlyKeep(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "p"), connect(t, b.socket, "q")
	info := p.open(queueOf("work"))
	s, theirs := p.alloc(4096), q.alloc(4096)
	require.True(t, p.bye())
	for op, fields := range map[string]any{
		protocol.OpGrant:      protocol.Grant{Bytes: 4096, Chunks: 1},
		protocol.OpChunks:     protocol.Chunks{Segment: s.grant.Segment, Count: 1},
		protocol.OpReturn:     protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial},
		protocol.OpTopicOpen:  queueOf("work"),
		protocol.OpTopicWrite: protocol.TopicWrite{TopicRef: ref(info), Offset: protocol.SessionLanes},
		protocol.OpNameOpen:   protocol.NameRef{Name: "n"},
		protocol.OpLease:      protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}},
		protocol.OpLeaseClaim: protocol.LeaseRef{Lease: 1},
		protocol.OpList:       protocol.List{What: "sessions"},
		protocol.OpStatus:     struct{}{},
	} {
		p.refused(protocol.CodeClosed, op, fields)
	}
	p.attach(theirs.Ref)
	fds, err := p.call(protocol.OpSegment, protocol.Segment{Segment: theirs.grant.Segment, Serial: theirs.grant.SegmentSerial}, nil)
	require.NoError(t, err)
	wire.CloseAll(fds)
	fds, err = p.call(protocol.OpPeer, peerOf(q.hello.Slot, q.hello.Serial), nil)
	require.NoError(t, err)
	wire.CloseAll(fds)
	p.refcounts.Drop(s.Index)
	require.False(t, p.bye())
}

// Counts of another session may be on their way into a closed one: from an attach to
// the next bye it stays.
func TestClosedSessionThatWasAttachedStaysUntilItsNextBye(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "p"), connect(t, b.socket, "q")
	s, theirs := p.alloc(4096), q.alloc(4096)
	require.True(t, p.bye())
	p.attach(theirs.Ref)
	p.refcounts.Drop(s.Index)
	eventually(t, "its own is freed", func() bool { return b.Status().Memory.Granted == 4096 })
	collected(t, b)
	require.Equal(t, 2, b.Status().Counts.Sessions)
	require.NoError(t, p.refcounts.Take(theirs.Index))
	require.True(t, p.bye())
	q.refcounts.Drop(theirs.Index)
	q.refused(protocol.CodeBusy, protocol.OpReturn, protocol.Return{Segment: theirs.grant.Segment, Serial: theirs.grant.SegmentSerial})
	p.refcounts.Drop(theirs.Index)
	eventually(t, "it ends", func() bool { return b.Status().Counts.Sessions == 1 })
	q.must(protocol.OpReturn, protocol.Return{Segment: theirs.grant.Segment, Serial: theirs.grant.SegmentSerial}, nil)
}

func TestTopicsAndLeasesOfAClosedSessionEndAtOnce(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "p"), connect(t, b.socket, "q")
	s := p.alloc(4096)
	p.must(protocol.OpNameSet, nameSet("kept", s), nil)
	passing := nameSet("passing", s)
	passing.Ephemeral = true
	p.must(protocol.OpNameSet, passing, nil)
	var lease protocol.LeaseReply
	p.must(protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}}, &lease)
	info := q.open(queueOf("work"))
	p.open(queueOf("work"))
	w := p.writer(info)
	w.post("one", 0, []protocol.Ref{s.Ref})
	fds, err := p.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("queue")}, nil)
	require.NoError(t, err)
	wire.CloseAll(fds)
	require.True(t, p.bye())
	n := b.Status().Counts
	require.Equal(t, 1, n.Names)
	require.Zero(t, n.Leases)
	peers := q.members(info)
	require.EqualValues(t, protocol.LaneAdopted, peers.Lanes[0].State)
	require.Empty(t, peers.Readers)
	require.EqualValues(t, 2, p.count(s.ref()), "the name and the message")
	w.drop()
	p.refcounts.Drop(s.Index)
	require.False(t, p.bye())
	require.EqualValues(t, 2, q.count(s.ref()))
}

func TestClosedSessionIsTakenOver(t *testing.T) {
	old, socket, _ := first(t, "")
	p, q := connect(t, socket, "p"), connect(t, socket, "q")
	s, theirs := p.alloc(4096), q.alloc(4096)
	copy(s.region.Bytes(0, 5), "bytes")
	var files []handedOver
	for _, g := range []protocol.GrantReply{s.grant, theirs.grant} {
		fds, err := q.call(protocol.OpSegment, protocol.Segment{Segment: g.Segment, Serial: g.SegmentSerial}, nil)
		require.NoError(t, err)
		defer wire.CloseAll(fds)
		files = append(files, handedOver{protocol.RestoreSegment, g.SegmentSerial, fds[0]})
	}
	require.True(t, p.bye())
	old.kill()
	made := next(t, socket, nil)
	q2 := q.returns(socket, files...)
	p2 := p.returns(socket)
	q2.resumed()
	p2.resumed()
	b := made()
	require.Equal(t, "closed", states(q2)[p.hello.Serial])
	p2.refused(protocol.CodeClosed, protocol.OpGrant, protocol.Grant{Bytes: 4096, Chunks: 1})
	require.True(t, p2.bye())
	require.Equal(t, "bytes", string(s.region.Bytes(0, 5)))
	p.refcounts.Drop(s.Index)
	eventually(t, "it ends", func() bool { return b.Status().Counts.Sessions == 1 && b.Status().Memory.Granted == 4096 })
}

func init() {
	// forks holds a storage and says that it forks.
	parts["forks"] = func(c *played) {
		p := connect(c, c.socket, "forks")
		s := p.alloc(4096)
		began := sys.Monotonic()
		if c.hear() == "long ago\n" {
			began -= 1 << 40
		}
		p.file.Store64(protocol.SessionForking, began)
		c.tell(s.ref())
		c.hear()
	}
}

func TestRefcountsOfAProcessThatDiesInAForkStayForItsChild(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "child")
	for _, when := range []string{"now", "long ago"} {
		c := start(t, b.socket, "forks")
		c.tell(when)
		var s protocol.StorageRef
		c.hear(&s)
		c.kill()
		if when == "now" {
			eventually(t, "its end is noted", func() bool { return b.Status().Counts.Closed == 1 })
			collected(t, b)
			p.attach(protocol.Ref{Serial: s.Serial, Index: s.Index})
			require.NoError(t, p.refcounts.Take(s.Index))
			require.NotZero(t, b.Status().Memory.Granted)
			st := b.Status()
			require.Equal(t, 1, st.Counts.ForChildren)
			require.Equal(t, []uint64{4096, 4096}, []uint64{st.Memory.Held, st.Memory.ForChildren}, "two sessions count it")
		}
		eventually(t, "it has ended", func() bool { return b.Status().Counts.Sessions == 1 })
		if when == "now" {
			require.NotZero(t, b.Status().Memory.Granted, "the child counts it")
			p.refcounts.Drop(s.Index)
		}
		eventually(t, "nothing is left", func() bool { return freed(b.Status()) })
	}
}
