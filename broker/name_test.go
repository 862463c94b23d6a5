package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func init() {
	// setter sets a name and an ephemeral one, and stays.
	parts["setter"] = func(c *played) {
		p := connect(c, c.socket, "setter")
		s := p.alloc(4096)
		copy(s.region.Bytes(0, 5), "bytes")
		for _, ephemeral := range []bool{false, true} {
			n := nameSet("kept", s)
			if ephemeral {
				n = nameSet("passing", s)
			}
			n.Ephemeral = ephemeral
			p.must(protocol.OpNameSet, n, nil)
		}
		p.refcounts.Drop(s.Index)
		c.tell(s.ref())
		c.hear()
	}
}

func nameSet(name string, storages ...storage) protocol.NameSet {
	n := protocol.NameSet{Name: name, Tensors: 1, Bytes: 4096, Body: []byte("body")}
	for _, s := range storages {
		n.Refs = append(n.Refs, s.ref())
	}
	return n
}

// nameLane finds where a name's revisions stand.
func (p *peer) nameLane(name string) (protocol.TopicInfo, shm.Lane) {
	p.t.Helper()
	var info protocol.TopicInfo
	p.must(protocol.OpNameOpen, protocol.NameRef{Name: name}, &info)
	require.Equal(p.t, protocol.KindName, info.Kind)
	lanes := p.members(info).Lanes
	require.Len(p.t, lanes, 1)
	require.Zero(p.t, lanes[0].Slot)
	lane, err := shm.NewLane(p.brokerFile, lanes[0].Offset, info.Slots, info.Stride)
	require.NoError(p.t, err)
	return info, lane
}

// A name is written by the broker alone, so that sessions that watch it need not know of each
// other: neither the version that they compare nor their bells change.
func TestReadersOfANameDisturbNoOther(t *testing.T) {
	b := serve(t, nil)
	watcher, other := connect(t, b.socket, "watcher"), connect(t, b.socket, "other")
	info, _ := watcher.nameLane("weights/actor")
	watcher.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info)}, nil)
	before := watcher.members(info)
	require.Len(t, before.Readers, 1)
	bell := watcher.bells.Parking(watcher.hello.Slot).Begin()

	other.nameLane("weights/actor")
	var r protocol.TopicReadReply
	other.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info)}, &r)
	require.Len(t, watcher.members(info).Readers, 2)
	other.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: protocol.RoleNameRead, Reader: r.Reader}, nil)
	other.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info)}, nil)
	other.must(protocol.OpBye, nil, nil)
	eventually(t, "the other has left", func() bool { return len(watcher.members(info).Readers) == 1 })
	require.Equal(t, before.LanesVersion, watcher.members(info).LanesVersion)
	require.Equal(t, bell, watcher.rung())
}

func TestNamePublishesRevisionsAndWakesWatchers(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "setter"), connect(t, b.socket, "watcher")
	info, lane := q.nameLane("weights/actor")
	require.Zero(t, lane.Head())
	q.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info)}, nil)
	parking := q.bells.Parking(q.hello.Slot)
	bell := parking.Begin()
	q.bells.Waits(info.Topic).All().Add(q.hello.Slot)

	s := p.alloc(4096)
	var r protocol.NameSetReply
	p.must(protocol.OpNameSet, nameSet("weights/actor", s), &r)
	require.EqualValues(t, 1, r.Revision)
	require.NotEqual(t, bell, q.rung())
	require.EqualValues(t, 1, p.count(s.ref()))
	h, words, ok := lane.Read(1, nil)
	require.True(t, ok)
	require.Equal(t, "body", string(h.BodyOf(words)))
	require.Equal(t, []protocol.Ref{s.Ref}, h.ParseRefs(nil, words))
	require.Zero(t, h.Flags, "a published revision is read-only")

	s2 := p.second(s, 1, 0, 4096)
	live := nameSet("weights/actor", s2)
	live.Live = true
	p.must(protocol.OpNameSet, live, &r)
	require.EqualValues(t, 2, r.Revision)
	require.Zero(t, p.count(s.ref()))
	require.EqualValues(t, 1, p.count(s2.ref()))
	require.False(t, lane.Has(1))
	h, _, ok = lane.Read(2, nil)
	require.True(t, ok)
	require.EqualValues(t, protocol.SlotWritable|protocol.SlotLive, h.Flags)

	rows := list[struct {
		Name     string
		Revision uint64
		Live     bool
		Setter   string
		Readers  int
	}](p, "names", "weights/*")
	require.Len(t, rows, 1)
	require.Equal(t, "weights/actor", rows[0].Name)
	require.EqualValues(t, 2, rows[0].Revision)
	require.True(t, rows[0].Live)
	require.Equal(t, 1, rows[0].Readers)
	require.Empty(t, list[struct{}](p, "names", "other/*"))
}

