// Package parttest makes parts of the client over real files, without sockets, processes or
// a broker, for the tests of each part. A World answers what the parts ask of a broker, from
// tables of its own.
//
// Ownership: everything is closed when the test ends. Nothing else than tests imports it. A
// World may be used from any goroutine.
package parttest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
	"github.com/stretchr/testify/require"
)

// Sizes of what a World makes.
const (
	Instance     = "a1b2c3"
	SegmentBytes = 1 << 20
	Depth        = 4
	Slots        = 8
)

// World is what a broker knows and has.
type World struct {
	t      testing.TB
	Broker shm.Region // the broker file
	file   *sys.FD
	bells  *sys.FD

	mu       sync.Mutex // guards what follows
	next     uint64     // serial of what is made next
	sessions map[uint64]*sys.FD
	segments map[uint64]*segment
	chunks   uint32
	topics   map[string]protocol.TopicInfo
	lanes    map[uint32]uint32 // by topic: how many were made
}

type segment struct {
	fd    *sys.FD
	index uint32
	bytes uint64
}

// New makes a World.
func New(t testing.TB) *World {
	t.Helper()
	w := &World{t: t, next: 1, sessions: map[uint64]*sys.FD{}, segments: map[uint64]*segment{}, topics: map[string]protocol.TopicInfo{}, lanes: map[uint32]uint32{}}
	w.file, w.Broker = w.make(protocol.BrokerBytes, protocol.RoleBroker)
	w.bells, _ = w.make(protocol.BellBytes, 0)
	w.newSession(protocol.BrokerSlot)
	return w
}

// make makes a file of a role, and maps it.
func (w *World) make(bytes int64, role uint32) (*sys.FD, shm.Region) {
	fd, err := sys.CreateMemfd("baton-test", bytes)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { fd.Close() })
	b, err := sys.Map(fd, int(bytes), true)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { sys.Unmap(b) })
	r := shm.NewRegion(b)
	r.Store64(protocol.HeadMagic, protocol.Magic)
	r.Store32(protocol.HeadLayout, protocol.Layout)
	r.Store32(protocol.HeadRole, role)
	return fd, r
}

func (w *World) newSession(slot uint32) (serial uint64) {
	serial = w.next
	w.next++
	w.sessions[serial], _ = w.make(protocol.SessionBytes, protocol.RoleSession)
	w.Broker.Store64(protocol.BrokerSessions+uint64(slot)*protocol.SessionRecordSize+protocol.SessionSerial, serial)
	return serial
}

func (w *World) chunkRecords() handles.Chunks { return handles.NewChunks(w.Broker) }

// Hello is the answer that opens the session of a slot. The descriptors are the caller's.
func (w *World) Hello(slot uint32) (*protocol.HelloReply, []*sys.FD) {
	w.mu.Lock()
	defer w.mu.Unlock()
	serial := w.newSession(slot)
	var fds []*sys.FD
	for _, fd := range []*sys.FD{w.file, w.sessions[serial], w.bells, w.sessions[1]} {
		fds = append(fds, w.dup(fd))
	}
	return &protocol.HelloReply{Instance: Instance, Slot: slot, Serial: serial}, fds
}

// Session is what the parts of one session stand on. It answers what they ask of a broker.
type Session struct {
	*World
	Files *sessionfiles.Files
	Life  *life.Life
	Waits *waits.Hub

	mu    sync.Mutex // guards what follows
	asked []string
	away  bool
	epoch uint64
	later []string
}

// Session opens the session of a slot.
func (w *World) Session(slot uint32) *Session {
	w.t.Helper()
	p, err := sessionfiles.Open(w.Hello(slot))
	require.NoError(w.t, err)
	w.t.Cleanup(p.CloseFiles)
	l := &life.Life{}
	return &Session{World: w, Files: p, Life: l, Waits: waits.New(p, l)}
}

func (w *World) dup(fd *sys.FD) *sys.FD {
	d, err := fd.Dup()
	require.NoError(w.t, err)
	return d
}

