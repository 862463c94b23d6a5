package langs

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// extremes are what a liar writes into a word: all of them with BATON_WORDS=all, else
// the first and one of the others.
var extremes = []uint64{math.MaxUint64, 1 << 63, 1<<52 - 1, 0, 1, 1 << 31, 1<<32 - 1, 1 << 52, 1 << 53, 1<<63 - 1, 0x7f0012345678}

// A liar writes each extreme into each word that it may write, one at a time, while
// clients of all languages and the broker do all that reads it: they come to an end,
// answer, stay small, and what honest ones send arrives whole. Then it dies like that,
// or its broker does.
func TestExtremesInEachWordOfALiar(t *testing.T) {
	b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.NATS = true })
	s := newStage(t, b)
	for _, l := range languages {
		s.honest = append(s.honest, start(t, b, l))
	}
	for _, d := range s.honest {
		d.do(command{"do": "read", "topic": "safe"})
		d.do(command{"do": "read", "topic": "strict", "group": "mixed"})
	}
	all, ends := os.Getenv("BATON_WORDS") == "all", 10
	if all {
		ends = 1
	}
	for n := 0; n == 0 || n < s.words; n++ {
		values := extremes
		if !all {
			values = []uint64{extremes[0], extremes[1+n%(len(extremes)-1)]}
		}
		for _, value := range values {
			s.tries(n, value)
		}
		// It ends with what it wrote last.
		switch n % (4 * ends) {
		case 0, ends, 2 * ends:
			s.killLiar()
		case 3 * ends:
			s.restartBroker()
		}
	}
	s.killLiar()
	s.exchange()
	for _, d := range s.honest {
		d.do(command{"do": "forget"})
	}
	s.close()
	leave(t, b, s.honest...)
}

// stage is the sessions that are there while a liar writes.
type stage struct {
	t       *testing.T
	b       *testkit.Broker
	staying *client.Client
	queue   *client.Queue
	open    []interface{ Close() error }
	tuples  *nats.Subscription
	honest  []*driver
	liar    *testkit.Process
	words   int // that a liar has
	seed    uint64
	turn    int
	at      string // what was written last
}

func newStage(t *testing.T, b *testkit.Broker) *stage {
	ctx := testkit.Context(t)
	s := &stage{t: t, b: b, staying: b.Connect(client.WithName("staying"))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("written last: %s", s.at)
		}
	})
	for _, name := range []string{"safe", "loose", "left", "strict"} {
		opts := []client.TopicOption{client.Linger(0)}
		if name == "strict" {
			opts = append(opts, client.Overwrite(false))
		}
		topic, err := s.staying.Topic(ctx, name, opts...)
		require.NoError(t, err)
		s.open = append(s.open, topic)
	}
	var err error
	s.queue, err = s.staying.Queue(ctx, "work", client.Linger(0), client.Redeliver(true))
	require.NoError(t, err)
	s.open = append(s.open, s.queue)
	s.subscribe()
	return s
}

// close lets go of the topics.
func (s *stage) close() {
	for _, c := range s.open {
		require.NoError(s.t, c.Close())
	}
}

// subscribe makes the broker mirror all topics.
func (s *stage) subscribe() {
	var info natsbridge.Info
	testkit.Until(s.t, "the broker has NATS", func() (bool, string) {
		var err error
		info, err = natsbridge.ReadInfo(s.b.Dir)
		return err == nil, fmt.Sprint(err)
	})
	nc, err := info.Connect(nats.Timeout(testkit.Patience))
	require.NoError(s.t, err)
	s.t.Cleanup(nc.Close)
	s.tuples, err = nc.SubscribeSync("baton.*.topic.safe")
	require.NoError(s.t, err)
	_, err = nc.Subscribe("baton.>", func(*nats.Msg) {})
	require.NoError(s.t, err)
	require.NoError(s.t, nc.Flush())
}

