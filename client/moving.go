package client

import (
	"context"
	"slices"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// counted finds the chunks of which the own row counts anything.
func (c *memory) counted() map[uint32]*attachment {
	found := map[uint32]*attachment{}
	for chunk, a := range c.attached.All() {
		for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
			if c.pages.row.Count(index) > 0 {
				found[chunk] = a
				break
			}
		}
	}
	return found
}

// takeOver counts in the own row what another client's row counts, whose addresses
// are this row's from then on. Nothing is counted up in the other one meanwhile.
func (k *memory) takeOver(ctx context.Context, c *memory, ask func(ctx context.Context, op string, body, ok any) error) error {
	chunks := c.counted()
	if len(chunks) == 0 {
		return nil
	}
	var asked []protocol.AttachChunk
	for chunk := range chunks {
		if serial := c.pages.chunks.Serial(chunk); serial != 0 { // else lent memory that has ended: only the numbers move
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
	// The other row by another way: its addresses will be those of the own one.
	former, err := sys.Map(c.pages.sessionFD, protocol.SessionBytes, true)
	if err != nil {
		return err
	}
	defer sys.Unmap(former)
	if err := sys.DontFork(former); err != nil {
		return err
	}
	row := handles.NewRow(shm.NewRegion(former))
	raised := map[uint32]uint64{}
	err = nil
	for chunk := range chunks {
		for index := chunk * protocol.ChunkIndices; err == nil && index < (chunk+1)*protocol.ChunkIndices; index++ {
			if n := row.Count(index); n > 0 {
				if err = k.pages.row.Raise(index, n); err == nil {
					raised[index] = n
				}
			}
		}
	}
	crashpoint.At("keeper-raised")
	if err == nil {
		const bytes = protocol.MaxStorages * protocol.RowWordSize
		err = sys.Overlay(c.pages.session.Bytes(protocol.SessionRow, bytes), k.pages.sessionFD, protocol.SessionRow)
	}
	if err != nil {
		for index, n := range raised {
			k.pages.row.Lower(index, n)
		}
		return err
	}
	crashpoint.At("keeper-overlaid")
	// The former row is no longer written. What was dropped while the counts were read
	// and moved is counted too often.
	for chunk := range chunks {
		for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
			left := row.Count(index)
			if n := raised[index]; n > left {
				k.pages.row.Lower(index, n-left)
			}
			row.Clear(index)
		}
	}
	crashpoint.At("keeper-emptied")
	for chunk, a := range chunks {
		k.keepFiles(c, chunk, a)
	}
	return nil
}

// keepFiles takes over the files of another client that a broker needs of a chunk's
// storages, and the mapping of their segment.
func (k *memory) keepFiles(c *memory, chunk uint32, a *attachment) {
	owner := k.pages.known(a.owner.slot, a.owner.serial)
	if owner == nil {
		var fd *sys.FD
		owner, fd = c.pages.release(a.owner)
		owner = k.pages.add(owner)
		k.pages.keepMoved(fileKey{protocol.RestoreSession, owner.serial}, fd)
	}
	k.pages.keepMoved(fileKey{protocol.RestoreSegment, a.SegmentSerial}, c.pages.hand(fileKey{protocol.RestoreSegment, a.SegmentSerial}))
	c.mu.Lock()
	e := c.segments[a.SegmentSerial]
	delete(c.segments, a.SegmentSerial)
	c.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	mine := k.segments[a.SegmentSerial]
	switch {
	case e == nil: // came with another chunk of the segment
	case mine == nil:
		k.segments[a.SegmentSerial], mine = e, e
	default:
		e.CloseFiles()
		mine.also = append(mine.also, e.Segment)
	}
	if at := k.attached.Load(chunk); mine != nil && (at == nil || at.Serial != a.Serial) {
		k.attached.Store(chunk, &attachment{Chunk: a.Chunk, owner: owner, segment: mine})
	}
}

// letGo unmaps what a closed session holds no more, and forgets the sessions of which it
// held that.
func (c *memory) letGo() {
	c.unmapFree()
	c.forgetPeers()
}
