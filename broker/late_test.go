package broker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// bring hands one file over after `restored`.
func (p *peer) bring(role string, serial uint64, fd *sys.FD) {
	p.t.Helper()
	_, err := p.call(protocol.OpRestore, protocol.Restore{Items: []protocol.RestoreItem{{Role: role, Serial: serial}}}, nil, fd)
	require.NoError(p.t, err)
}

// A segment whose grant was under way when its session listed what it has is brought after the
// list. Until then others are told to wait, as long as the session is there.
func TestSegmentMayComeBehindTheList(t *testing.T) {
	for _, end := range []string{"brought", "given back", "over"} {
		t.Run(end, func(t *testing.T) {
			old, socket, _ := first(t, "")
			p, q := connect(t, socket, "granted"), connect(t, socket, "taker")
			s := p.alloc(4096)
			var r protocol.SegmentReply
			own, err := p.call(protocol.OpSegment, protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial, Write: true}, &r)
			require.NoError(t, err)
			defer func() { wire.CloseAll(own) }()
			old.kill()
			made := next(t, socket, nil)
			p2, q2 := p.returns(socket), q.returns(socket)
			p2.resumed()
			q2.resumed()
			b := made()
			segment := protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}
			q2.refused(protocol.CodeBusy, protocol.OpSegment, segment)
			switch end {
			case "brought":
				p2.bring(protocol.RestoreSegment, s.grant.SegmentSerial, own[0])
				fds, err := q2.call(protocol.OpSegment, segment, nil)
				require.NoError(t, err)
				wire.CloseAll(fds)
			case "given back":
				p2.refcounts.Drop(s.Index)
				p2.must(protocol.OpReturn, protocol.Return{Segment: segment.Segment, Serial: segment.Serial}, nil)
				q2.refused(protocol.CodeExpired, protocol.OpSegment, segment)
			default:
				p2.refcounts.Drop(s.Index)
				p2.bye()
				eventually(t, "it goes with its session", func() bool { return freed(b.Status()) })
				q2.refused(protocol.CodeExpired, protocol.OpSegment, segment)
			}
		})
	}
}

// answered waits until an answer lies in the socket, and leaves it there.
func (p *peer) answered() {
	p.t.Helper()
	raw, err := p.w.SyscallConn()
	require.NoError(p.t, err)
	require.NoError(p.t, p.w.SetReadDeadline(time.Now().Add(patience)))
	require.NoError(p.t, raw.Read(func(fd uintptr) bool { return sys.IsReadable(int(fd)) }))
}

func init() {
	parts["sets many"] = func(c *played) {
		ctx := context.Background()
		s, err := client.Connect(ctx, client.WithAddress(c.socket), client.WithStart(false))
		require.NoError(c, err)
		x, err := filled(ctx, s, 1)
		require.NoError(c, err)
		all := map[string]*client.Tensor{}
		for k := range 100 {
			all[fmt.Sprint(k)] = x
		}
		_, err = s.Set(ctx, "many", client.NewBundle(all))
		require.NoError(c, err)
		c.tell("set")
		c.hear()
	}
	parts["joins late"] = func(c *played) {
		p := connect(c.T, c.socket, "late")
		info := p.open(queueOf("work"))
		id := p.send(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("queue"), Reader: 7})
		p.answered()
		c.tell("asked")
		c.hear()
		e, fds := p.read() // which lay in the socket
		require.Equal(c, id, e.ID)
		var r protocol.TopicReadReply
		require.NoError(c, json.Unmarshal(e.OK, &r))
		p.returns(c.socket, handedOver{protocol.RestoreGroup, r.GroupID, fds[0]}).resumed()
		c.tell("back")
		c.hear()
	}
	// Its own file lies in a socket, where no process finds it, until it goes on.
	parts["makes and hides"] = func(c *played) {
		p := connect(c.T, c.socket, "maker")
		x := p.alloc(4096)
		l, err := net.Listen("unix", filepath.Join(shortdir.New(c.T), "s"))
		require.NoError(c, err)
		there := dial(c.T, l.Addr().String())
		here, err := l.Accept()
		require.NoError(c, err)
		require.NoError(c, there.Request(1, "hide", struct{}{}, p.fds[1]))
		p.fds[1].Close()
		c.tell(x.ref())
		c.hear()
		_, fds, err := wire.New(here.(*net.UnixConn)).Read()
		require.NoError(c, err)
		p.fds[1] = fds[0]
		p.returns(c.socket).resumed()
		c.tell("back")
		c.hear()
	}
	parts["passes on"] = func(c *played) {
		var r protocol.StorageRef
		require.NoError(c, json.Unmarshal([]byte(c.hear()), &r))
		p := connect(c.T, c.socket, "passes on")
		ref := protocol.Ref{Serial: r.Serial, Generation: 1, Index: r.Index}
		p.attach(ref)
		require.NoError(c, p.fds[1].Reserve(protocol.SessionRefcounts+int64(r.Index)*8, 8))
		p.writer(p.open(queueOf("work"))).post("passed on", 0, []protocol.Ref{ref})
		c.tell(p.hello)
		c.hear()
	}
	parts["connects late"] = func(c *played) {
		p := &peer{t: c.T, w: dial(c.T, c.socket)}
		p.send(protocol.OpHello, helloOf("late"))
		p.answered()
		c.tell("asked")
		c.hear()
		e, fds := p.read() // which lay in the socket
		require.NoError(c, json.Unmarshal(e.OK, &p.hello))
		p.greeted(fds)
		p.returns(c.socket).resumed()
		c.tell("back")
		c.hear()
	}
}

