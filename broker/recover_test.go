package broker_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func TestNewBrokerTakesOverFromClients(t *testing.T) {
	old, socket, instance := first(t, "")
	p, q := connect(t, socket, "owner"), connect(t, socket, "reader")
	// A name, a lease, a private topic, a queue with a member and a message, a
	// sender that has died, a topic option.
	var g protocol.GrantReply
	seg, err := p.call(protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1}, &g)
	require.NoError(t, err)
	s := storage{grant: g, region: p.mapRegion(seg[0], 1<<20, true), bytes: 4096}
	s.Serial, s.Generation, s.Index = g.Chunks[0].Serial, 1, g.Chunks[0].Chunk*protocol.ChunkIndices
	p.entries.SetGeneration(s.Index, 1)
	p.entries.Share(s.Index)
	p.entries.Describe(s.Index, 0, 4096, sys.Monotonic())
	require.NoError(t, p.refcounts.Take(s.Index))
	p.must(protocol.OpNameSet, nameSet("kept", s), nil)
	passing := nameSet("passing", s)
	passing.Ephemeral = true
	p.must(protocol.OpNameSet, passing, nil)
	var lease protocol.LeaseReply
	p.must(protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}, Seconds: ptr(3600.0)}, &lease)
	private := p.open(protocol.TopicOpenRequest{Kind: "topic", Create: true, Depth: ptr(uint32(3))})
	open := queueOf("work")
	open.Redeliver = ptr(true)
	info := p.open(open)
	w := p.writer(info)
	w.post("one", 0, []protocol.Ref{s.Ref})
	q.open(queueOf("work"))
	var r protocol.TopicReadReply
	group, err := q.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("queue")}, &r)
	require.NoError(t, err)
	area, err := shm.NewGroupLane(q.mapRegion(group[0], int(protocol.GroupBytes(info.Slots)), true), w.num, info.Slots)
	require.NoError(t, err)
	i, hint, ok := area.Next(1)
	require.True(t, ok)
	require.True(t, area.Take(i, hint, r.Member, true))
	c := start(t, socket, "sender")
	c.tell("topic")
	var dead sent
	c.hear(&dead)
	deadLane := dead.Info
	q.open(protocol.TopicOpenRequest{Name: deadLane.Name, Kind: deadLane.Kind})
	lane := q.laneOf(deadLane, q.members(deadLane).Lanes[0])
	c.kill()
	eventually(t, "the sender has ended", func() bool {
		return len(q.members(deadLane).Lanes) == 1 && q.members(deadLane).Lanes[0].State == protocol.LaneAdopted
	})
	deadRef := protocol.Ref{Serial: dead.Storages[0].Serial, Index: dead.Storages[0].Index}
	a := q.attach(deadRef)
	deadFiles, err := q.call(protocol.OpPeer, peerOf(a.Owner, a.OwnerSerial), nil)
	require.NoError(t, err)
	deadSegment, err := q.call(protocol.OpSegment, protocol.Segment{Segment: a.Segment, Serial: a.SegmentSerial}, nil)
	require.NoError(t, err)
	version := q.members(info).LanesVersion

	old.kill()
	made := next(t, socket, nil)
	p2 := p.returns(socket, handedOver{"segment", g.SegmentSerial, seg[0]}, handedOver{"group", r.GroupID, group[0]})
	q2 := q.returns(socket, handedOver{"group", r.GroupID, group[0]},
		handedOver{"session", a.OwnerSerial, deadFiles[0]},
		handedOver{"segment", a.SegmentSerial, deadSegment[0]})
	for _, fds := range [][]*sys.FD{seg, group, deadFiles, deadSegment} {
		wire.CloseAll(fds)
	}
	p2.resumed()
	q2.resumed()
	b := made()
	require.Equal(t, instance, b.ID())
	st := b.Status()
	require.Equal(t, "second", st.Version)
	require.Equal(t, 2, st.Counts.Sessions)
	for _, row := range list[broker.SessionRow](p2, "sessions", "") {
		require.Equal(t, "test", row.Version, "of the client %q", row.Name)
	}
	require.Zero(t, st.Counts.Disconnected)
	require.Equal(t, 2, st.Counts.Names)
	require.Equal(t, 1, st.Counts.Leases)
	require.Equal(t, 1, st.Counts.AdoptedLanes)
	require.EqualValues(t, 2<<20, st.Memory.Granted)
	require.EqualValues(t, 3, p2.count(s.ref()), "two names and a lease")
	require.EqualValues(t, 2, q2.count(dead.Storages[0]))

	peers := p2.members(info)
	require.Greater(t, peers.LanesVersion, version)
	require.Equal(t, []groupOf{joinedGroup(&r)}, peers.Groups)
	require.Equal(t, []uint32{q.hello.Slot}, peers.Readers)
	require.Equal(t, private.ID, p2.open(protocol.TopicOpenRequest{Kind: "topic", Token: private.Token, Depth: ptr(uint32(3))}).ID)
	require.True(t, lane.Has(3))

	// Life goes on: the member's death gives its claim back, the ephemeral name
	// ends with its setter, and memory is freed in the end.
	require.False(t, area.Open(1))
	q2.must(protocol.OpBye, struct{}{}, nil)
	require.True(t, area.Open(1))
	p2.must(protocol.OpLeaseRelease, protocol.LeaseRef{Lease: lease.Lease}, nil)
	p2.must(protocol.OpNameDelete, protocol.NameRef{Name: "kept"}, nil)
	fresh := p2.alloc(4096)
	require.Greater(t, fresh.Serial, s.Serial)
	p2.must(protocol.OpBye, struct{}{}, nil)
	require.Zero(t, b.Status().Counts.Names)
}