// Asked returns the requests since the last look.
func (s *Session) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.asked
	s.asked = nil
	return a
}

// GoAway has requests fail from here on as those of a broker that is away.
func (s *Session) GoAway() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = true
}

// Later returns what was put off since the last look.
func (s *Session) Later() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.later
	s.later = nil
	return l
}

// MapPeer notes that.
func (s *Session) MapPeer(uint32, uint64) { s.putOff("map peer") }

// ForgetPeers notes that.
func (s *Session) ForgetPeers() { s.putOff("forget peers") }

func (s *Session) putOff(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later = append(s.later, what)
}

// IsAway tells whether the broker is away.
func (s *Session) IsAway() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// AwayFor tells nothing of use.
func (s *Session) AwayFor() time.Duration { return 0 }

// Epoch counts nothing here: no other broker comes.
func (s *Session) Epoch() uint64 { return s.epoch }

// Typed writes a command for the usual broker and namespace.
func (s *Session) Typed(sub string, args ...string) string {
	return strings.Join(append([]string{"baton", sub}, args...), " ")
}

// UntilAway returns the context: the broker does not go away in the midst of a request.
func (s *Session) UntilAway(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

// Undo notes what is to be undone.
func (s *Session) Undo(op string, _ any) { s.putOff("undo " + op) }

// CallUntil is Call.
func (s *Session) CallUntil(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	return s.Call(ctx, op, body, ok, send...)
}

// Call answers a request.
func (s *Session) Call(ctx context.Context, op string, body, ok any, _ ...*sys.FD) ([]*sys.FD, error) {
	s.mu.Lock()
	s.asked = append(s.asked, op)
	away := s.away
	s.mu.Unlock()
	if away {
		return nil, protocol.ErrBrokerLost
	}
	s.World.mu.Lock()
	defer s.World.mu.Unlock()
	switch r := body.(type) {
	case protocol.Grant:
		return s.grant(&r, ok.(*protocol.GrantReply))
	case protocol.Offer:
		return nil, nil
	case protocol.Return:
		s.takeBack(r.Serial)
		return nil, nil
	case protocol.Attach:
		return s.attach(r.Chunks, ok.(*protocol.AttachReply))
	case protocol.Peer:
		var fds []*sys.FD
		for _, q := range r.Sessions {
			ok.(*protocol.PeerReply).Sessions = append(ok.(*protocol.PeerReply).Sessions, protocol.PeerAnswer{})
			fds = append(fds, s.dup(s.sessions[q.Serial]))
		}
		return fds, nil
	case protocol.Segment:
		of := s.segments[r.Serial]
		*ok.(*protocol.SegmentReply) = protocol.SegmentReply{Bytes: of.bytes}
		return []*sys.FD{s.dup(of.fd)}, nil
	case *protocol.TopicOpenRequest:
		*ok.(*protocol.TopicInfo) = s.open(r)
		return nil, nil
	case protocol.TopicWrite:
		*ok.(*protocol.TopicWriteReply) = s.lane(r)
		return nil, nil
	case protocol.TopicRead:
		*ok.(*protocol.TopicReadReply) = protocol.TopicReadReply{Reader: r.Reader}
		return nil, nil
	case protocol.TopicLeave:
		return nil, nil
	}
	return nil, protocol.Errorf(protocol.CodeUnsupported, "teach it to", "this World does not answer %s", op)
}

// TakeBack takes back a segment, whatever is held of it.
func (w *World) TakeBack(serial uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takeBack(serial)
}

func (w *World) takeBack(serial uint64) {
	w.Broker.Store64(segmentAt(w.segments[serial].index)+protocol.SegmentSerial, 0)
	delete(w.segments, serial)
}

func segmentAt(index uint32) uint64 {
	return protocol.BrokerSegments + uint64(index)*protocol.SegmentRecordSize
}

func (s *Session) grant(asked *protocol.Grant, ok *protocol.GrantReply) ([]*sys.FD, error) {
	serial, index, chunk := s.next, uint32(len(s.segments)), s.chunks
	s.next += 2
	s.chunks++
	fd, err := sys.CreateMemfd("baton-test", SegmentBytes)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { fd.Close() })
	s.segments[serial] = &segment{fd, index, SegmentBytes}
	s.Broker.Store64(segmentAt(index)+protocol.SegmentOwnerSerial, s.Files.Serial)
	s.Broker.Store64(segmentAt(index)+protocol.SegmentSerial, serial)
	s.Broker.Store32(protocol.BrokerSegmentsEnd, index+1)
	s.chunkRecords().Store(chunk, handles.Chunk{Serial: serial + 1, OwnerSerial: s.Files.Serial, Owner: s.Files.Slot,
		Segment: index, Bytes: SegmentBytes, SegmentSerial: serial})
	s.chunkRecords().Attach(chunk, s.Files.Slot)
	s.Broker.Store32(protocol.BrokerChunksEnd, s.chunks)
	*ok = protocol.GrantReply{Segment: index, SegmentSerial: serial, Bytes: SegmentBytes, Chunks: []protocol.ChunkGrant{{Chunk: chunk, Serial: serial + 1}}}
	if asked.Device != "" {
		return nil, nil
	}
	return []*sys.FD{s.dup(fd)}, nil
}

