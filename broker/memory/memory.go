package memory

import (
	"log/slog"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Limits say how much may be granted, in bytes; 0 is no limit but for Memory.
type Limits struct {
	// Memory is how much all segments together may have.
	Memory uint64
	// SessionMemory is how much one session may be granted.
	SessionMemory uint64
	// DeviceMemory and SessionDeviceMemory are how much all segments on one GPU
	// together may have, and those of one session there.
	DeviceMemory, SessionDeviceMemory uint64
	// MemoryDir is where the files are, for messages; "": they are memfds.
	MemoryDir string
	// ReadMemory tells the machine's memory.
	ReadMemory func() (sys.Memory, error)
}

// Memory is what sessions allocate in: segments, chunks of indices over them, and
// quotas.
type Memory struct {
	limits Limits
	log    *slog.Logger
	clock  *alarm.Clock
	store  *sessionfiles.Store

	chunks       handles.Chunks
	free         handles.FreeTest
	accounts     [protocol.MaxSessions]*Account // by slot
	chunkOf      [protocol.MaxChunks]*chunk
	chunkTable   record.Table
	segments     [protocol.MaxSegments]*segment
	segmentTable record.Table
	bySerial     map[uint64]*segment
	used         uint64 // bytes of all segments
	lanes        uint64 // bytes of all lanes
	unreserved   map[*segment]struct{}
	orphans      map[*segment]struct{}
	devices      []*device // by number
	rounds       rounds
	refused      map[*Account]struct{} // a grant, since memory last came free
	letGo        func(lost func(index uint32) bool)
	pickles      Pickles // nil: none
	kept         Kept
}

// New makes an empty memory. The limits are complete.
func New(limits Limits, store *sessionfiles.Store, clock *alarm.Clock, log *slog.Logger) *Memory {
	return &Memory{limits: limits, log: log, clock: clock, store: store,
		chunkTable:   record.NewTable(record.NewShares("chunks of storages", "release tensors, or put small ones together into one storage", protocol.MaxChunks), 4),
		segmentTable: record.NewTable(record.NewShares("segments", "allocate larger slabs, or release tensors", protocol.MaxSegments), 16),
		bySerial:     map[uint64]*segment{}, unreserved: map[*segment]struct{}{}, orphans: map[*segment]struct{}{}, refused: map[*Account]struct{}{},
		letGo: func(func(uint32) bool) {}}
}

// usedSegments and usedChunks are those by number, nil where one is free, as far as numbers
// were given out.
func (m *Memory) usedSegments() []*segment { return m.segments[:m.segmentTable.Used()] }

func (m *Memory) usedChunks() []*chunk { return m.chunkOf[:m.chunkTable.Used()] }

// Used returns the lowest numbers that no segment and no storage ever had.
func (m *Memory) Used() (segments, storages int) {
	return len(m.usedSegments()), len(m.usedChunks()) * protocol.ChunkIndices
}

// LetGo sets what makes the broker un-name the storages that are lost.
func (m *Memory) LetGo(f func(lost func(index uint32) bool)) { m.letGo = f }

// UseRecord uses the broker file that the store has now.
func (m *Memory) UseRecord() {
	m.chunks = m.store.Record.Chunks()
	m.free = handles.FreeTest{Chunks: m.chunks, Refcounts: m.refcountsOf}
}

// Client is notified of what happens to the memory of a session. Its methods return at
// once.
type Client interface {
	// Trim says that a segment is gone which the session has mapped, or may have.
	Trim()
	// Collect asks for what the session was granted and does not need.
	Collect()
	// Reclaim asks for all that the session was granted and does not hold, since a request of another is refused
	// otherwise, and tells whether the client can be asked. Its answer is [Memory.Reclaimed].
	Reclaim() bool
	// Room says that memory has come free since a grant was refused.
	Room()
}

// Account is what one session has been granted and looks at, while it lasts.
type Account struct {
	*sessionfiles.SessionFile
	// CUDA tells whether its client can use memory of CUDA devices.
	CUDA bool
	// Closed tells whether the session owns nothing any more.
	Closed bool

	late bool // it has not answered in a round

	client   Client
	attached []uint64           // bits of chunks, as far as it has any
	granted  uint64             // bytes of its segments in the machine's memory
	lanes    uint64             // bytes of its lanes
	onDevice map[*device]uint64 // bytes of its segments there
	segments map[*segment]struct{}
}

// Open makes the account of a session.
func (m *Memory) Open(p *sessionfiles.SessionFile, c Client) *Account {
	a := &Account{SessionFile: p, client: c, onDevice: map[*device]uint64{}, segments: map[*segment]struct{}{}}
	m.accounts[p.Slot] = a
	return a
}

// Forget ends an account after End: its slot may be used again.
func (m *Memory) Forget(a *Account) { m.accounts[a.Slot] = nil }

// refcountsOf gives the free test the refcounts of a slot: a session's or the broker's.
func (m *Memory) refcountsOf(slot uint32) (handles.Refcounts, bool) {
	if slot == protocol.BrokerSlot {
		return m.store.Own.Refcounts, true
	}
	if a := m.accounts[slot]; a != nil && a.There() {
		return a.Refcounts, true
	}
	// A session that is not back after a takeover: whatever it is attached to
	// counts as held.
	return handles.Refcounts{}, false
}

// Close closes the files of all segments.
func (m *Memory) Close() {
	for _, g := range m.usedSegments() {
		if g != nil && g.view != nil {
			g.view.Close()
		}
	}
}

// Segments counts the segments, those included whose files are missing.
func (m *Memory) Segments() int { return m.segmentTable.Taken() }

// EachHolder lists each segment with the holder that it counts for.
func (m *Memory) EachHolder(f func(record.Holder)) {
	for _, g := range m.usedSegments() {
		if g != nil {
			f(g.owner.Holder)
		}
	}
}

// EachFile lists the files of all segments. alone are the bytes of one that the broker
// counts and that no living session has mapped.
func (m *Memory) EachFile(f func(k sessionfiles.Key, fd *sys.FD, alone uint64)) {
	for _, g := range m.usedSegments() {
		if g == nil || g.view == nil || g.view.FD() == nil {
			continue
		}
		alone := uint64(0)
		if g.holder == nil && len(g.given) == 0 {
			for _, c := range g.chunks {
				alone += m.heldInChunk(m.store.Own, c)
			}
		}
		f(sessionfiles.Key{Role: protocol.RestoreSegment, Serial: g.serial}, g.view.FD(), alone)
	}
}

// SetLimits changes the quotas. What is granted stays. Sessions whose grants were refused are
// notified, to ask again.
func (m *Memory) SetLimits(all, session, device, sessionDevice uint64) {
	m.limits.Memory, m.limits.SessionMemory = all, session
	m.limits.DeviceMemory, m.limits.SessionDeviceMemory = device, sessionDevice
	m.notifyRefused()
}
