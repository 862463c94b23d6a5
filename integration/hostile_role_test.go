package integration

import (
	"fmt"
	"math/rand"
	"os"
	"strings"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// enemy is a session spoken by hand that breaks every rule of the pages it may
// write.
type enemy struct {
	*testkit.Raw
	rnd     *rand.Rand
	topics  []enemyTopic
	group   shm.Region
	segment shm.Region
	own     uint32   // its chunk
	serial  uint64   // of it
	chunks  []uint32 // of others, attached
}

type enemyTopic struct {
	info protocol.TopicInfo
	lane shm.Lane
	at   uint64
	next uint64
}

func hostile(p *testkit.Child) error {
	var cfg hostileConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	raw, err := testkit.DialRaw(strings.TrimPrefix(os.Getenv("BATON_ADDRESS"), "unix:"), os.Getenv("BATON_NAMESPACE"))
	if err != nil {
		return err
	}
	e := &enemy{Raw: raw, rnd: rand.New(rand.NewSource(cfg.Seed))}
	if err := e.join(); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	attacks := map[string]func(){
		"slots": e.attackSlots, "lane": e.attackLane, "refcounts": e.attackRefcounts, "entries": e.attackEntries, "parked": e.attackParked,
		"bells": e.attackBells, "group": e.attackGroup, "segment": e.attackSegment, "head": e.attackHead,
	}
	var chosen []func()
	for name, f := range attacks {
		if name == cfg.Attack || cfg.Attack == "everything" {
			chosen = append(chosen, f)
		}
	}
	for n := 0; ; n++ {
		if n%200 == 0 {
			if err := p.Say(n); err != nil {
				return err
			}
		}
		chosen[e.rnd.Intn(len(chosen))]()
		// A message that can be read now and then, so that others come by.
		e.publish(e.message(false))
	}
}

// join takes part in everything as an honest client would.
func (e *enemy) join() error {
	var grant protocol.GrantReply
	fds, err := e.Call(protocol.OpGrant, protocol.Grant{Bytes: 1 << 20, Chunks: 1}, &grant)
	if err != nil {
		return err
	}
	if e.segment, err = e.Map(fds[0], grant.Bytes, true); err != nil {
		return err
	}
	e.own, e.serial = grant.Chunks[0].Chunk, grant.Chunks[0].Serial
	if err := e.SessionFD.Reserve(protocol.SessionEntries+int64(e.own)*protocol.ChunkIndices*protocol.EntrySize, protocol.ChunkIndices*protocol.EntrySize); err != nil {
		return err
	}
	for i := range uint32(protocol.ChunkIndices) {
		e.entry(e.own*protocol.ChunkIndices+i, uint64(i)*4096, 4096, 1)
	}
	for _, name := range []string{commons.Topic, council.Topic} {
		if err := e.joinTopic(name); err != nil {
			return err
		}
	}
	return e.attach()
}

func (e *enemy) joinTopic(name string) error {
	t := enemyTopic{next: 1, at: protocol.SessionLanes + uint64(len(e.topics))<<20}
	if _, err := e.Call(protocol.OpTopicOpen, protocol.TopicOpenRequest{Name: name, Kind: protocol.KindTopic}, &t.info); err != nil {
		return err
	}
	ref := protocol.TopicRef{Topic: t.info.Topic, ID: t.info.ID}
	if err := e.SessionFD.Reserve(int64(t.at), int64(protocol.LaneBytes(t.info.Slots, t.info.Stride))); err != nil {
		return err
	}
	var err error
	if t.lane, err = shm.NewLane(e.Session, t.at, t.info.Slots, t.info.Stride); err != nil {
		return err
	}
	t.lane.Init(t.info.ID)
	if _, err := e.Call(protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref, Offset: t.at}, nil); err != nil {
		return err
	}
	read := protocol.TopicRead{TopicRef: ref}
	if !t.info.Overwrite {
		group := "mixed"
		read.Group = &group
	}
	fds, err := e.Call(protocol.OpTopicRead, read, nil)
	if err != nil {
		return err
	}
	if len(fds) == 1 {
		if e.group, err = e.Map(fds[0], protocol.GroupBytes(t.info.Slots), true); err != nil {
			return err
		}
	}
	e.topics = append(e.topics, t)
	return nil
}

// attach attaches to chunks of others.
func (e *enemy) attach() error {
	for chunk := uint32(0); chunk < e.ChunksEnd() && len(e.chunks) < 8; chunk++ {
		serial := e.Broker.Load64(protocol.BrokerChunks + uint64(chunk)*protocol.ChunkRecordSize + protocol.ChunkSerial)
		if serial == 0 || chunk == e.own {
			continue
		}
		var ok protocol.AttachReply
		if _, err := e.Call(protocol.OpAttach, protocol.Attach{Chunks: []protocol.AttachChunk{{Chunk: chunk, Serial: serial}}}, &ok); err != nil {
			return err
		}
		if len(ok.Chunks) != 1 || ok.Chunks[0].Error != nil {
			return fmt.Errorf("attach to chunk %d: %+v", chunk, ok.Chunks)
		}
		e.chunks = append(e.chunks, chunk)
	}
	return nil
}

