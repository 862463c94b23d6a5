package memory

import (
	"context"
	"slices"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// FoundPeer is a session's file, or why it cannot be mapped.
type FoundPeer struct {
	*sessionfiles.Peer
	Err error
}

// MapPeers asks the broker for the files of sessions, of many with one request, and maps
// them. It returns what was found by serial.
func (m *Memory) MapPeers(ctx context.Context, sessions []protocol.PeerSession) (map[uint64]FoundPeer, error) {
	defer m.TidyPeers()
	found := map[uint64]FoundPeer{}
	for some := range slices.Chunk(sessions, protocol.MaxPeers) {
		var ok protocol.PeerReply
		before := m.arriving()
		fds, err := m.broker.Call(ctx, protocol.OpPeer, protocol.Peer{Sessions: some}, &ok)
		if err == nil {
			err = m.addPeers(found, some, ok.Sessions, fds, before)
		}
		if err != nil {
			for _, s := range some {
				m.lacks(err, sessionfiles.SessionFile(s.Serial))
			}
			return nil, err
		}
	}
	return found, nil
}

// addPeers keeps what came with an answer. It takes ownership of the descriptors.
func (m *Memory) addPeers(found map[uint64]FoundPeer, asked []protocol.PeerSession, answers []protocol.PeerAnswer, fds []*sys.FD, before Arriving) error {
	defer func() { wire.CloseAll(fds) }() // those that are left
	there := 0
	for _, a := range answers {
		if a.Error == nil {
			there++
		}
	}
	if len(answers) != len(asked) || len(fds) != there {
		return protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version",
			"the files of %d sessions were asked for: %d answers came with %d descriptors, not %d", len(asked), len(answers), len(fds), there)
	}
	for k, s := range asked {
		if err := answers[k].Error; err != nil {
			found[s.Serial] = FoundPeer{Err: err}
			continue
		}
		q, err := sessionfiles.NewPeer(s.Slot, s.Serial, fds[0])
		if err != nil {
			return err
		}
		m.keepOrClose(before, sessionfiles.SessionFile(s.Serial), fds[0], answers[k].Custody)
		fds = fds[1:]
		found[s.Serial] = FoundPeer{Peer: m.files.Add(q)}
	}
	return nil
}

// manyOld is how many sessions that have left their slot may be kept before it
// is looked whether they are of use.
const manyOld = 8

// TidyPeers has ForgetPeers run when it may be worth while.
func (m *Memory) TidyPeers() {
	if m.files.CountOld() >= manyOld {
		m.later.ForgetPeers()
	}
}

// ForgetEnded forgets sessions that are over while their slots have no other: those that
// take a slot anew would bring it about, and few may come. So it does with those that were
// still of use when they left their slot.
func (m *Memory) ForgetEnded() {
	if m.files.Ended() {
		m.ForgetPeers()
	}
}

// ForgetPeers forgets sessions that are over and of which nothing is used here: no
// lane in a topic, no chunk of storages. Their files are closed now, and unmapped
// when nothing looks at them any more.
func (m *Memory) ForgetPeers() {
	if m.broker.IsAway() {
		return // the next one may want them
	}
	used := map[uint64]bool{}
	for _, a := range m.attached.All() {
		used[a.owner.Serial] = true
	}
	m.lanes.MarkPeers(used)
	// A free test looks at refcounts that it got before; it keeps nothing of them.
	forget := func() { m.files.Forget(used) }
	if m.devices != nil {
		all := forget
		forget = func() { m.devices.Between(all) }
	}
	m.pool.Between(func() { m.pools.between(forget) })
}

// refcountsOf finds the refcounts of the session now in a slot, for the free test. It makes
// no call: what is not mapped is asked for in the background and counts as held
// until it is here.
func (m *Memory) refcountsOf(slot uint32) (handles.Refcounts, bool) {
	q := m.files.Peers.Load(slot)
	serial := m.files.SessionSerial(slot)
	if q != nil && q.Serial == serial {
		return q.Refcounts, true
	}
	if serial != 0 {
		m.later.MapPeer(slot, serial)
	}
	return handles.Refcounts{}, false
}

// FreeTest tells whether storages of this session are free.
func (m *Memory) FreeTest() handles.FreeTest {
	return handles.FreeTest{Chunks: m.files.Chunks, Entries: m.files.Entries, Refcounts: m.refcountsOf}
}

// hold counts a ref up in the session's own refcounts. The caller then looks again at the place
// that named it, and drops if it has changed.
func (m *Memory) hold(ctx context.Context, ref protocol.Ref) (*Attachment, error) {
	for {
		a, err := m.attach(ctx, ref)
		if err != nil {
			return nil, err
		}
		if err := m.CountUp(ref.Index); err != nil {
			return nil, err
		}
		// SYNC attachment: trim removes the attachment, then looks whether these
		// refcounts count anything of the chunk; one of the two sees the other.
		if m.attached.Load(ref.Index/protocol.ChunkIndices) == a {
			return a, nil
		}
		m.Drop(ref.Index)
	}
}

// holdAll counts all refs up and notes where they are, or none.
func (m *Memory) holdAll(ctx context.Context, refs []storage) error {
	for k := range refs {
		a, err := m.hold(ctx, refs[k].Ref)
		if err != nil {
			m.dropAll(refs[:k])
			return err
		}
		refs[k].At = a
		crashpoint.At("take-counting")
	}
	return nil
}

// storage is where a held storage lies, checked against the broker's record.
type storage struct {
	Ref    protocol.Ref
	At     *Attachment
	Offset uint64
	Bytes  uint64
}

// Share lets others have a storage of this session's that was its alone: before the first
// place or handle that names it.
func (s *storage) Share(m *Memory) {
	if s.At.owner.Serial == m.files.Serial {
		m.files.Entries.Share(s.Ref.Index)
	}
}

// locate reads a held storage's entry and checks it: the generation is the ref's,
// the range lies in the chunk's.
func (s *storage) locate() error {
	a := s.At
	offset, bytes, generation := a.owner.Entries.Place(s.Ref.Index)
	if generation != s.Ref.Generation {
		return fault.Expired("it has been recycled")
	}
	end := a.Offset + a.Bytes
	if offset&(protocol.Alignment-1) != 0 || offset < a.Offset || offset > end || bytes > end-offset {
		return protocol.Errorf(protocol.CodeHandle, "restart the process that owns it",
			"storage %d claims %d bytes at %d, outside its segment's range", s.Ref.Index, bytes, offset)
	}
	s.Offset, s.Bytes = offset, bytes
	return nil
}

func (s *storage) region(write bool) (shm.Region, error) {
	var r shm.Region
	var err error
	if write {
		r, err = s.At.Segment.Writable()
	} else {
		r, err = s.At.Segment.Readable()
	}
	if err != nil {
		return shm.Region{}, err
	}
	if !r.Has(s.Offset, s.Bytes) {
		return shm.Region{}, protocol.Errorf(protocol.CodeHandle, "restart the process that owns it", "storage %d lies outside its segment", s.Ref.Index)
	}
	return r, nil
}