func TestNewBrokerStartsAnewWhenNobodySurvived(t *testing.T) {
	old, socket, instance := first(t, "")
	c, _ := holding(t, socket, "stopped")
	c.kill()
	old.kill()
	b := next(t, socket, nil)()
	require.NotEqual(t, instance, b.ID())
	require.Zero(t, b.Status().Counts.Sessions)
	connect(t, socket, "fresh")
}

func TestClientOfAForgottenInstanceIsToldSoAndLeavesNothing(t *testing.T) {
	old, socket, instance := first(t, "")
	p := connect(t, socket, "a")
	old.kill()
	require.NoError(t, os.Remove(filepath.Join(filepath.Dir(socket), "state.json")))
	b := next(t, socket, nil)()
	h := helloOf("a")
	h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret}
	again := &peer{t: t, w: dial(t, socket)}
	e := again.refused(protocol.CodeExpired, protocol.OpHello, h)
	require.Contains(t, e.Message, instance)
	require.NotEqual(t, instance, b.ID())
	require.Zero(t, b.Status().Counts.Sessions)
}

// The machine's clock has been set back since a broker wrote when memory was made.
func TestAgesAfterTheClockWasSetBack(t *testing.T) {
	memory := filepath.Join(t.TempDir(), "memory")
	old, socket, _ := first(t, memory)
	c, _ := holding(t, socket, "setter")
	c.kill()
	old.kill()
	changeRecord(t, memory, protocol.BrokerSegments+protocol.SegmentMadeAt, uint64(time.Now().Add(time.Hour).UnixNano()))

	b := serve(t, func(c *broker.Config) { c.Dir, c.MemoryDir = filepath.Dir(socket), memory })
	p := connect(t, b.socket, "looks")
	rows := list[broker.SegmentRow](p, protocol.ListSegments, "")
	require.Len(t, rows, 1)
	require.GreaterOrEqual(t, rows[0].Age, 0.0)
	p.must(protocol.OpNameDelete, protocol.NameRef{Name: "kept"}, nil)
}

// hasOpen asks for the files of a chunk whose owner is suspended: it has its session file open, and
// not its segment's, which it may have in a socket and bring when it goes on.
func (p *peer) hasOpen(a protocol.AttachAnswer) {
	p.t.Helper()
	var r protocol.PeerReply
	p.must(protocol.OpPeer, peerOf(a.Owner, a.OwnerSerial), &r)
	require.Nil(p.t, r.Sessions[0].Error)
	p.refused(protocol.CodeBusy, protocol.OpSegment, protocol.Segment{Segment: a.Segment, Serial: a.SegmentSerial})
}

func TestStoppedClientKeepsWhatItHasAcrossBrokers(t *testing.T) {
	old, socket, _ := first(t, "")
	p := connect(t, socket, "a")
	c, r := holding(t, socket, "stopped")
	old.kill()
	p2, b := takenOver(t, socket, func(c *broker.Config) { c.RecoverWait = 5 * time.Second }, p)
	require.Equal(t, 2, b.Status().Counts.Sessions)
	require.Equal(t, 1, b.Status().Counts.Disconnected)
	require.EqualValues(t, 4096, b.Status().Memory.Granted)
	a := p2.attach(protocol.Ref{Serial: r.Serial, Index: r.Index})
	p2.hasOpen(a)
	list[struct{}](p2, "storages", "")
	list[struct{}](p2, "segments", "")
	c.kill()
	eventually(t, "its memory goes with it", func() bool { st := b.Status(); return freed(st) && st.Counts.Sessions == 1 })
	p2.alloc(4096)
}