func TestNameOutlivesItsSetterAndEphemeralDoesNot(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "getter")
	c, r := holding(t, b.socket, "setter")
	require.EqualValues(t, 2, p.count(r))
	c.kill()
	eventually(t, "the session has ended", func() bool { return b.Status().Counts.Sessions == 1 })
	require.EqualValues(t, 1, p.count(r))
	require.Equal(t, 1, b.Status().Counts.Names)
	_, lane := p.nameLane("kept")
	require.True(t, lane.Has(1))
	a := p.attach(protocol.Ref{Serial: r.Serial, Index: r.Index})
	fds, err := p.call(protocol.OpSegment, protocol.Segment{Segment: a.Segment, Serial: a.SegmentSerial}, nil)
	require.NoError(t, err)
	require.Equal(t, "bytes", string(p.mapRegion(fds[0], 4096, false).Bytes(0, 5)))
	fds[0].Close()
	p.must(protocol.OpNameDelete, protocol.NameRef{Name: "kept"}, nil)
	p.refused(protocol.CodeNotFound, protocol.OpNameDelete, protocol.NameRef{Name: "kept"})
	eventually(t, "memory is freed", func() bool { return freed(b.Status()) })
}

func TestNameOfAnExpiredStorageIsRefused(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "setter")
	s := p.alloc(4096)
	for _, change := range []func(*storage){
		func(s *storage) { s.Generation = 2 },
		func(s *storage) { s.Generation = 0 },
		func(s *storage) { s.Serial++ },
		func(s *storage) { s.Serial = 0 },
		func(s *storage) { s.Index += protocol.ChunkIndices },
		func(s *storage) { s.Index = 1<<32 - 1 },
	} {
		bad := s
		change(&bad)
		p.refused(protocol.CodeExpired, protocol.OpNameSet, nameSet("n", s, bad))
		require.Zero(t, p.count(s.ref()), "what was counted is undone")
	}
	p.file.Or64(protocol.SessionEntries+uint64(s.Index)*protocol.EntrySize+protocol.EntryGeneration, protocol.Retiring)
	p.refused(protocol.CodeExpired, protocol.OpNameSet, nameSet("n", s))
	require.Zero(t, b.Status().Counts.Names)
}

func TestLargeBundleIsSpilled(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "setter")
	s := p.alloc(1 << 20)
	spill := p.second(s, 1, 4096, 8192)
	inner := p.second(s, 2, 16384, 4096)
	n := nameSet("n", spill, s, inner)
	p.refused(protocol.CodeInvalid, protocol.OpNameSet, protocol.NameSet{Name: "n", Body: make([]byte, 2000)})
	n.Spilled = true
	p.refused(protocol.CodeInvalid, protocol.OpNameSet, n)
	n.Body = nil
	p.refused(protocol.CodeHandle, protocol.OpNameSet, n)
	data, err := protocol.AppendSpill(nil, []protocol.Ref{s.Ref, inner.Ref}, make([]byte, 4000))
	require.NoError(t, err)
	copy(s.region.Bytes(4096, 8192), data)
	p.must(protocol.OpNameSet, n, nil)
	for _, st := range []storage{s, spill, inner} {
		require.EqualValues(t, 1, p.count(st.ref()))
	}
	_, lane := p.nameLane("n")
	h, words, ok := lane.Read(1, nil)
	require.True(t, ok)
	require.EqualValues(t, protocol.SlotSpilled, h.Flags)
	require.Equal(t, []protocol.Ref{spill.Ref}, h.ParseRefs(nil, words))
	n.Refs = n.Refs[:2]
	p.refused(protocol.CodeInvalid, protocol.OpNameSet, n)
	p.must(protocol.OpNameDelete, protocol.NameRef{Name: "n"}, nil)
	for _, st := range []storage{s, spill, inner} {
		require.Zero(t, p.count(st.ref()))
	}
}

func TestNameThatNobodySetGoesWithItsLastOpener(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	info, _ := p.nameLane("n")
	p.refused(protocol.CodeNotFound, protocol.OpNameDelete, protocol.NameRef{Name: "n"})
	p.refused(protocol.CodeInvalid, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref(info), Offset: p.nextLane})
	p.refused(protocol.CodeInvalid, protocol.OpTopicClose, ref(info))
	require.Empty(t, list[struct{}](p, "names", ""))
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "open", Opening: info.Opening}, nil)
	again, _ := p.nameLane("n")
	require.NotEqual(t, info.ID, again.ID)
}

func TestNameSetAfterDeleteGoesOn(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	_, lane := p.nameLane("n")
	var r protocol.NameSetReply
	p.must(protocol.OpNameSet, nameSet("n"), &r)
	p.must(protocol.OpNameDelete, protocol.NameRef{Name: "n"}, nil)
	require.False(t, lane.Has(1))
	p.must(protocol.OpNameSet, nameSet("n"), &r)
	require.EqualValues(t, 2, r.Revision)
	require.True(t, lane.Has(2))
}
