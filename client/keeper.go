package client

import (
	"context"
	"slices"
	"sync"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// keepers are the closed clients that still hold something: one for each instance.
// What others hold that are closed later is counted in the keeper's row, so that
// their slots come free; see docs/decisions/0009-closed-sessions.md.
var keepers = struct {
	mu sync.Mutex // held across calls to the broker; taken first
	of map[string]*Client
}{of: map[string]*Client{}}

// keep makes the client its instance's keeper, or moves what it holds to the one
// there is. It tells whether the session is over then.
func (e *ending) keep(ctx context.Context) (over bool, err error) {
	c := e.c
	c.reap()
	keepers.mu.Lock()
	defer keepers.mu.Unlock()
	k := keepers.of[c.pages.instance]
	if k == nil {
		keepers.of[c.pages.instance], e.kept = c, true
	}
	c.letGo()
	if k != nil && k != c {
		if err := k.takeOver(ctx, c); err != nil {
			return false, err
		}
		if err := k.link.askNow(ctx, protocol.OpBye, nil, nil); err != nil {
			return false, err // its own goroutine finds out why
		}
		crashpoint.At("keeper-told")
		// Now, since many may be closed before its own goroutine looks.
		k.letGo()
	}
	held, err := e.bye(ctx)
	return err == nil && !held, err
}

// letGo unmaps what a closed session holds no more, and forgets the sessions of which it
// held that.
func (c *Client) letGo() {
	c.unmapFree()
	c.forgetPeers()
}

// leave ends being a keeper.
func (e *ending) leave() {
	if e.kept {
		keepers.mu.Lock()
		delete(keepers.of, e.c.pages.instance)
		keepers.mu.Unlock()
	}
}

// takeOver counts in the own row what another client's row counts, whose addresses
// are this row's from then on. Nothing is counted up in the other one meanwhile.
func (k *Client) takeOver(ctx context.Context, c *Client) error {
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
		if err := k.link.askNow(ctx, protocol.OpAttach, protocol.Attach{Chunks: some}, &ok); err != nil {
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

// counted finds the chunks of which the own row counts anything.
func (c *Client) counted() map[uint32]*attachment {
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

// keepFiles takes over the files of another client that a broker needs of a chunk's
// storages, and the mapping of their segment.
func (k *Client) keepFiles(c *Client, chunk uint32, a *attachment) {
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

// release gives the pages of a session away, with the descriptor of their file if there is
// one.
func (p *pages) release(q *peer) (*peer, *sys.FD) {
	if q.serial == p.serial {
		p.given = true
		own := *q
		return &own, p.sessionFD
	}
	p.peers.CompareAndSwap(q.slot, q, nil)
	p.peerMu.Lock()
	delete(p.old, q.serial)
	p.peerMu.Unlock()
	return q, p.hand(fileKey{protocol.RestoreSession, q.serial})
}
