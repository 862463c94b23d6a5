package broker_test

import (
	"encoding/json"
	"fmt"
	"github.com/baton-ipc/baton/broker/record"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// sent is what a sending child says about itself.
type sent struct {
	Slot     uint32
	Serial   uint64
	Info     protocol.TopicInfo
	Offset   uint64
	Storages []protocol.StorageRef
}

func init() {
	// sender sends three messages with a storage each: named in the slot, named
	// twice, and in a spill. It drops what it held itself and stays.
	parts["sender"] = func(c *played) {
		p := connect(c, c.socket, "sender")
		open := queueOf("work")
		if c.hear() == "topic\n" {
			open = topicOf("batches")
			open.Depth = ptr(uint32(4))
		}
		info := p.open(open)
		w := p.writer(info)
		a := p.alloc(1 << 20)
		copy(a.region.Bytes(0, 5), "first")
		s2, s3 := p.second(a, 1, 4096, 4096), p.second(a, 2, 8192, 4096)
		spill := p.second(a, 3, 16384, 4096)
		data, err := protocol.AppendSpill(nil, []protocol.Ref{s3.Ref}, []byte("long"))
		require.NoError(c, err)
		copy(a.region.Bytes(16384, 4096), data)
		w.post("one", 0, []protocol.Ref{a.Ref})
		w.post("two", 0, []protocol.Ref{a.Ref, s2.Ref})
		w.post("", protocol.SlotSpilled, []protocol.Ref{spill.Ref}, s3.Ref)
		out := sent{Slot: p.hello.Slot, Serial: p.hello.Serial, Info: info, Offset: w.at}
		for _, s := range []storage{a, s2, s3, spill} {
			p.refcounts.Drop(s.Index)
			out.Storages = append(out.Storages, s.ref())
		}
		c.tell(out)
		if c.hear() == "bye\n" {
			require.True(c, p.bye(), "its refcounts count what its lane named")
			w.drop()
			require.False(c, p.bye())
			c.tell("gone")
			c.hear()
		}
	}
	// holds attaches to a storage and counts it, closes its session if told to, and
	// stays.
	parts["holds"] = func(c *played) {
		var r protocol.StorageRef
		var reply struct{ Slot uint32 }
		require.NoError(c, json.Unmarshal([]byte(c.hear()), &r))
		p := connect(c, c.socket, "holds")
		p.attach(protocol.Ref{Serial: r.Serial, Index: r.Index})
		require.NoError(c, p.refcounts.Take(r.Index))
		reply.Slot = p.hello.Slot
		if c.hear() == "bye\n" {
			require.True(c, p.bye())
		}
		c.tell(reply)
		c.hear()
	}
	// hostile fills a lane with nonsense and stays.
	parts["hostile"] = func(c *played) {
		p := connect(c, c.socket, "hostile")
		info := p.open(topicOf("t"))
		w := p.writer(info)
		a := p.alloc(4096)
		put := func(number uint64, h shm.SlotHead, refs ...protocol.Ref) {
			var words []uint64
			for _, r := range refs {
				words = shm.AppendRef(words, r)
			}
			h.Nref = uint16(len(refs))
			w.lane.Write(number, &h, words)
			p.file.Store64(w.at+protocol.LaneSlotsAt+number%uint64(info.Slots)*uint64(info.Stride), number)
		}
		good := a.Ref
		other, old, none, far := good, good, good, good
		other.Serial++
		old.Generation = 7
		none.Serial = 0
		far.Index = 1 << 31
		put(1, shm.SlotHead{}, good)
		put(2, shm.SlotHead{}, other)
		put(3, shm.SlotHead{}, old)
		put(4, shm.SlotHead{}, none)
		put(5, shm.SlotHead{}, far)
		put(6, shm.SlotHead{Flags: protocol.SlotSpilled}, good)       // no spill stands there
		put(7, shm.SlotHead{Flags: protocol.SlotSpilled}, good, good) // a spill is alone
		put(8, shm.SlotHead{Body: 1 << 31}, good)
		put(1<<60+9, shm.SlotHead{}, good)
		p.file.Store64(w.at+protocol.LaneHead, 8)
		c.tell(a.ref())
		c.hear()
	}
	// reader joins the queue, takes and claims the first message without
	// acknowledging it, and stays.
	parts["claimer"] = func(c *played) {
		p := connect(c, c.socket, "claimer")
		info := p.open(protocol.TopicOpenRequest{Name: "work", Kind: protocol.KindQueue})
		var r protocol.TopicReadReply
		fds, err := p.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("queue")}, &r)
		require.NoError(c, err)
		a, err := shm.NewGroupLane(p.mapRegion(fds[0], int(protocol.GroupBytes(info.Slots)), true), p.members(info).Lanes[0].Number, info.Slots)
		require.NoError(c, err)
		i, hint, ok := a.Next(1)
		require.True(c, ok)
		require.True(c, a.Take(i, hint, r.Member, true))
		c.tell(i)
		c.hear()
	}
}

