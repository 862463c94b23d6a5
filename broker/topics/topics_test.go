package topics_test

import (
	"testing"
	"time"

	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/parttest"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
	"github.com/stretchr/testify/require"
)

// world has topics over a memory and real files, without a broker.
type world struct {
	t     *testing.T
	store *sessionfiles.Store
	m     *memory.Memory
	ts    *topics.Topics
	told  told
	slots uint32
}

// told is a watcher that counts what it is told.
type told struct{ changed, named, adopted, understood int }

func (w *told) Changed()                           { w.changed++ }
func (w *told) Named(*topics.Topic)                { w.named++ }
func (w *told) Adopted()                           { w.adopted++ }
func (w *told) Provided()                          {}
func (w *told) Understood()                        { w.understood++ }
func (w *told) EndedAgreed(string, string, uint64) {}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, store: parttest.Store(t)}
	w.m = parttest.Memory(t, w.store, memory.Limits{})
	w.ts = w.topics()
	return w
}

func (w *world) topics() *topics.Topics {
	ts := topics.New(w.store, w.m, parttest.Clock(), parttest.Log, &w.told)
	w.t.Cleanup(ts.Close)
	return ts
}

// member is a session with both of its rooms.
type member struct {
	*memory.Account
	party *topics.Party
	trim  int
}

func (s *member) Trim()         { s.trim++ }
func (s *member) Collect()      {}
func (s *member) Reclaim() bool { return false }
func (s *member) Room()         {}

func (w *world) session(name string) *member {
	w.t.Helper()
	w.slots++
	s := &member{}
	p := parttest.SessionFile(w.t, w.store, w.slots, name)
	s.Account, s.party = w.m.Open(p, s), w.ts.Open(p, "default", s)
	return s
}

// end ends a session in the order of a death.
func (w *world) end(s *member) {
	w.ts.Leave(s.party)
	w.m.Orphan(s.Account)
	w.ts.DropNames(s.party)
	w.ts.Finish(s.party)
	w.m.End(s.Account)
	w.m.Forget(s.Account)
	s.Dead = true
	w.store.DropRemains(s.SessionFile)
}

func (w *world) open(s *member, kind string, change func(*protocol.TopicOpenRequest)) protocol.TopicInfo {
	w.t.Helper()
	r := protocol.TopicOpenRequest{Kind: kind, Name: "a/b", Create: true}
	if change != nil {
		change(&r)
	}
	info, err := w.ts.OpenTopic(s.party, &r)
	require.NoError(w.t, err)
	return info
}

func refOf(i protocol.TopicInfo) protocol.TopicRef {
	return protocol.TopicRef{Topic: i.Topic, ID: i.ID}
}

// send makes a session a writer and sends what is named.
func (w *world) send(s *member, info protocol.TopicInfo, refs ...protocol.Ref) {
	w.t.Helper()
	const offset = protocol.SessionLanes
	lane, err := shm.NewLane(s.File.Region, offset, info.Slots, info.Stride)
	require.NoError(w.t, err)
	require.NoError(w.t, s.File.FD.Reserve(offset, int64(protocol.LaneBytes(info.Slots, info.Stride))))
	lane.Init(info.ID)
	_, err = w.ts.Write(s.party, &protocol.TopicWrite{TopicRef: refOf(info), Offset: offset}, true)
	require.NoError(w.t, err)
	for i, ref := range refs {
		require.NoError(w.t, s.Refcounts.Take(ref.Index))
		h := shm.SlotHead{Stamp: sys.Monotonic(), Nref: 1}
		lane.Write(uint64(i+1), &h, shm.AppendRef(nil, ref))
		lane.Publish(uint64(i + 1))
	}
}

func (w *world) counted(ref protocol.Ref) uint64 { return w.store.Own.Refcounts.Count(ref.Index) }

func TestBrokerKeepsMessagesOfAnEndedSessionUntilTheTopicEnds(t *testing.T) {
	w := newWorld(t)
	writer, reader := w.session("writer"), w.session("reader")
	none := func(r *protocol.TopicOpenRequest) { r.Linger = new(float64) }
	_, ref := parttest.Grant(t, w.m, writer.Account, 4096)
	info := w.open(writer, protocol.KindTopic, none)
	w.open(reader, protocol.KindTopic, none)
	w.send(writer, info, ref)

	w.end(writer)
	require.Equal(t, 1, w.told.adopted)
	require.Equal(t, 1, w.ts.Counts().AdoptedLanes)
	require.EqualValues(t, 1, w.counted(ref))
	w.m.ReclaimOrphans(time.Minute)
	require.EqualValues(t, 4096, w.m.Use().Orphans, "the broker's refcounts count it")
	require.False(t, w.ts.DropKept(time.Hour), "fewer than depth are newer")
	require.EqualValues(t, protocol.LaneAdopted, w.store.Record.Topic(info.Topic).Lane(0).Load().State)
	require.NotNil(t, w.store.BySerial(writer.Serial), "the lane lies in its file")

	w.end(reader)
	require.Zero(t, w.ts.Counts())
	require.Zero(t, w.counted(ref))
	require.True(t, w.m.ReclaimOrphans(time.Minute))
	require.Nil(t, w.store.BySerial(writer.Serial))
}