func (e *enemy) entry(index uint32, offset, bytes, generation uint64) {
	at := protocol.SessionEntries + uint64(index)*protocol.EntrySize
	e.Session.Store64(at+protocol.EntryOffset, offset)
	e.Session.Store64(at+protocol.EntryBytes, bytes)
	e.Session.Store64(at+protocol.EntryGeneration, generation)
}

// number is a number that is likely to be taken for something.
func (e *enemy) number() uint64 {
	switch e.rnd.Intn(8) {
	case 0:
		return 0
	case 1:
		return e.rnd.Uint64()
	case 2:
		return ^uint64(0) - uint64(e.rnd.Intn(4096))
	case 3:
		return 1 << e.rnd.Intn(64)
	case 4:
		return 1<<e.rnd.Intn(64) - 1
	default:
		return uint64(e.rnd.Intn(1 << 16))
	}
}

// noise spoils some words of a range.
func (e *enemy) noise(r shm.Region, at, bytes uint64) {
	for range 1 + e.rnd.Intn(16) {
		r.Store64(at+uint64(e.rnd.Int63n(int64(bytes/8)))*8, e.number())
	}
}

type enemyMessage struct {
	head shm.SlotHead
	refs []protocol.Ref
	body []byte
}

// message makes one that is right, or spoiled in some places.
func (e *enemy) message(spoil bool) enemyMessage {
	m := enemyMessage{refs: []protocol.Ref{{Serial: e.serial, Generation: 1, Index: e.own*protocol.ChunkIndices + uint32(e.rnd.Intn(protocol.ChunkIndices))}}}
	body := protocol.Body{Tensors: []protocol.Tensor{{Ref: 0, Code: 1, Bits: 64, Lanes: 1, DeviceType: 1, Shape: []int64{64}}}, Meta: []byte(`{"from":"hostile"}`)}
	m.head = shm.SlotHead{Stamp: sys.Monotonic(), Tensors: 1, Bytes: 512}
	if spoil {
		e.spoilBody(&body)
	}
	m.body, _ = protocol.AppendBody(nil, &body)
	if spoil {
		e.spoilMessage(&m)
	}
	return m
}

func (e *enemy) spoilBody(b *protocol.Body) {
	t := &b.Tensors[0]
	switch e.rnd.Intn(8) {
	case 0:
		t.Shape = []int64{int64(e.number()), int64(e.number())}
	case 1:
		t.Shape, t.Strides = []int64{4, 4}, []int64{int64(e.number()), int64(e.number())}
	case 2:
		t.Offset = e.number()
	case 3:
		t.Code, t.Bits, t.Lanes = uint8(e.rnd.Int()), uint8(e.rnd.Int()), uint16(e.rnd.Int())
	case 4:
		t.Ref = e.rnd.Intn(4)
	case 5:
		t.DeviceType = int32(e.rnd.Int())
	case 6:
		b.Tree = []byte(`{"$":"tensor","i":` + fmt.Sprint(int64(e.number())) + `}`)
	case 7:
		b.Meta = []byte(`{"from":`)
	}
}

func (e *enemy) spoilMessage(m *enemyMessage) {
	for range 1 + e.rnd.Intn(3) {
		switch e.rnd.Intn(9) {
		case 0:
			m.head.Nref = uint16(e.rnd.Int())
		case 1:
			m.head.Body = uint32(e.number())
		case 2:
			m.head.Flags = uint32(e.rnd.Intn(16))
		case 3:
			m.head.Stamp = e.number()
		case 4:
			m.refs[0] = protocol.Ref{Serial: e.number(), Generation: e.number(), Index: uint32(e.number())}
		case 5: // another session's storage
			if len(e.chunks) > 0 {
				chunk := e.chunks[e.rnd.Intn(len(e.chunks))]
				serial := e.Broker.Load64(protocol.BrokerChunks + uint64(chunk)*protocol.ChunkRecordSize + protocol.ChunkSerial)
				m.refs[0] = protocol.Ref{Serial: serial, Generation: uint64(1 + e.rnd.Intn(64)), Index: chunk*protocol.ChunkIndices + uint32(e.rnd.Intn(protocol.ChunkIndices))}
			}
		case 6:
			if len(m.body) > 0 {
				m.body[e.rnd.Intn(len(m.body))] ^= 1 << e.rnd.Intn(8)
			}
		case 7:
			m.body = m.body[:e.rnd.Intn(len(m.body)+1)]
		case 8:
			m.refs = append(m.refs, m.refs[0])
		}
	}
}

// publish writes a message into the lanes and wakes all sessions.
func (e *enemy) publish(m enemyMessage) {
	for i := range e.topics {
		t := &e.topics[i]
		var words []uint64
		for _, r := range m.refs {
			words = shm.AppendRef(words, r)
		}
		words = shm.AppendBytes(words, m.body)
		if len(words)*8 > t.lane.Capacity() {
			words = words[:t.lane.Capacity()/8]
		}
		h := m.head
		if h.Nref == 0 && h.Body == 0 {
			h.Nref, h.Body = uint16(len(m.refs)), uint32(len(m.body))
		}
		t.lane.Write(t.next, &h, words)
		t.lane.Publish(t.next)
		t.next++
	}
	for slot := range e.SessionsEnd() {
		e.Bells().Wake(slot)
	}
}