func (p *peer) count(r protocol.StorageRef) uint64 {
	return p.brokerFile.Load64(protocol.SessionRefcounts+uint64(r.Index)*8) & protocol.CountMask
}

// takeAll receives from a queue's adopted lane what its dead sender left.
func takeAll(t *testing.T, p *peer, s sent, n int) {
	t.Helper()
	var r protocol.TopicReadReply
	fds, err := p.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(s.Info), Group: ptr("queue")}, &r)
	require.NoError(t, err)
	defer wire.CloseAll(fds)
	lanes := p.members(s.Info).Lanes
	require.Len(t, lanes, 1)
	lane := p.laneOf(s.Info, lanes[0])
	a, err := shm.NewGroupLane(p.mapRegion(fds[0], int(protocol.GroupBytes(s.Info.Slots)), true), lanes[0].Number, s.Info.Slots)
	require.NoError(t, err)
	for want := 1; want <= n; want++ {
		i, hint, ok := a.Next(lane.Head())
		require.True(t, ok)
		require.EqualValues(t, want, i)
		require.True(t, lane.Has(i))
		require.True(t, a.Take(i, hint, r.Member, false))
	}
}

func TestMessagesOfADeadSenderStayUntilTheyAreTaken(t *testing.T) {
	for _, end := range []string{"kill", "bye"} {
		t.Run(end, func(t *testing.T) {
			b := serve(t, nil)
			p := connect(t, b.socket, "observer")
			p.open(queueOf("work"))
			c := start(t, b.socket, "sender")
			c.tell("queue")
			var s sent
			c.hear(&s)
			require.Zero(t, p.count(s.Storages[0]))
			if end == "kill" {
				c.kill()
			} else {
				c.tell("bye")
				var gone string
				c.hear(&gone)
			}
			eventually(t, "the session has ended", func() bool { return b.Status().Counts.Sessions == 1 })
			var happened protocol.EventsReply
			p.must(protocol.OpEvents, protocol.Events{}, &happened)
			last := happened.Events[len(happened.Events)-1]
			require.Equal(t, map[string]string{"kill": "death", "bye": "session"}[end], last.Kind)
			require.Contains(t, string(last.Details), `"kept_messages":3,"kept_lanes":1`)
			if end == "kill" { // what it had sent was counted by it
				require.Contains(t, string(last.Details), fmt.Sprintf(`"held_storages":4,"held_bytes":%d`, 1<<20+3*4096))
			}
			lanes := p.members(s.Info).Lanes
			require.Len(t, lanes, 1)
			require.NotZero(t, lanes[0].Incarnation)
			lanes[0].Incarnation = 0
			require.Equal(t, laneOf{0, "sender", record.Lane{Slot: s.Slot, Serial: s.Serial, Offset: s.Offset, State: protocol.LaneAdopted}}, lanes[0])
			for i, want := range []uint64{2, 1, 1, 1} {
				require.Equal(t, want, p.count(s.Storages[i]), "storage %d", i)
			}
			a := p.attach(protocol.Ref{Serial: s.Storages[0].Serial, Index: s.Storages[0].Index})
			require.Equal(t, s.Serial, a.OwnerSerial)
			fds, err := p.call(protocol.OpSegment, protocol.Segment{Segment: a.Segment, Serial: a.SegmentSerial}, nil)
			require.NoError(t, err)
			require.Equal(t, "first", string(p.mapRegion(fds[0], 4096, false).Bytes(0, 5)))
			wire.CloseAll(fds)
			require.EqualValues(t, 1<<20, b.Status().Memory.Orphans)

			takeAll(t, p, s, 3)
			eventually(t, "memory is freed", func() bool { st := b.Status(); return freed(st) && st.Counts.AdoptedLanes == 0 })
			require.Empty(t, p.members(s.Info).Lanes)
			p.lacks(protocol.CodeExpired, s.Slot, s.Serial)
		})
	}
}