// tries has the liar write a value into a word, and all others look.
func (s *stage) tries(n int, value uint64) {
	if s.liar == nil {
		s.liar = s.b.Start("liar", nil)
		s.liar.Next(&s.words)
	}
	s.liar.Tell(lie{n, value})
	var said struct{ Word string }
	s.liar.Next(&said)
	s.at = fmt.Sprintf("%#x in %s", value, said.Word)
	s.look()
	s.exchange()
}

// look reads what the liar may have written. Anything may come of it, but an answer.
func (s *stage) look() {
	now := func(c command) command { c["timeout_ms"] = 0; return c }
	s.turn++ // each comes first, before another has passed over what is there
	for i := range s.honest {
		d := s.honest[(s.turn+i)%len(s.honest)]
		for _, topic := range []string{"loose", "left"} {
			for _, start := range []string{"all", "last"} {
				d.try(command{"do": "read", "topic": topic, "start": start})
				for range 3 {
					d.try(now(command{"do": "receive", "topic": topic}))
				}
			}
		}
		d.try(now(command{"do": "receive", "topic": "strict"}))
		d.try(now(command{"do": "take", "queue": "work", "redeliver": true}))
		s.seed++
		d.try(now(command{"do": "send", "topic": "loose", "seed": s.seed, "words": 16}))
		d.try(now(command{"do": "send", "topic": "strict", "lossless": true, "seed": s.seed, "words": 16}))
		d.try(now(command{"do": "put", "queue": "work", "redeliver": true, "seed": s.seed, "words": 16}))
	}
	ctx := testkit.Context(s.t)
	_, err := s.queue.Len(ctx)
	require.NoError(s.t, err)
	raw := s.b.Raw()
	_, err = raw.Call(protocol.OpStatus, nil, nil)
	require.NoError(s.t, err)
	for _, what := range []string{protocol.ListSessions, protocol.ListTopics, protocol.ListNames, protocol.ListSegments, protocol.ListStorages, protocol.ListLeases} {
		_, err := raw.Call(protocol.OpList, protocol.List{What: what}, nil)
		require.NoError(s.t, err)
	}
}

// exchange is what honest ones do beside it: nothing of it may be lost or broken.
func (s *stage) exchange() {
	t := s.t
	s.seed++
	from := s.honest[s.seed%uint64(len(s.honest))]
	from.do(command{"do": "send", "topic": "safe", "seed": s.seed, "words": 32})
	for _, d := range s.honest {
		require.Equal(t, s.seed, d.do(command{"do": "receive", "topic": "safe"}).Seed, s.at)
	}
	m, err := s.tuples.NextMsgWithContext(testkit.Context(t))
	require.NoError(t, err, "the mirror at %s", s.at)
	tuple, err := protocol.ParseTuple(m.Data)
	require.NoError(t, err, s.at)
	require.Equal(t, fmt.Sprintf(`{"seed":%d}`, s.seed), string(tuple.Meta), s.at)
	x, err := (&goDriver{c: s.staying}).filled(testkit.Context(t), s.seed, 8)
	require.NoError(t, err, s.at)
	h, err := x.Handle(testkit.Context(t))
	require.NoError(t, err, s.at)
	for _, d := range s.honest {
		d.do(command{"do": "open", "seed": s.seed, "handle": h})
	}
	require.NoError(t, s.staying.ReleaseHandle(testkit.Context(t), h), s.at)
	x.Release()
	for _, d := range append([]*driver{{Process: s.b.Process(), t: t}}, s.honest...) {
		require.Less(t, ownMemory(t, d.PID()), uint64(512<<20), "memory of %s at %s", d.Name, s.at)
	}
}