// A session that is suspended may have a file in a socket, where a look at what it has open does
// not find it: the claims of a group that it joined, or its own. It brings it when it goes on.
func TestFilesThatLieInASocketComeLate(t *testing.T) {
	for _, part := range []string{"joins late", "connects late"} {
		t.Run(part, func(t *testing.T) {
			old, socket, _ := first(t, "")
			p := connect(t, socket, "other")
			info := p.open(queueOf("work"))
			c := start(t, socket, part)
			c.hear(new(string))
			old.kill()
			made := next(t, socket, func(c *broker.Config) { c.RecoverWait = 10 * time.Millisecond })
			p2 := p.returns(socket)
			p2.resumed()
			b := made()
			c.ask("go on")
			require.Zero(t, b.Status().Counts.Disconnected)
			if part == "joins late" {
				fds, err := p2.call(protocol.OpTopicGroupFile, protocol.TopicGroupFile{TopicRef: ref(info)}, nil)
				require.NoError(t, err)
				wire.CloseAll(fds)
				return
			}
			row := list[broker.SessionRow](p2, protocol.ListSessions, "late")[0]
			fds, err := p2.call(protocol.OpPeer, peerOf(row.Slot, row.Serial), nil)
			require.NoError(t, err)
			require.Len(t, fds, 1)
			wire.CloseAll(fds)
		})
	}
}

// What a name held that was too long for its slot is lost with the memory of the description: the
// name is not set then, and its memory is free.
func TestNameWhoseDescriptionIsLostIsNotSet(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "other")
	c := start(t, socket, "sets many")
	c.hear(new(string))
	c.kill()
	eventually(t, "its setter has ended", func() bool { return len(list[broker.SessionRow](p, protocol.ListSessions, "")) == 1 })
	require.Len(t, list[broker.NameRow](p, protocol.ListNames, ""), 1)
	old.kill()
	_, b := takenOver(t, socket, nil, p)
	require.Zero(t, b.Status().Counts.Names)
	eventually(t, "its memory is free", func() bool { return freed(b.Status()) })
}

// What a dead process had passed on waits for its maker, which is suspended where no process can look
// into it: the broker counts it once the maker has handed its file over.
func TestWhatADeadProcessPassedOnWaitsForItsMaker(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "other")
	info := p.open(queueOf("work"))
	maker := start(t, socket, "makes and hides")
	var x protocol.StorageRef
	maker.hear(&x)
	ref, err := json.Marshal(x)
	require.NoError(t, err)
	dead := start(t, socket, "passes on")
	dead.tell(string(ref))
	var its protocol.HelloReply
	dead.hear(&its)
	file, err := p.call(protocol.OpPeer, peerOf(its.Slot, its.Serial), nil)
	require.NoError(t, err)
	defer wire.CloseAll(file)
	old.kill()
	dead.kill()
	made := next(t, socket, func(c *broker.Config) { c.RecoverWait = 10 * time.Millisecond })
	p2 := p.returns(socket, handedOver{protocol.RestoreSession, its.Serial, file[0]})
	p2.resumed()
	b := made()
	require.Len(t, p2.members(info).Lanes, 1)
	require.NotEqualValues(t, protocol.LaneAdopted, p2.members(info).Lanes[0].State, "its refcounts count it on")
	maker.ask("go on")
	eventually(t, "the broker keeps the message", func() bool { return b.Status().Counts.AdoptedLanes == 1 })
	require.EqualValues(t, protocol.LaneAdopted, p2.members(info).Lanes[0].State)
	require.Len(t, list[broker.SessionRow](p2, protocol.ListSessions, "passes on"), 0)
}

// A client that never read the answer to its hello has nothing that others wait for, and can be
// evicted though its process lives.
func TestSessionThatNeverSpokeIsNotWaitedFor(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "other")
	c := start(t, socket, "connects late")
	c.hear(new(string))
	late := func(q *peer) []broker.SessionRow { return list[broker.SessionRow](q, protocol.ListSessions, "late") }
	require.Len(t, late(p), 1)
	setter := start(t, socket, "sets many")
	setter.hear(new(string))
	setter.kill()
	eventually(t, "its setter has ended", func() bool { return len(list[broker.SessionRow](p, protocol.ListSessions, "")) == 2 })
	old.kill()
	made := next(t, socket, func(c *broker.Config) { c.RecoverWait = 10 * time.Millisecond })
	p2 := p.returns(socket)
	p2.resumed()
	b := made()
	eventually(t, "what no process can hand over is given up", func() bool { return b.Status().Counts.Names == 0 && freed(b.Status()) })
	require.Len(t, late(p2), 1)
	p2.must(protocol.OpEvict, protocol.Evict{Serial: late(p2)[0].Serial}, nil)
	require.Empty(t, late(p2))
}
