package broker_test

import (
	"github.com/baton-ipc/baton/broker/record"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func topicOf(name string) protocol.TopicOpenRequest {
	return protocol.TopicOpenRequest{Name: name, Kind: protocol.KindTopic, Create: true}
}

func queueOf(name string) protocol.TopicOpenRequest {
	return protocol.TopicOpenRequest{Name: name, Kind: protocol.KindQueue, Create: true}
}

func TestTopicOpenFillsInDefaults(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	info := p.open(topicOf("batches"))
	require.Equal(t, protocol.TopicInfo{Topic: info.Topic, ID: info.ID, Name: "batches", Kind: "topic", Depth: 8, Slots: 16,
		Stride: 1088, Overwrite: true, Description: 1024, Linger: 60, Opening: info.Opening}, info)
	q := p.open(queueOf("work"))
	require.EqualValues(t, 64, q.Depth)
	require.False(t, q.Overwrite)
	require.NotEqual(t, info.ID, q.ID)

	at := protocol.BrokerTopics + uint64(info.Topic)*protocol.TopicRecordSize
	require.Equal(t, info.ID, p.broker.Load64(at+protocol.TopicID))
	require.Equal(t, "batches\x00", string(p.broker.Bytes(at+protocol.TopicName, 8)))
}

func TestTopicOpenWithOtherOptionsConflictsNamingBothAndTheMaker(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "maker"), connect(t, b.socket, "other")
	p.open(protocol.TopicOpenRequest{Name: "t", Kind: "topic", Depth: ptr(uint32(4)), Create: true})
	for _, c := range []struct {
		change     func(*protocol.TopicOpenRequest)
		have, want string
	}{
		{func(r *protocol.TopicOpenRequest) { r.Depth = ptr(uint32(9)) }, "4", "9"},
		{func(r *protocol.TopicOpenRequest) { r.Overwrite = ptr(false) }, "true", "false"},
		{func(r *protocol.TopicOpenRequest) { r.Redeliver = ptr(true) }, "false", "true"},
		{func(r *protocol.TopicOpenRequest) { r.Description = ptr(uint32(99)) }, "1024", "99"},
		{func(r *protocol.TopicOpenRequest) { r.Linger = ptr(3.5) }, "linger 1m0s", "3.5s was asked for"},
		{func(r *protocol.TopicOpenRequest) { r.Kind = "queue" }, "topic", "queue"},
	} {
		r := topicOf("t")
		c.change(&r)
		e := q.refused(protocol.CodeConflict, protocol.OpTopicOpen, r)
		require.Contains(t, e.Message, c.have)
		require.Contains(t, e.Message, c.want)
		require.Contains(t, e.Message, "maker")
	}
	require.EqualValues(t, 4, q.open(topicOf("t")).Depth, "an option left out takes what exists")
}

func TestTopicOpenRefusesBadOptionsAndNames(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	for _, r := range []protocol.TopicOpenRequest{
		{Name: "a.b", Kind: "topic", Create: true},
		{Name: "a//b", Kind: "topic", Create: true},
		{Name: "*", Kind: "topic", Create: true},
		{Name: "a", Kind: "name", Create: true},
		{Name: "a", Kind: "", Create: true},
		{Kind: "topic"},
		{Name: "a", Kind: "topic", Create: true, Depth: ptr(uint32(0))},
		{Name: "a", Kind: "topic", Create: true, Depth: ptr(uint32(1 << 30))},
		{Name: "a", Kind: "topic", Create: true, Description: ptr(uint32(1 << 30))},
		{Name: "a", Kind: "topic", Create: true, Depth: ptr(uint32(65536)), Description: ptr(uint32(60 << 10))},
		{Name: "a", Kind: "topic", Create: true, Linger: ptr(-1.0)},
		{Name: "a", Kind: "topic", Create: true, Redeliver: ptr(true)},
		{Name: "a", Kind: "queue", Create: true, Overwrite: ptr(true)},
	} {
		p.refused(protocol.CodeInvalid, protocol.OpTopicOpen, r)
	}
	p.refused(protocol.CodeNotFound, protocol.OpTopicOpen, protocol.TopicOpenRequest{Name: "none", Kind: "topic"})
	p.refused(protocol.CodeNotFound, protocol.OpTopicOpen, protocol.TopicOpenRequest{Token: "none", Kind: "topic"})
	require.Zero(t, b.Status().Counts.Topics)
}