func (e *enemy) attackSlots() { e.publish(e.message(true)) }

func (e *enemy) attackLane() {
	t := &e.topics[e.rnd.Intn(len(e.topics))]
	e.noise(e.Session, t.at, protocol.LaneBytes(t.info.Slots, t.info.Stride))
	switch e.rnd.Intn(4) {
	case 0:
		e.Session.Store64(t.at+protocol.LaneHead, e.number())
	case 1:
		e.Session.Store64(t.at+protocol.LaneHead, t.next+uint64(e.rnd.Intn(64)))
	}
}

// attackRefcounts counts what it does not hold, and holds what it does not count.
func (e *enemy) attackRefcounts() {
	chunks := append([]uint32{e.own}, e.chunks...)
	chunk := uint64(chunks[e.rnd.Intn(len(chunks))])
	e.noise(e.Session, protocol.SessionRefcounts+chunk*protocol.ChunkIndices*protocol.RefcountWordSize, protocol.ChunkIndices*protocol.RefcountWordSize)
	if e.rnd.Intn(4) == 0 { // lets go of everything, so that no session runs out of memory
		for i := range uint64(protocol.ChunkIndices) {
			e.Session.Store64(protocol.SessionRefcounts+(chunk*protocol.ChunkIndices+i)*protocol.RefcountWordSize, 0)
		}
	}
}

func (e *enemy) attackEntries() {
	index := e.own*protocol.ChunkIndices + uint32(e.rnd.Intn(protocol.ChunkIndices))
	switch e.rnd.Intn(4) {
	case 0:
		e.entry(index, e.number(), e.number(), 1)
	case 1:
		e.entry(index, e.number()&^255, e.number(), 1)
	case 2:
		e.entry(index, 1<<20-256, 257, 1)
	case 3:
		e.entry(index, uint64(e.rnd.Intn(256))*4096, 4096, e.number())
	}
	m := e.message(false)
	m.refs[0].Index = index
	e.publish(m)
	e.entry(index, uint64(index%protocol.ChunkIndices)*4096, 4096, 1)
}

func (e *enemy) attackParked() {
	e.BellFile.Store64(protocol.BellRecords+uint64(e.Hello.Slot)*protocol.BellRecordSize+protocol.BellParked, e.number())
}

// attackBells spoils the marks of sleeping and waiting sessions, and the words that wake them.
func (e *enemy) attackBells() {
	for slot := range uint64(e.SessionsEnd()) {
		at := protocol.BellRecords + slot*protocol.BellRecordSize
		e.noise(e.BellFile, at, protocol.BellRecordSize)
		e.BellFile.Store32(at+protocol.BellWord, e.rnd.Uint32())
		sys.FutexWake(e.BellFile.Word32(at + protocol.BellWord))
	}
	for _, t := range e.topics {
		area := protocol.BellWaits + uint64(t.info.Topic)*protocol.WaitAreaSize
		e.noise(e.BellFile, area+protocol.WaitWords, 8*2)
		e.noise(e.BellFile, area+protocol.WaitMembers, 2*8*protocol.BitmapWords)
		e.noise(e.BellFile, area+protocol.WaitActive, 8*protocol.ActiveWords)
	}
}

func (e *enemy) attackGroup() {
	slots := uint32(8)
	for _, t := range e.topics {
		if !t.info.Overwrite {
			slots = t.info.Slots
		}
	}
	e.noise(e.group, protocol.GroupAreas, 8*protocol.GroupAreaBytes(slots))
}

// attackSegment lies in a spill: refs and description stand in memory that
// changes while it is read.
func (e *enemy) attackSegment() {
	k := uint32(e.rnd.Intn(protocol.ChunkIndices))
	at := uint64(k) * 4096
	m := e.message(e.rnd.Intn(2) == 0)
	refs, body := m.refs, m.body
	for range e.rnd.Intn(100) {
		refs = append(refs, refs[0])
	}
	spill, err := protocol.AppendSpill(nil, refs, body)
	if err == nil && len(spill) <= 4096 {
		copy(e.segment.Bytes(at, 4096), spill)
	}
	if e.rnd.Intn(2) == 0 {
		e.segment.Store64(at+8, e.number()) // how many refs, how long a body
	}
	m = e.message(false)
	m.refs[0].Index = e.own*protocol.ChunkIndices + k
	m.head.Flags, m.head.Nref, m.head.Body = protocol.SlotSpilled, 1, 0
	m.body = nil
	e.publish(m)
	e.noise(e.segment, at, 4096)
}

// attackHead spoils the head of its file, so that a session that meets it only now
// cannot make sense of it.
func (e *enemy) attackHead() {
	e.noise(e.Session, 0, protocol.HeadSize)
	e.noise(e.BellFile, 0, protocol.HeadSize)
}