func TestClaimsOfAReaderThatEndsAreFree(t *testing.T) {
	w := newWorld(t)
	writer, first, second := w.session("writer"), w.session("first"), w.session("second")
	again := func(r *protocol.TopicOpenRequest) { on := true; r.Redeliver = &on }
	_, ref := parttest.Grant(t, w.m, writer.Account, 4096)
	info := w.open(writer, protocol.KindQueue, again)
	w.send(writer, info, ref)
	group := ""
	area := func(s *member) (shm.GroupLane, uint16) {
		w.open(s, protocol.KindQueue, again)
		reply, fds, err := w.ts.Read(s.party, &protocol.TopicRead{TopicRef: refOf(info), Group: &group})
		require.NoError(t, err)
		m, err := sessionfiles.MapFile(fds[0], protocol.GroupBytes(info.Slots))
		require.NoError(t, err)
		t.Cleanup(m.Close)
		a, err := shm.NewGroupLane(m.Region, 0, info.Slots)
		require.NoError(t, err)
		return a, reply.Member
	}
	a, member := area(first)
	b, _ := area(second)
	i, hint, ok := a.Next(1)
	require.True(t, ok)
	require.True(t, a.Take(i, hint, member, true))
	require.False(t, b.Open(i))
	w.end(first)
	require.True(t, b.Open(i))
}

func TestNameHoldsItsRevisionUntilItsSetterEnds(t *testing.T) {
	w := newWorld(t)
	setter, reader := w.session("setter"), w.session("reader")
	_, old := parttest.Grant(t, w.m, setter.Account, 4096)
	_, ref := parttest.Grant(t, w.m, setter.Account, 4096)
	set := func(ref protocol.Ref) {
		_, err := w.ts.SetName(setter.party, &protocol.NameSet{Name: "weights", Ephemeral: true, Tensors: 1,
			Refs: []protocol.StorageRef{{Index: ref.Index, Serial: ref.Serial, Generation: ref.Generation}}})
		require.NoError(t, err)
	}
	set(old)
	_, err := w.ts.OpenName(reader.party, &protocol.NameOpen{Name: "weights"})
	require.NoError(t, err)
	set(ref)
	require.Zero(t, w.counted(old))
	require.EqualValues(t, 1, w.counted(ref))
	require.Equal(t, 2, w.told.named)

	w.end(setter)
	require.Zero(t, w.counted(ref))
	require.Zero(t, w.ts.Counts().Names)
	require.Equal(t, 3, w.told.named)
}

func TestLaneIsRefusedOverAnother(t *testing.T) {
	w := newWorld(t)
	s := w.session("writer")
	w.send(s, w.open(s, protocol.KindTopic, nil))
	other := w.open(s, protocol.KindTopic, func(r *protocol.TopicOpenRequest) { r.Name = "other" })
	_, err := w.ts.Write(s.party, &protocol.TopicWrite{TopicRef: refOf(other), Offset: protocol.SessionLanes}, true)
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.NoError(t, w.ts.LeaveRole(s.party, &protocol.TopicLeave{TopicRef: w.refOfNamed(s, "a/b"), Role: protocol.RoleNameWrite, Offset: protocol.SessionLanes}))
	require.Equal(t, 1, s.trim, "its place is free: it kept nothing")
	_, err = w.ts.Write(s.party, &protocol.TopicWrite{TopicRef: refOf(other), Offset: protocol.SessionLanes}, true)
	require.NoError(t, err)
}

func (w *world) refOfNamed(s *member, name string) protocol.TopicRef {
	return refOf(w.open(s, protocol.KindTopic, func(r *protocol.TopicOpenRequest) { r.Name = name }))
}

func TestRestoredTopicsAreAsTheyWere(t *testing.T) {
	w := newWorld(t)
	writer, reader, dead := w.session("writer"), w.session("reader"), w.session("dead")
	_, kept := parttest.Grant(t, w.m, dead.Account, 4096)
	_, named := parttest.Grant(t, w.m, writer.Account, 4096)
	info := w.open(writer, protocol.KindTopic, nil)
	w.open(reader, protocol.KindTopic, nil)
	w.open(dead, protocol.KindTopic, nil)
	w.send(writer, info)
	w.send(dead, info, kept)
	_, _, err := w.ts.Read(reader.party, &protocol.TopicRead{TopicRef: refOf(info)})
	require.NoError(t, err)
	_, err = w.ts.SetName(writer.party, &protocol.NameSet{Name: "weights", Tensors: 1,
		Refs: []protocol.StorageRef{{Index: named.Index, Serial: named.Serial, Generation: named.Generation}}})
	require.NoError(t, err)
	w.end(dead)
	before := w.recorded(info)
	counts := w.ts.Counts()

	next := w.topics()
	next.Open(writer.SessionFile, "default", writer)
	next.Open(reader.SessionFile, "default", reader)
	next.Restore(func(sessionfiles.Key) *sys.FD { return nil }) // there is no group
	next.Reread()
	target := map[uint32]uint64{}
	next.Recount(target)
	require.Equal(t, map[uint32]uint64{kept.Index: 1, named.Index: 1}, target)
	require.Zero(t, next.Unread())
	require.Equal(t, counts, next.Counts())
	require.Equal(t, before, w.recorded(info))
}

// recorded is the record of a topic, with its lanes.
func (w *world) recorded(info protocol.TopicInfo) []any {
	v := w.store.Record.Topic(info.Topic)
	all := []any{v.Load()}
	for n := range v.UsedLanes() {
		all = append(all, v.Lane(n).Load())
	}
	return all
}