func TestPrivateTopicIsFoundByTokenAlone(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	info := p.open(protocol.TopicOpenRequest{Kind: "queue", Create: true})
	require.Empty(t, info.Name)
	require.NotEmpty(t, info.Token)
	require.Equal(t, info.ID, q.open(protocol.TopicOpenRequest{Kind: "queue", Token: info.Token}).ID)
	require.NotEqual(t, info.Token, p.open(protocol.TopicOpenRequest{Kind: "queue", Create: true}).Token)
}

func TestNamespacesAreApart(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	h := helloOf("b")
	h.Namespace = "other"
	q := connectAs(t, b.socket, h)
	require.NotEqual(t, p.open(topicOf("t")).ID, q.open(topicOf("t")).ID)
	require.Len(t, list[struct{}](p, "topics", ""), 1)
	h.Namespace = "a.b"
	bad := &peer{t: t, w: dial(t, b.socket)}
	bad.refused(protocol.CodeInvalid, protocol.OpHello, h)
}

func TestReaderFindsTheWritersLane(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "writer"), connect(t, b.socket, "reader")
	info := p.open(topicOf("t"))
	q.open(topicOf("t"))
	var r protocol.TopicReadReply
	q.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info)}, &r)
	require.NotZero(t, r.Reader)
	require.Nil(t, r.Group)
	require.Empty(t, q.members(info).Lanes)
	at := protocol.BrokerTopics + uint64(info.Topic)*protocol.TopicRecordSize
	versions := func() (lanes, readers uint32) {
		both := q.broker.Load64(at + protocol.TopicVersion)
		return uint32(both), uint32(both >> 32)
	}
	before, readers := versions()
	bell := q.bells.Parking(q.hello.Slot).Begin()

	w := p.writer(info)
	w.post("hello", 0, nil)
	require.NotEqual(t, bell, q.rung(), "a reader is woken when a lane joins")
	now, same := versions()
	require.Greater(t, now, before)
	require.Equal(t, readers, same, "no reader came or went")
	peers := q.members(info)
	require.Len(t, peers.Lanes, 1)
	require.Equal(t, laneOf{w.num, "writer", record.Lane{Slot: p.hello.Slot, Serial: p.hello.Serial, Offset: w.at, State: protocol.LaneLive, Incarnation: w.inc}}, peers.Lanes[0])
	require.Equal(t, []uint32{q.hello.Slot}, peers.Readers)
	h, words, ok := q.laneOf(info, peers.Lanes[0]).Read(1, nil)
	require.True(t, ok)
	require.Equal(t, "hello", string(h.BodyOf(words)))
}

// What concerns senders alone does not wake readers, and the other way round: else each
// session that joins would have all others ask for the list of all.
func TestReadersAndWritersAreNotToldOfTheirLikes(t *testing.T) {
	b := serve(t, nil)
	writer, reader := connect(t, b.socket, "writer"), connect(t, b.socket, "reader")
	info := writer.open(topicOf("t"))
	writer.writer(info)
	reader.open(topicOf("t"))
	var read protocol.TopicReadReply
	reader.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info)}, &read)

	sleeps := func(p *peer) uint32 { return p.bells.Parking(p.hello.Slot).Begin() }
	ofWriter, ofReader := sleeps(writer), sleeps(reader)
	other := connect(t, b.socket, "other")
	other.open(topicOf("t"))
	other.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info)}, &read)
	require.Equal(t, ofWriter, writer.rung())
	require.Equal(t, ofReader, reader.rung())
	peers := writer.members(info)
	require.Len(t, peers.Readers, 2)

	third := connect(t, b.socket, "third")
	third.open(topicOf("t"))
	third.writer(info)
	after := writer.members(info)
	require.Greater(t, after.LanesVersion, peers.LanesVersion)
	require.Equal(t, peers.ReadersVersion, after.ReadersVersion)
	require.NotEqual(t, ofReader, reader.rung(), "a reader has to look at the new lane")
	require.Equal(t, 2, after.Writers)
	require.Len(t, after.Readers, 2)
}

func TestLaneMustLieInItsPlace(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	info, other := p.open(topicOf("t")), p.open(topicOf("u"))
	for _, offset := range []uint64{0, protocol.SessionRefcounts, protocol.SessionLanes + 8, protocol.SessionBytes, protocol.SessionBytes - 4096, 1 << 63, 1<<64 - 4096} {
		p.refused(protocol.CodeInvalid, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref(info), Offset: offset})
	}
	w := p.writer(info)
	p.refused(protocol.CodeInvalid, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref(other), Offset: w.at + 4096})
	p.refused(protocol.CodeInvalid, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref(info), Offset: p.nextLane})
	p.refused(protocol.CodeNotFound, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: protocol.TopicRef{Topic: 1 << 31, ID: 3}})
}