func TestAllClientsMayStandStillWhileABrokerBegins(t *testing.T) {
	old, socket, instance := first(t, "")
	c, r := holding(t, socket, "stopped")
	old.kill()
	b := next(t, socket, func(c *broker.Config) { c.RecoverWait = 10 * time.Millisecond })()
	require.Equal(t, instance, b.ID())
	require.Equal(t, 1, b.Status().Counts.Disconnected)
	require.EqualValues(t, 4096, b.Status().Memory.Granted)
	p := connect(t, socket, "fresh")
	p.hasOpen(p.attach(protocol.Ref{Serial: r.Serial, Index: r.Index}))
	c.tell("go on")
	var count uint64
	c.hear(&count)
	require.EqualValues(t, 1, count)
	require.Zero(t, b.Status().Counts.Disconnected)
	c.kill()
	eventually(t, "its memory goes with it", func() bool { st := b.Status(); return freed(st) && st.Counts.Sessions == 1 })
}

// liarOf is a connection that resumes a session without its secret, and the hello it said.
func liarOf(t *testing.T, socket, instance string, serial uint64) (*peer, protocol.Hello) {
	h := helloOf("liar")
	h.Resume = &protocol.Resume{Instance: instance, Serial: serial, Secret: "00"}
	liar := &peer{t: t, w: dial(t, socket)}
	liar.must(protocol.OpHello, h, &liar.hello)
	return liar, h
}

// A connection that claims the session of another process is not believed: the memory of that
// process is taken from it, and it has its session when it comes.
func TestLiarThatSaysItIsBackIsNot(t *testing.T) {
	old, socket, instance := first(t, "")
	p := connect(t, socket, "a")
	old.kill()
	made := next(t, socket, func(c *broker.Config) { c.RecoverWait = 200 * time.Millisecond })
	liar, _ := liarOf(t, socket, instance, p.hello.Serial)
	require.True(t, liar.hello.Restore)
	_, err := liar.call(protocol.OpRestored, protocol.Restored{}, nil)
	require.ErrorIs(t, err, protocol.ErrExpired)
	require.Equal(t, instance, made().ID())
	p.returns(socket).resumed()
}

// What is handed over in the place of another session is taken neither while the broker gathers,
// once it has its file, nor later.
func TestLiarHandsNothingOver(t *testing.T) {
	old, socket, instance := first(t, "")
	p, q := connect(t, socket, "a"), connect(t, socket, "b")
	old.kill()
	made := next(t, socket, func(c *broker.Config) { c.RecoverWait = 200 * time.Millisecond })
	liar, h := liarOf(t, socket, instance, q.hello.Serial)
	second := &peer{t: t, w: dial(t, socket)}
	second.refused(protocol.CodeBrokerLost, protocol.OpHello, h) // one is asked at a time
	p.returns(socket).resumed()
	made()
	fake, err := sys.CreateMemfd("fake", 4096)
	require.NoError(t, err)
	defer fake.Close()
	items := []protocol.RestoreItem{{Role: strings.Repeat("x", 1<<19), Serial: 9}}
	_, err = liar.call(protocol.OpRestore, protocol.Restore{Items: items}, nil, fake)
	require.ErrorIs(t, err, protocol.ErrExpired)
}

func TestWrongFilesAreNotTakenOver(t *testing.T) {
	old, socket, instance := first(t, "")
	p := connect(t, socket, "a")
	old.kill()
	made := next(t, socket, nil)
	liar, _ := liarOf(t, socket, instance, p.hello.Serial)
	fake, err := sys.CreateMemfd("fake", protocol.BrokerBytes)
	require.NoError(t, err)
	defer fake.Close()
	_, err = liar.call(protocol.OpRestore, protocol.Restore{Items: []protocol.RestoreItem{{Role: "session", Serial: p.hello.Serial}}}, nil, fake)
	require.ErrorIs(t, err, protocol.ErrProtocol)
	liar, _ = liarOf(t, socket, instance, p.hello.Serial)
	_, err = liar.call(protocol.OpRestore, protocol.Restore{Items: []protocol.RestoreItem{{Role: "broker"}}}, nil, fake)
	require.ErrorIs(t, err, protocol.ErrProtocol)
	p2 := p.returns(socket)
	p2.resumed()
	require.Equal(t, instance, made().ID())
}