// ownMemory is what a process has resident that no other process shares.
func ownMemory(t *testing.T, pid int) uint64 {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range bytes.Lines(status) {
		if rest, ok := strings.CutPrefix(string(line), "RssAnon:"); ok {
			kib, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatalf("no RssAnon of process %d", pid)
	return 0
}

func (s *stage) killLiar() {
	if s.liar != nil {
		s.liar.Kill()
		testkit.Gone(s.t, s.b, s.liar.PID())
		s.liar = nil
	}
}

// restartBroker has a successor count what the liar left, which dies meanwhile.
func (s *stage) restartBroker() {
	s.b.Kill()
	s.liar.Kill()
	s.liar = nil
	s.b.Restart()
	for _, d := range s.honest {
		testkit.Until(s.t, d.Name+" has its session back", func() (bool, string) {
			a := d.try(command{"do": "set", "name": "back"})
			return a.Code == "", a.Message
		})
	}
	s.honest[0].do(command{"do": "delete", "name": "back"})
	s.subscribe()
}

// lie is what a liar is told to write.
type lie struct {
	Word  int
	Value uint64
}

// liar takes part in everything, and then writes what it is told.
func liar(p *testkit.Child) error {
	l, err := newLiar()
	if err != nil {
		return err
	}
	if err := p.Say(len(l.words())); err != nil {
		return err
	}
	for {
		var o lie
		if err := p.Hear(&o); err != nil {
			return err
		}
		if err := l.renew(); err != nil {
			return err
		}
		w := l.words()[o.Word]
		w.region.Store64(w.at, o.Value)
		l.ringAll()
		if err := p.Say(map[string]any{"word": w.name}); err != nil {
			return err
		}
	}
}

// liarSession is a session spoken by hand.
type liarSession struct {
	*testkit.Raw
	chunk, serial uint64
	segment       shm.Region
	lanes         []liarLane
}

type liarLane struct {
	name  string
	info  protocol.TopicInfo
	lane  shm.Lane
	at    uint64 // in the session file
	group shm.Region
	area  uint64 // of the lane, in the group's file
	next  uint64
}

// word is one that the liar may write.
type word struct {
	name   string
	region shm.Region
	at     uint64
}

const (
	liarStorages = 8
	liarStorage  = 4096
)

func newLiar() (*liarSession, error) {
	raw, err := testkit.DialRaw(strings.TrimPrefix(os.Getenv("BATON_ADDRESS"), "unix:"), os.Getenv("BATON_NAMESPACE"))
	if err != nil {
		return nil, err
	}
	l := &liarSession{Raw: raw}
	var grant protocol.GrantReply
	fds, err := l.Call(protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1}, &grant)
	if err != nil {
		return nil, err
	}
	if err := fds[0].Reserve(0, int64(grant.Bytes)); err != nil {
		return nil, err
	}
	if l.segment, err = l.Map(fds[0], grant.Bytes, true); err != nil {
		return nil, err
	}
	l.chunk, l.serial = uint64(grant.Chunks[0].Chunk), grant.Chunks[0].Serial
	if err := l.SessionFD.Reserve(int64(l.entry(0)), protocol.ChunkIndices*protocol.EntrySize); err != nil {
		return nil, err
	}
	if err := l.SessionFD.Reserve(int64(protocol.SessionTraces+l.index(0)*protocol.TraceSize), protocol.ChunkIndices*protocol.TraceSize); err != nil {
		return nil, err
	}
	for _, name := range []string{"loose", "left", "strict", "work"} {
		if err := l.join(name); err != nil {
			return nil, fmt.Errorf("join %s: %w", name, err)
		}
	}
	if err := l.renew(); err != nil {
		return nil, err
	}
	// One lane it leaves, for the broker to keep, and writes it all the same.
	left := l.lanes[1].info
	_, err = l.Call(protocol.OpTopicLeave, protocol.TopicLeave{TopicRef: protocol.TopicRef{Topic: left.Topic, ID: left.ID}, Role: protocol.RoleNameWrite, Offset: l.lanes[1].at}, nil)
	return l, err
}

func (l *liarSession) index(k uint64) uint64 { return l.chunk*protocol.ChunkIndices + k }

func (l *liarSession) entry(k uint64) uint64 {
	return protocol.SessionEntries + l.index(k)*protocol.EntrySize
}

func (l *liarSession) join(name string) error {
	x := liarLane{name: name, next: 1, at: protocol.SessionLanes + uint64(len(l.lanes))<<20}
	kind, group := protocol.KindTopic, "mixed"
	if name == "work" {
		kind, group = protocol.KindQueue, "queue"
	}
	if _, err := l.Call(protocol.OpTopicOpen, protocol.TopicOpenRequest{Name: name, Kind: kind}, &x.info); err != nil {
		return err
	}
	ref := protocol.TopicRef{Topic: x.info.Topic, ID: x.info.ID}
	if err := l.SessionFD.Reserve(int64(x.at), int64(protocol.LaneBytes(x.info.Slots, x.info.Stride))); err != nil {
		return err
	}
	var err error
	if x.lane, err = shm.NewLane(l.Session, x.at, x.info.Slots, x.info.Stride); err != nil {
		return err
	}
	x.lane.Init(x.info.ID)
	var written protocol.TopicWriteReply
	if _, err := l.Call(protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref, Offset: x.at}, &written); err != nil {
		return err
	}
	if !x.info.Overwrite {
		fds, err := l.Call(protocol.OpTopicRead, protocol.TopicRead{TopicRef: ref, Group: &group}, nil)
		if err != nil {
			return err
		}
		if x.group, err = l.Map(fds[0], protocol.GroupBytes(x.info.Slots), true); err != nil {
			return err
		}
		x.area = protocol.GroupAreas + uint64(written.Lane)*protocol.GroupAreaBytes(x.info.Slots)
	}
	l.lanes = append(l.lanes, x)
	return nil
}