func TestTopicThatWasNotOpenedCannotBeJoined(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	info := p.open(protocol.TopicOpenRequest{Kind: "topic", Create: true})
	q.refused(protocol.CodeNotFound, protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info)})
}

func TestQueueMembersShareOneGroupFile(t *testing.T) {
	b := serve(t, nil)
	p, q, r := connect(t, b.socket, "put"), connect(t, b.socket, "get"), connect(t, b.socket, "get")
	info := p.open(queueOf("work"))
	w := p.writer(info)
	w.post("one", 0, nil)
	w.post("two", 0, nil)
	var one, two protocol.TopicReadReply
	q.open(queueOf("work"))
	r.open(queueOf("work"))
	read := protocol.TopicRead{TopicRef: ref(info), Group: ptr("queue")}
	fq, err := q.call(protocol.OpTopicRead, read, &one)
	require.NoError(t, err)
	defer wire.CloseAll(fq)
	fr, err := r.call(protocol.OpTopicRead, read, &two)
	require.NoError(t, err)
	defer wire.CloseAll(fr)
	require.EqualValues(t, 0, *one.Group)
	require.NotEqual(t, one.Member, two.Member)
	require.Equal(t, joinedGroup(&one), joinedGroup(&two))

	area := func(p *peer, r shm.Region) shm.GroupLane {
		a, err := shm.NewGroupLane(r, w.num, info.Slots)
		require.NoError(t, err)
		return a
	}
	bytes := int(protocol.GroupBytes(info.Slots))
	aq, ar := area(q, q.mapRegion(fq[0], bytes, true)), area(r, r.mapRegion(fr[0], bytes, true))
	require.EqualValues(t, 1, aq.Start(), "a queue's group is promised everything")
	i, hint, ok := aq.Next(2)
	require.True(t, ok)
	require.True(t, aq.Take(i, hint, one.Member, false))
	require.False(t, ar.Take(i, hint, two.Member, false))
	i, _, ok = ar.Next(2)
	require.True(t, ok)
	require.EqualValues(t, 2, i)

	q.refused(protocol.CodeInvalid, protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("other")})
	fp, err := p.call(protocol.OpTopicGroupFile, protocol.TopicGroupFile{TopicRef: ref(info), Group: 0}, nil)
	require.NoError(t, err)
	defer wire.CloseAll(fp)
	require.True(t, area(p, p.mapRegion(fp[0], bytes, true)).Done(1))
	p.refused(protocol.CodeNotFound, protocol.OpTopicGroupFile, protocol.TopicGroupFile{TopicRef: ref(info), Group: 5})
}

func TestNewGroupIsPromisedWhatComesAfterIt(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "w"), connect(t, b.socket, "r")
	open := protocol.TopicOpenRequest{Name: "t", Kind: "topic", Overwrite: ptr(false), Create: true}
	info := p.open(open)
	q.open(open)
	w := p.writer(info)
	w.post("before", 0, nil)
	var r protocol.TopicReadReply
	fds, err := q.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("")}, &r)
	require.NoError(t, err)
	defer wire.CloseAll(fds)
	file := q.mapRegion(fds[0], int(protocol.GroupBytes(info.Slots)), true)
	a, err := shm.NewGroupLane(file, w.num, info.Slots)
	require.NoError(t, err)
	require.EqualValues(t, 2, a.Start())

	late := connect(t, b.socket, "late")
	late.open(open)
	w2 := late.writer(info)
	a, err = shm.NewGroupLane(file, w2.num, info.Slots)
	require.NoError(t, err)
	require.EqualValues(t, 1, a.Start(), "a lane that joins later is promised whole")

	var named protocol.TopicReadReply
	q.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("g")}, &named)
	require.Len(t, q.members(info).Groups, 2)
	q.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "read", Reader: r.Reader}, nil)
	q.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "read", Reader: named.Reader}, nil)
	require.Empty(t, q.members(info).Groups, "a group ends with its last member")
	require.Equal(t, "r", q.members(info).LastLeft)
	q.refused(protocol.CodeNotFound, protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "read", Reader: r.Reader})
}

