package client

import (
	"context"
	"slices"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// foundPeer is a session's pages, or why they cannot be had.
type foundPeer struct {
	*peer
	err error
}

// mapPeers asks the broker for the files of sessions, of many with one request, and maps
// them. It returns what was found by serial.
func (m *memory) mapPeers(ctx context.Context, sessions []protocol.PeerSession) (map[uint64]foundPeer, error) {
	defer m.tidyPeers()
	found := map[uint64]foundPeer{}
	for some := range slices.Chunk(sessions, protocol.MaxPeers) {
		var ok protocol.PeerReply
		before := m.arriving()
		fds, err := m.broker.Call(ctx, protocol.OpPeer, protocol.Peer{Sessions: some}, &ok)
		if err == nil {
			err = m.addPeers(found, some, ok.Sessions, fds, before)
		}
		if err != nil {
			for _, s := range some {
				m.lacks(err, fileKey{protocol.RestoreSession, s.Serial})
			}
			return nil, err
		}
	}
	return found, nil
}

// addPeers keeps what came with an answer. It takes ownership of the descriptors.
func (m *memory) addPeers(found map[uint64]foundPeer, asked []protocol.PeerSession, answers []protocol.PeerAnswer, fds []*sys.FD, before arriving) error {
	defer func() { wire.CloseAll(fds) }() // those that are left
	there := 0
	for _, a := range answers {
		if a.Error == nil {
			there++
		}
	}
	if len(answers) != len(asked) || len(fds) != there {
		return protocol.Errorf(protocol.CodeProtocol, "use a broker of this version",
			"the files of %d sessions were asked for: %d answers came with %d descriptors, not %d", len(asked), len(answers), len(fds), there)
	}
	for k, s := range asked {
		if err := answers[k].Error; err != nil {
			found[s.Serial] = foundPeer{err: err}
			continue
		}
		q, err := newPeer(s.Slot, s.Serial, fds[0])
		if err != nil {
			return err
		}
		m.keepOrClose(before, fileKey{protocol.RestoreSession, s.Serial}, fds[0], answers[k].Custody)
		fds = fds[1:]
		found[s.Serial] = foundPeer{peer: m.pages.add(q)}
	}
	return nil
}

// manyOld is how many sessions that have left their slot may be kept before it
// is looked whether they are of use.
const manyOld = 8

// tidyPeers has forgetPeers run when it may be worth while.
func (m *memory) tidyPeers() {
	if m.pages.countOld() >= manyOld {
		m.later.ForgetPeers()
	}
}

// forgetEnded forgets sessions that are over while their slots have no other: those that
// take a slot anew would bring it about, and few may come. So it does with those that were
// still of use when they left their slot.
func (m *memory) forgetEnded() {
	if m.pages.ended() {
		m.forgetPeers()
	}
}

// forgetPeers forgets sessions that are over and of which nothing is used here: no
// lane in a topic, no chunk of storages. Their files are closed now, and unmapped
// when nobody looks at them any more.
func (m *memory) forgetPeers() {
	if m.broker.IsAway() {
		return // the next one may want them
	}
	used := map[uint64]bool{}
	for _, a := range m.attached.All() {
		used[a.owner.serial] = true
	}
	m.lanes.MarkPeers(used)
	// A free test looks at rows that it got before; it keeps nothing of them.
	forget := func() { m.pages.forget(used) }
	if m.devices != nil {
		all := forget
		forget = func() { m.devices.Between(all) }
	}
	m.pool.Between(func() { m.pools.between(forget) })
}

// rowOf finds the row of the session now in a slot, for the free test. It makes
// no call: what is not mapped is asked for in the background and counts as held
// until it is here.
func (m *memory) rowOf(slot uint32) (handles.Row, bool) {
	q := m.pages.peers.Load(slot)
	serial := m.pages.sessionSerial(slot)
	if q != nil && q.serial == serial {
		return q.row, true
	}
	if serial != 0 {
		m.later.MapPeer(slot, serial)
	}
	return handles.Row{}, false
}

// freeTest tells whether storages of this session are free.
func (m *memory) freeTest() handles.FreeTest {
	return handles.FreeTest{Chunks: m.pages.chunks, Entries: m.pages.entries, Row: m.rowOf}
}

// hold counts a ref up in the own row. The caller then looks again at the place
// that named it, and drops if it has changed.
func (m *memory) hold(ctx context.Context, ref protocol.Ref) (*attachment, error) {
	for {
		a, err := m.attach(ctx, ref)
		if err != nil {
			return nil, err
		}
		if err := m.countUp(ref.Index); err != nil {
			return nil, err
		}
		// SYNC attachment: trim removes the attachment, then looks whether this
		// row counts anything of the chunk; one of the two sees the other.
		if m.attached.Load(ref.Index/protocol.ChunkIndices) == a {
			return a, nil
		}
		m.drop(ref.Index)
	}
}

// holdAll counts all refs up and notes where they are, or none.
func (m *memory) holdAll(ctx context.Context, refs []storage) error {
	for k := range refs {
		a, err := m.hold(ctx, refs[k].ref)
		if err != nil {
			m.dropAll(refs[:k])
			return err
		}
		refs[k].at = a
		crashpoint.At("take-counting")
	}
	return nil
}

// storage is where a held storage lies, checked against the broker's record.
type storage struct {
	ref    protocol.Ref
	at     *attachment
	offset uint64
	bytes  uint64
}

// share lets others have a storage of this session's that was its alone: before the first
// place or handle that names it.
func (s *storage) share(m *memory) {
	if s.at.owner.serial == m.pages.serial {
		m.pages.entries.Share(s.ref.Index)
	}
}

// locate reads a held storage's entry and checks it: the generation is the ref's,
// the range lies in the chunk's.
func (s *storage) locate() error {
	a := s.at
	offset, bytes, generation := a.owner.entries.Place(s.ref.Index)
	if generation != s.ref.Generation {
		return errExpired("it has been recycled")
	}
	end := a.Offset + a.Bytes
	if offset&(protocol.Alignment-1) != 0 || offset < a.Offset || offset > end || bytes > end-offset {
		return protocol.Errorf(protocol.CodeHandle, "its owner is at fault: restart it",
			"storage %d claims %d bytes at %d, outside its segment's range", s.ref.Index, bytes, offset)
	}
	s.offset, s.bytes = offset, bytes
	return nil
}

func (s *storage) region(write bool) (shm.Region, error) {
	var r shm.Region
	var err error
	if write {
		r, err = s.at.segment.Writable()
	} else {
		r, err = s.at.segment.Readable()
	}
	if err != nil {
		return shm.Region{}, err
	}
	if !r.Has(s.offset, s.bytes) {
		return shm.Region{}, protocol.Errorf(protocol.CodeHandle, "its owner is at fault: restart it", "storage %d lies outside its segment", s.ref.Index)
	}
	return r, nil
}