// renew makes all as it should be, with a new message in each lane: in turn one that
// names its storage, and one that is spilled.
func (l *liarSession) renew() error {
	l.BellFile.Store64(l.parked(), 0)
	for k := range uint64(liarStorages) {
		at := l.entry(k)
		l.Session.Store64(at+protocol.EntryOffset, k*liarStorage)
		l.Session.Store64(at+protocol.EntryBytes, liarStorage)
		l.Session.Store64(at+protocol.EntryGeneration, 1)
		l.Session.Store64(at+protocol.EntryMadeAt, sys.Monotonic())
		l.Session.Store64(protocol.SessionRefcounts+l.index(k)*protocol.RefcountWordSize, 1)
	}
	body, err := protocol.AppendBody(nil, &protocol.Body{Tensors: []protocol.Tensor{{Ref: 0, Code: 1, Bits: 64, Lanes: 1,
		DeviceType: 1, Shape: []int64{64}}}, Meta: []byte(`{"seed":0}`)})
	if err != nil {
		return err
	}
	lone, err := protocol.AppendBody(nil, &protocol.Body{Tensors: []protocol.Tensor{{Ref: 0, Code: 1, Bits: 64, Lanes: 1,
		DeviceType: 1, Shape: []int64{16, 4}}}})
	if err != nil {
		return err
	}
	ref := func(k uint64) protocol.Ref {
		return protocol.Ref{Serial: l.serial, Generation: 1, Index: uint32(l.index(k))}
	}
	spill, err := protocol.AppendSpill(nil, []protocol.Ref{ref(0)}, body)
	if err != nil {
		return err
	}
	copy(l.segment.Bytes(liarStorage, liarStorage), spill)
	for i := range l.lanes {
		x := &l.lanes[i]
		for _, form := range []string{"brief", "spilled", "plain"} {
			h := shm.SlotHead{Stamp: sys.Monotonic(), Nref: 1, Tensors: 1, Bytes: 512}
			words := shm.AppendRef(nil, ref(0))
			switch form {
			case "brief":
				h.Body, words = uint32(len(lone)), shm.AppendBytes(words, lone)
			case "spilled":
				h.Flags, words = protocol.SlotSpilled, shm.AppendRef(nil, ref(1))
			default:
				h.Body, words = uint32(len(body)), shm.AppendBytes(words, body)
			}
			x.lane.Write(x.next, &h, words)
			x.lane.Publish(x.next)
			x.next++
		}
	}
	return nil
}

// parked is where the session says that it sleeps.
func (l *liarSession) parked() uint64 {
	return protocol.BellRecords + uint64(l.Hello.Slot)*protocol.BellRecordSize + protocol.BellParked
}

func (l *liarSession) ringAll() {
	for slot := range l.SessionsEnd() {
		l.Bells().Wake(slot)
	}
}