func TestReaderThatIsAskedForAgainIsTheSame(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	info := p.open(protocol.TopicOpenRequest{Name: "t", Kind: protocol.KindTopic, Overwrite: ptr(false), Create: true})
	join := func(group *string, number uint64) (r protocol.TopicReadReply) {
		fds, err := p.call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: group, Reader: number}, &r)
		require.NoError(t, err)
		require.Len(t, fds, 1)
		wire.CloseAll(fds)
		return r
	}
	first, other := join(ptr("g"), 7), join(ptr("g"), 0)
	again := join(ptr("g"), 7)
	require.EqualValues(t, 7, again.Reader)
	require.Equal(t, first.Member, again.Member)
	require.NotEqual(t, first.Member, other.Member)
	join(ptr(""), 8)
	join(ptr(""), 8)
	require.Len(t, p.members(info).Groups, 2)
	for _, number := range []uint64{7, 8, other.Reader} {
		p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "read", Reader: number}, nil)
	}
	require.Empty(t, p.members(info).Groups)
	p.refused(protocol.CodeInvalid, protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("g"), Reader: 1 << 53})
}

func TestGroupOnATopicThatOverwritesIsRefused(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	info := p.open(topicOf("t"))
	e := p.refused(protocol.CodeInvalid, protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("g")})
	require.Contains(t, e.Remedy, "lossless")
	require.NotContains(t, e.Remedy, "=", "it is read in every language")
}

func TestTooManyGroupsIsAnError(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	info := p.open(protocol.TopicOpenRequest{Name: "t", Kind: "topic", Overwrite: ptr(false), Create: true})
	for range protocol.MaxGroups {
		p.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("")}, nil)
	}
	p.refused(protocol.CodeTooMany, protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("")})
}

// A group has so many members and no more: one that is refused changes nothing, and when one
// leaves there is room.
func TestTooManyMembersIsAnError(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	info := p.open(protocol.TopicOpenRequest{Name: "t", Kind: "topic", Overwrite: ptr(false), Create: true})
	q.open(protocol.TopicOpenRequest{Name: "t", Kind: "topic", Overwrite: ptr(false), Create: true})
	read := protocol.TopicRead{TopicRef: ref(info), Group: ptr("g")}
	var last protocol.TopicReadReply
	for range protocol.MaxMembers {
		p.must(protocol.OpTopicRead, read, &last)
	}
	e := p.refused(protocol.CodeTooMany, protocol.OpTopicRead, read)
	require.Contains(t, e.Message, "4095 members")
	q.refused(protocol.CodeTooMany, protocol.OpTopicRead, read)
	q.must(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref(info), Group: ptr("another")}, nil)
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "read", Reader: last.Reader}, nil)
	q.must(protocol.OpTopicRead, read, nil)
	p.refused(protocol.CodeTooMany, protocol.OpTopicRead, read)
}

func TestClosedTopicRefusesWriters(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	info := p.open(queueOf("work"))
	theirs := q.open(queueOf("work"))
	p.must(protocol.OpTopicClose, ref(info), nil)
	require.True(t, q.members(info).Closed)
	q.refused(protocol.CodeClosed, protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref(info), Offset: q.nextLane})
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "open", Opening: info.Opening}, nil)
	q.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "open", Opening: theirs.Opening}, nil)
	require.NotEqual(t, info.ID, q.open(queueOf("work")).ID, "closed, empty and left by all: the name is free again")
}

func TestTopicLingersWithoutAnybody(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	info := p.open(topicOf("t"))
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "open", Opening: info.Opening}, nil)
	require.Equal(t, info.ID, q.open(topicOf("t")).ID)
}

func TestTopicGoesAfterItsLinger(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	open := topicOf("t")
	open.Linger = ptr(0.01)
	info := p.open(open)
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "open", Opening: info.Opening}, nil)
	eventually(t, "the topic goes", func() bool { return b.Status().Counts.Topics == 0 })
	p.refused(protocol.CodeNotFound, protocol.OpTopicOpen, protocol.TopicOpenRequest{Name: "t", Kind: "topic"})
}

func TestTopicWithoutLingerGoesAtOnce(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	open := topicOf("t")
	open.Linger = ptr(0.0)
	info := p.open(open)
	p.must(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: ref(info), Role: "open", Opening: info.Opening}, nil)
	require.Zero(t, b.Status().Counts.Topics)
}