func TestMemoryOfTheDeadStaysWhileHeld(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "holder")
	p.open(queueOf("work"))
	c := start(t, b.socket, "sender")
	c.tell("queue")
	var s sent
	c.hear(&s)
	p.attach(protocol.Ref{Serial: s.Storages[0].Serial, Index: s.Storages[0].Index})
	require.NoError(t, p.refcounts.Take(s.Storages[1].Index))
	c.kill()
	eventually(t, "the session has ended", func() bool { return b.Status().Counts.Sessions == 1 })
	takeAll(t, p, s, 3)
	eventually(t, "the lane goes", func() bool { return b.Status().Counts.AdoptedLanes == 0 })
	rows := list[struct {
		Index   uint32
		Orphan  bool
		Creator string
		Holders []struct {
			Session string
			Count   uint64
		}
	}](p, "storages", "")
	require.Len(t, rows, 1)
	require.Equal(t, s.Storages[1].Index, rows[0].Index)
	require.True(t, rows[0].Orphan)
	require.Equal(t, "sender", rows[0].Creator)
	require.Equal(t, "holder", rows[0].Holders[0].Session)
	eventually(t, "an orphan counts in the whole quota with the pages that are held", func() bool { return b.Status().Memory.Granted == protocol.PageBytes })
	p.refcounts.Drop(s.Storages[1].Index)
	eventually(t, "memory is freed", func() bool { return freed(b.Status()) })
}

func TestAdoptedMessagesOfATopicGiveWayToNewerOnes(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "next")
	c := start(t, b.socket, "sender")
	c.tell("topic")
	var s sent
	c.hear(&s)
	info := p.open(topicOf("batches"))
	w := p.writer(info)
	c.kill()
	eventually(t, "the session has ended", func() bool { return b.Status().Counts.Sessions == 1 })
	require.EqualValues(t, 2, p.count(s.Storages[0]))
	w.post("", 0, nil)
	w.post("", 0, nil) // one, two, three, four, five: the first has depth 4 newer ones
	eventually(t, "the oldest goes", func() bool { return p.count(s.Storages[0]) == 1 })
	require.EqualValues(t, 1, p.count(s.Storages[1]))
	w.post("", 0, nil)
	w.post("", 0, nil)
	eventually(t, "all go", func() bool { return b.Status().Counts.AdoptedLanes == 0 })
	eventually(t, "memory is freed", func() bool { return freed(b.Status()) })
	require.Len(t, p.members(info).Lanes, 1)
}

func TestAdoptedMessagesGoWithTheirTopic(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "observer")
	open := queueOf("work")
	open.Linger = ptr(0.0)
	mine := p.open(open)
	c := start(t, b.socket, "sender")
	c.tell("queue")
	var s sent
	c.hear(&s)
	c.kill()
	eventually(t, "the session has ended", func() bool { return b.Status().Counts.Sessions == 1 })
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(s.Info), Role: "open", Opening: mine.Opening}, nil)
	require.Zero(t, p.count(s.Storages[0]))
	eventually(t, "memory is freed", func() bool { return freed(b.Status()) })
}

func TestNonsenseInTheLaneOfTheDeadIsDropped(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "observer")
	info := p.open(topicOf("t"))
	c, r := holding(t, b.socket, "hostile")
	lane := p.laneOf(info, p.members(info).Lanes[0])
	require.EqualValues(t, 1<<60+9, lane.Seq(9))
	c.kill()
	eventually(t, "the session has ended", func() bool { return b.Status().Counts.Sessions == 1 })
	require.EqualValues(t, 1, p.count(r), "only the message that makes sense is kept")
	require.True(t, lane.Has(1))
	for i := uint64(2); i <= 9; i++ {
		require.Zero(t, lane.Seq(i), "slot %d", i)
	}
}

func TestMessagePublishedWithoutItsHeadIsStillSent(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "observer"), connect(t, b.socket, "sender")
	info := p.open(queueOf("work"))
	q.open(queueOf("work"))
	w := q.writer(info)
	lane := p.laneOf(info, p.members(info).Lanes[0])
	w.post("one", 0, nil)
	q.file.Store64(w.at+protocol.LaneHead, 0) // died between the two stores of a publish
	q.must(protocol.OpBye, struct{}{}, nil)
	require.EqualValues(t, 1, lane.Head())
	require.Len(t, p.members(info).Lanes, 1)
}