func (s *Session) attach(asked []protocol.AttachChunk, ok *protocol.AttachReply) (fds []*sys.FD, err error) {
	for _, a := range asked {
		k := s.chunkRecords().Load(a.Chunk)
		if k.Serial != a.Serial {
			ok.Chunks = append(ok.Chunks, protocol.AttachAnswer{Error: protocol.Errorf(protocol.CodeExpired, "", "it has been given back")})
			continue
		}
		s.chunkRecords().Attach(a.Chunk, s.Files.Slot)
		r := protocol.AttachAnswer{Owner: k.Owner, OwnerSerial: k.OwnerSerial, Segment: k.Segment, SegmentSerial: k.SegmentSerial}
		if a.File {
			r.Bytes = SegmentBytes
			fds = append(fds, s.dup(s.segments[k.SegmentSerial].fd))
		}
		ok.Chunks = append(ok.Chunks, r)
	}
	return fds, nil
}

func topicAt(topic uint32) uint64 {
	return protocol.BrokerTopics + uint64(topic)*protocol.TopicRecordSize
}

func (s *Session) open(r *protocol.TopicOpenRequest) protocol.TopicInfo {
	info, had := s.topics[r.Name]
	if !had {
		info = protocol.TopicInfo{Topic: uint32(len(s.topics)), ID: s.next, Name: r.Name, Kind: r.Kind, Depth: Depth, Slots: Slots,
			Stride: protocol.Stride(protocol.DefaultDescription), Overwrite: true}
		s.next++
		s.topics[r.Name] = info
		s.Broker.Store64(topicAt(info.Topic)+protocol.TopicID, info.ID)
		s.Broker.Store32(topicAt(info.Topic)+protocol.TopicState, protocol.TopicOpen)
	}
	info.Opening = r.Opening
	return info
}

func (s *Session) lane(r protocol.TopicWrite) protocol.TopicWriteReply {
	number, incarnation, topic := s.lanes[r.Topic], s.next, topicAt(r.Topic)
	s.lanes[r.Topic]++
	s.next++
	at := topic + protocol.TopicLanes + uint64(number)*protocol.LaneRecordSize
	s.Broker.Store64(at+protocol.LaneRecordSerial, s.Files.Serial)
	s.Broker.Store64(at+protocol.LaneRecordOffset, r.Offset)
	s.Broker.Store32(at+protocol.LaneRecordSlot, s.Files.Slot)
	s.Broker.Store32(at+protocol.LaneRecordState, protocol.LaneLive)
	s.Broker.Store64(at+protocol.LaneRecordIncarnation, incarnation)
	s.Broker.Store32(topic+protocol.TopicLanesEnd, number+1)
	s.Broker.Add64(topic+protocol.TopicVersion, 1)
	return protocol.TopicWriteReply{Lane: number, Incarnation: incarnation}
}
