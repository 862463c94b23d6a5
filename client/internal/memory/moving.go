package memory

import (
	"context"
	"slices"

	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// counted finds the chunks of which the session's own refcounts count anything.
func (m *Memory) counted() map[uint32]*Attachment {
	found := map[uint32]*Attachment{}
	for chunk, a := range m.attached.All() {
		for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
			if m.files.Refcounts.Count(index) > 0 {
				found[chunk] = a
				break
			}
		}
	}
	return found
}

// TakeOver counts in the session's own refcounts what another client's refcounts count, whose addresses
// are those of these refcounts from then on. Nothing is counted up in the other one meanwhile.
func (m *Memory) TakeOver(ctx context.Context, from *Memory, ask func(ctx context.Context, op string, body, ok any) error) error {
	chunks := from.counted()
	if len(chunks) == 0 {
		return nil
	}
	var asked []protocol.AttachChunk
	for chunk := range chunks {
		if serial := from.files.Chunks.Serial(chunk); serial != 0 { // else lent memory that has ended: only the numbers move
			asked = append(asked, protocol.AttachChunk{Chunk: chunk, Serial: serial})
		}
	}
	for some := range slices.Chunk(asked, protocol.MaxPeers) {
		var ok protocol.AttachReply
		if err := ask(ctx, protocol.OpAttach, protocol.Attach{Chunks: some}, &ok); err != nil {
			return err
		}
		for _, r := range ok.Chunks {
			if r.Error != nil {
				return r.Error
			}
		}
	}
	crashpoint.At("keeper-attached")
	// The other refcounts by another way: their addresses will be those of the session's own.
	former, err := sys.Map(from.files.SessionFD, protocol.SessionBytes, true)
	if err != nil {
		return err
	}
	defer sys.Unmap(former)
	if err := sys.DontFork(former); err != nil {
		return err
	}
	refcounts := handles.NewRefcounts(shm.NewRegion(former))
	raised := map[uint32]uint64{}
	err = nil
	for chunk := range chunks {
		for index := chunk * protocol.ChunkIndices; err == nil && index < (chunk+1)*protocol.ChunkIndices; index++ {
			if n := refcounts.Count(index); n > 0 {
				if err = m.files.Refcounts.Raise(index, n); err == nil {
					raised[index] = n
				}
			}
		}
	}
	crashpoint.At("keeper-raised")
	if err == nil {
		const bytes = protocol.MaxStorages * protocol.RefcountWordSize
		err = sys.Overlay(from.files.Session.Bytes(protocol.SessionRefcounts, bytes), m.files.SessionFD, protocol.SessionRefcounts)
	}
	if err != nil {
		for index, n := range raised {
			m.files.Refcounts.Lower(index, n)
		}
		return err
	}
	crashpoint.At("keeper-overlaid")
	// The former refcounts are no longer written. What was dropped while the counts were read
	// and moved is counted too often.
	for chunk := range chunks {
		for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
			left := refcounts.Count(index)
			if n := raised[index]; n > left {
				m.files.Refcounts.Lower(index, n-left)
			}
			refcounts.Clear(index)
		}
	}
	crashpoint.At("keeper-emptied")
	for chunk, a := range chunks {
		m.keepFiles(from, chunk, a)
	}
	return nil
}

// keepFiles takes the files of another client that a broker needs of a chunk's
// storages, and the mapping of their segment.
func (m *Memory) keepFiles(from *Memory, chunk uint32, a *Attachment) {
	owner := m.files.Known(a.owner.Slot, a.owner.Serial)
	if owner == nil {
		var fd *sys.FD
		owner, fd = from.files.Release(a.owner)
		owner = m.files.Add(owner)
		m.files.KeepMoved(sessionfiles.SessionFile(owner.Serial), fd)
	}
	m.files.KeepMoved(sessionfiles.SegmentFile(a.SegmentSerial), from.files.Hand(sessionfiles.SegmentFile(a.SegmentSerial)))
	from.mu.Lock()
	e := from.segments[a.SegmentSerial]
	delete(from.segments, a.SegmentSerial)
	from.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	mine := m.segments[a.SegmentSerial]
	switch {
	case e == nil: // came with another chunk of the segment
	case mine == nil:
		m.segments[a.SegmentSerial], mine = e, e
	default:
		e.CloseFiles()
		mine.also = append(mine.also, e.Segment)
	}
	if at := m.attached.Load(chunk); mine != nil && (at == nil || at.Serial != a.Serial) {
		m.attached.Store(chunk, &Attachment{Chunk: a.Chunk, owner: owner, Segment: mine})
	}
}

// LetGo unmaps what a closed session holds no more, and forgets the sessions of which it
// held that.
func (m *Memory) LetGo() {
	m.UnmapFree()
	m.ForgetPeers()
}

// HoldsMore tells whether the session's own refcounts count more than so much.
func (m *Memory) HoldsMore(than map[uint32]uint64) bool {
	for chunk := range m.counted() {
		for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
			if m.files.Refcounts.Count(index) > than[index] {
				return true
			}
		}
	}
	return false
}