func TestNamesInFilesOutliveTheBroker(t *testing.T) {
	for _, end := range []string{"killed", "ended", "stopped"} {
		t.Run(end, func(t *testing.T) {
			memory := filepath.Join(t.TempDir(), "memory")
			var old *child
			var socket, instance string
			var clean *served
			if end == "killed" {
				old, socket, instance = first(t, memory)
			} else {
				clean = serve(t, func(c *broker.Config) { c.MemoryDir = memory })
				socket, instance = clean.socket, clean.ID()
			}
			c, r := holding(t, socket, "setter")
			_, err := broker.New(context.Background(), broker.Config{Dir: filepath.Join(shortdir.New(t), "x"), MemoryDir: memory, Memory: 1 << 20, Socket: socket})
			require.ErrorIs(t, err, protocol.ErrConflict)
			c.kill()
			switch end {
			case "killed":
				old.kill()
			case "ended":
				require.NoError(t, clean.stop())
			default:
				clean.Stop(false)
				require.NoError(t, clean.ended())
			}
			b := serve(t, func(c *broker.Config) { c.Dir, c.MemoryDir = filepath.Dir(socket), memory })
			require.Equal(t, instance, b.ID())
			require.Equal(t, 1, b.Status().Counts.Names)
			require.Zero(t, b.Status().Counts.Sessions)
			p := connect(t, b.socket, "getter")
			_, lane := p.nameLane("kept")
			require.True(t, lane.Has(1))
			require.EqualValues(t, 1, p.count(r))
			a := p.attach(protocol.Ref{Serial: r.Serial, Index: r.Index})
			fds, err := p.call(protocol.OpSegment, protocol.Segment{Segment: a.Segment, Serial: a.SegmentSerial}, nil)
			require.NoError(t, err)
			require.Equal(t, "bytes", string(p.mapRegion(fds[0], 4096, false).Bytes(0, 5)))
			fds[0].Close()
			p.must(protocol.OpNameDelete, protocol.NameRef{Name: "kept"}, nil)
			eventually(t, "memory is freed", func() bool { return freed(b.Status()) })
			p.must(protocol.OpBye, struct{}{}, nil)
			b.Stop(false)
			require.NoError(t, b.ended())
			left, err := os.ReadDir(memory)
			require.NoError(t, err)
			require.Empty(t, left, "without names and clients nothing stays")
		})
	}
}

func TestGroupThatALostAnswerGaveIsTakenBack(t *testing.T) {
	for _, memory := range []string{"", t.TempDir()} {
		old, socket, _ := first(t, memory)
		p, q := connect(t, socket, "a"), connect(t, socket, "b")
		open := protocol.TopicOpenRequest{Name: "t", Kind: "topic", Overwrite: ptr(false), Create: true}
		info := p.open(open)
		q.open(open)
		p.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr(""), Reader: 3}, nil)
		old.kill()
		made := next(t, socket, func(c *broker.Config) { c.MemoryDir = memory })
		q2, p2 := q.returns(socket), p.returnsWithout(socket, []protocol.Reading{{TopicRef: ref(info), Reader: 3}})
		q2.resumed()
		p2.resumed()
		made()
		require.Empty(t, q2.members(info).Groups, "no sender waits for a reader that knows nothing of it")
	}
}

func TestSuccessorKnowsWhoCameAndWentSinceTheStateWasWritten(t *testing.T) {
	old, socket, instance := first(t, "")
	stays := connect(t, socket, "stays")
	for range 300 {
		p := connect(t, socket, "passes")
		p.must(protocol.OpBye, struct{}{}, nil)
		p.w.Close()
		wire.CloseAll(p.fds)
	}
	last := connect(t, socket, "last")
	state := filepath.Join(filepath.Dir(socket), "state.json")
	info, err := os.Stat(state)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(16<<10), "it does not grow with sessions that have gone")
	old.kill()
	// A broker that was stopped by a full disk leaves a part of a line.
	f, err := os.OpenFile(state, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString(`{"opened":{"slot":3,`)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	made := next(t, socket, nil)
	stays.returns(socket)
	last.returns(socket)
	b := made() // which waits for these two alone
	require.Equal(t, instance, b.ID())
	require.Equal(t, 2, b.Status().Counts.Sessions)
}

func TestTakeoverIsGivenUpWithItsContext(t *testing.T) {
	old, socket, instance := first(t, "")
	p := connect(t, socket, "a")
	old.kill()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := broker.New(ctx, broker.Config{Dir: filepath.Dir(socket), Memory: 1 << 30, RecoverWait: time.Hour})
		ended <- err
	}()
	listens(t, socket)
	c := &peer{t: t, w: dial(t, socket)}
	h := helloOf("returning")
	h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: p.hello.Secret}
	_, err := c.call(protocol.OpHello, h, &c.hello)
	require.NoError(t, err)
	require.True(t, c.hello.Restore)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	// The next one finds everything as it was.
	made := next(t, socket, nil)
	p.returns(socket)
	require.Equal(t, instance, made().ID())
}