// words are all that the liar may write and others read.
func (l *liarSession) words() (all []word) {
	add := func(region shm.Region, at uint64, name string, args ...any) {
		all = append(all, word{fmt.Sprintf(name, args...), region, at})
	}
	for at := uint64(0); at < protocol.HeadSize; at += 8 {
		add(l.Session, at, "the head of the session file at %d", at)
		add(l.BellFile, at, "the head of the bell file at %d", at)
	}
	add(l.BellFile, l.parked(), "parked")
	add(l.Session, protocol.SessionTraceOn, "trace on")
	add(l.Session, protocol.SessionStreams, "the word of a stream")
	add(l.Session, protocol.SessionTraces+l.index(0)*protocol.TraceSize, "a trace")
	for k := range uint64(2) { // a tensor's, a spill's
		add(l.Session, protocol.SessionRefcounts+l.index(k)*protocol.RefcountWordSize, "the refcount word of storage %d", k)
		for at := uint64(0); at < protocol.EntrySize; at += 8 {
			add(l.Session, l.entry(k)+at, "the entry of storage %d at %d", k, at)
		}
	}
	for at := uint64(liarStorage); at < liarStorage+protocol.SpillSize+protocol.RefSize+protocol.BodySize; at += 8 {
		add(l.segment, at, "the spill at %d", at-liarStorage)
	}
	for i := range l.lanes {
		x := &l.lanes[i]
		add(l.Session, x.at+protocol.LaneTopicID, "%s: the lane's topic", x.name)
		add(l.Session, x.at+protocol.LaneSlots, "%s: the lane's slots and stride", x.name)
		add(l.Session, x.at+protocol.LaneHead, "%s: the lane's head", x.name)
		slot := func(i uint64) uint64 {
			return x.at + protocol.LaneSlotsAt + (i&uint64(x.info.Slots-1))*uint64(x.info.Stride)
		}
		for at := uint64(0); at < protocol.SlotSize+protocol.RefSize+protocol.BodySize+protocol.DescShape+8; at += 8 {
			add(l.Session, slot(x.next-1)+at, "%s: the slot of the newest message at %d", x.name, at)
		}
		for at := uint64(0); at < protocol.SlotSize+protocol.RefSize; at += 8 {
			add(l.Session, slot(x.next-2)+at, "%s: the slot of a spilled message at %d", x.name, at)
		}
		for at := uint64(0); at < protocol.BriefSize; at += 8 {
			add(l.Session, slot(x.next-3)+at, "%s: the slot of a brief message at %d", x.name, at)
		}
		add(l.Session, slot(x.next), "%s: the number of the slot to come", x.name)
		if x.group.Valid() {
			add(x.group, x.area+protocol.GroupHint, "%s: the group's hint", x.name)
			add(x.group, x.area+protocol.GroupStart, "%s: the group's start", x.name)
			add(x.group, x.area+protocol.GroupBase, "%s: the group's base", x.name)
			add(x.group, x.area+protocol.GroupNext, "%s: where the next lane's base begins", x.name)
			add(x.group, x.area+protocol.GroupClaims+8*((x.next-1)&uint64(x.info.Slots-1)), "%s: the group's claim of the newest message", x.name)
		}
	}
	for slot := range uint64(2) { // the broker's is the first
		add(l.BellFile, protocol.BellRecords+slot*protocol.BellRecordSize+protocol.BellWord, "the bell of session slot %d", slot)
	}
	for i := range l.lanes {
		area := protocol.BellWaits + uint64(l.lanes[i].info.Topic)*protocol.WaitAreaSize
		for set := range uint64(2) {
			add(l.BellFile, area+protocol.WaitWords+8*set, "%s: the words of wait set %d", l.lanes[i].name, set)
			add(l.BellFile, area+protocol.WaitMembers+8*set*protocol.BitmapWords, "%s: the members of wait set %d", l.lanes[i].name, set)
		}
		add(l.BellFile, area+protocol.WaitActive, "%s: the active lanes", l.lanes[i].name)
	}
	return all
}