func TestClaimsOfADeadMemberGoToAnother(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "sender")
	open := queueOf("work")
	open.Redeliver = ptr(true)
	info := p.open(open)
	w := p.writer(info)
	w.post("one", 0, nil)
	fds, err := p.call(protocol.OpTopicGroupFile, protocol.TopicGroupFile{TopicRef: ref(info)}, nil)
	require.NoError(t, err)
	defer wire.CloseAll(fds)
	a, err := shm.NewGroupLane(p.mapRegion(fds[0], int(protocol.GroupBytes(info.Slots)), true), w.num, info.Slots)
	require.NoError(t, err)
	c := start(t, b.socket, "claimer")
	var i uint64
	c.hear(&i)
	require.EqualValues(t, 1, i)
	require.False(t, a.Open(1))
	bell := p.rung()
	c.kill()
	eventually(t, "the claim is freed", func() bool { return a.Open(1) })
	eventually(t, "the others are woken", func() bool { return p.rung() != bell })
	i, _, ok := a.Next(1)
	require.True(t, ok)
	require.EqualValues(t, 1, i)
	require.Equal(t, "claimer", p.members(info).LastLeft)
}

func TestRefcountsOfTheDeadAreEmptiedAndDetached(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "owner")
	s := p.alloc(4096)
	p.refcounts.Drop(s.Index)
	for _, end := range []string{"stay", "bye"} { // a closed session dies, too
		q := start(t, b.socket, "holds")
		text, err := json.Marshal(s.ref())
		require.NoError(t, err)
		q.tell(string(text))
		q.tell(end)
		var is struct{ Slot uint32 }
		q.hear(&is)
		p.refused(protocol.CodeBusy, protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial})
		epoch := p.chunks.Epoch(s.Index / 128)
		q.kill()
		eventually(t, "the session has ended", func() bool { return !p.chunks.IsAttached(s.Index/128, is.Slot) })
		require.Greater(t, p.chunks.Epoch(s.Index/128), epoch)
	}
	p.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
}

func TestWriterThatLeavesIsAdoptedWhileItsSessionLives(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "writer"), connect(t, b.socket, "reader")
	info := p.open(queueOf("work"))
	q.open(queueOf("work"))
	w := p.writer(info)
	s := p.alloc(4096)
	w.post("one", 0, []protocol.Ref{s.Ref})
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "write", Offset: w.at}, nil)
	require.EqualValues(t, 1, p.count(s.ref()))
	p.refcounts.Drop(s.Index) // what the slot named is the broker's to pay
	p.refcounts.Drop(s.Index)
	require.EqualValues(t, protocol.LaneAdopted, q.members(info).Lanes[0].State)
	p.refused(protocol.CodeInvalid, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref(info), Offset: w.at})
	w2 := p.writer(info)
	require.NotEqual(t, w.num, w2.num)
	require.NotEqual(t, w.at, w2.at)
}

func TestDisconnectedSessionKeepsAllAndResumes(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	q := connect(t, b.socket, "b")
	s := p.alloc(4096)
	p.w.Close()
	eventually(t, "it is noticed", func() bool { return b.Status().Counts.Disconnected == 1 })
	require.EqualValues(t, 1, p.refcounts.Count(s.Index))
	q.attach(s.Ref)

	h := helloOf("a")
	h.Resume = &protocol.Resume{Instance: p.hello.Instance, Serial: p.hello.Serial, Secret: "00"}
	wrong := &peer{t: t, w: dial(t, b.socket)}
	wrong.refused(protocol.CodeExpired, protocol.OpHello, h)
	require.Equal(t, 2, b.Status().Counts.Sessions)
	h.Resume.Secret = p.hello.Secret
	again := connectAs(t, b.socket, h)
	require.True(t, again.hello.Resumed)
	require.Equal(t, p.hello.Slot, again.hello.Slot)
	require.Equal(t, p.hello.Serial, again.hello.Serial)
	p.refcounts.Drop(s.Index)
	again.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	require.Zero(t, b.Status().Counts.Disconnected)
}

func TestSlotsAreReusedWithNewSerials(t *testing.T) {
	b := serve(t, nil)
	serials := map[uint64]bool{}
	for range 30 {
		p := connect(t, b.socket, "x")
		require.False(t, serials[p.hello.Serial])
		serials[p.hello.Serial] = true
		p.must(protocol.OpBye, struct{}{}, nil)
	}
	require.Zero(t, b.Status().Counts.Sessions)
}
