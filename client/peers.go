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
func (c *Client) mapPeers(ctx context.Context, sessions []protocol.PeerSession) (map[uint64]foundPeer, error) {
	defer c.tidyPeers()
	found := map[uint64]foundPeer{}
	for some := range slices.Chunk(sessions, protocol.MaxPeers) {
		var ok protocol.PeerReply
		before := c.arriving()
		fds, err := c.link.call(ctx, protocol.OpPeer, protocol.Peer{Sessions: some}, &ok)
		if err == nil {
			err = c.addPeers(found, some, ok.Sessions, fds, before)
		}
		if err != nil {
			for _, s := range some {
				c.lacks(err, fileKey{protocol.RestoreSession, s.Serial})
			}
			return nil, err
		}
	}
	return found, nil
}

// addPeers keeps what came with an answer. It takes ownership of the descriptors.
func (c *Client) addPeers(found map[uint64]foundPeer, asked []protocol.PeerSession, answers []protocol.PeerAnswer, fds []*sys.FD, before arriving) error {
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
		c.keepOrClose(before, fileKey{protocol.RestoreSession, s.Serial}, fds[0], answers[k].Custody)
		fds = fds[1:]
		found[s.Serial] = foundPeer{peer: c.pages.add(q)}
	}
	return nil
}

// manyOld is how many sessions that have left their slot may be kept before it
// is looked whether they are of use.
const manyOld = 8

// tidyPeers has forgetPeers run when it may be worth while.
func (c *Client) tidyPeers() {
	if c.pages.countOld() >= manyOld {
		c.jobs.ForgetPeers()
	}
}

// forgetEnded forgets sessions that are over while their slots have no other: those that
// take a slot anew would bring it about, and few may come. So it does with those that were
// still of use when they left their slot.
func (c *Client) forgetEnded() {
	if c.pages.ended() {
		c.forgetPeers()
	}
}

// forgetPeers forgets sessions that are over and of which nothing is used here: no
// lane in a topic, no chunk of storages. Their files are closed now, and unmapped
// when nobody looks at them any more.
func (c *Client) forgetPeers() {
	if c.link.isAway() {
		return // the next one may want them
	}
	used := map[uint64]bool{}
	for _, a := range c.attached.All() {
		used[a.owner.serial] = true
	}
	c.mu.Lock()
	for _, t := range c.topics {
		if v := t.lanes.Load(); v != nil {
			for i := range v.lanes {
				used[v.lanes[i].serial] = true
			}
		}
	}
	c.mu.Unlock()
	// A free test looks at rows that it got before; it keeps nothing of them.
	forget := func() { c.pages.forget(used) }
	if c.devices != nil {
		all := forget
		forget = func() { c.devices.lend.between(all) }
	}
	c.pool.Between(func() { c.pools.between(forget) })
}

// rowOf finds the row of the session now in a slot, for the free test. It makes
// no call: what is not mapped is asked for in the background and counts as held
// until it is here.
func (c *Client) rowOf(slot uint32) (handles.Row, bool) {
	q := c.pages.peers.Load(slot)
	serial := c.pages.sessionSerial(slot)
	if q != nil && q.serial == serial {
		return q.row, true
	}
	if serial != 0 {
		c.jobs.MapPeer(slot, serial)
	}
	return handles.Row{}, false
}

// freeTest tells whether storages of this session are free.
func (c *Client) freeTest() handles.FreeTest {
	return handles.FreeTest{Chunks: c.pages.chunks, Entries: c.pages.entries, Row: c.rowOf}
}

// hold counts a ref up in the own row. The caller then looks again at the place
// that named it, and drops if it has changed.
func (c *Client) hold(ctx context.Context, ref protocol.Ref) (*attachment, error) {
	for {
		a, err := c.attach(ctx, ref)
		if err != nil {
			return nil, err
		}
		if err := c.countUp(ref.Index); err != nil {
			return nil, err
		}
		// SYNC attachment: trim removes the attachment, then looks whether this
		// row counts anything of the chunk; one of the two sees the other.
		if c.attached.Load(ref.Index/protocol.ChunkIndices) == a {
			return a, nil
		}
		c.drop(ref.Index)
	}
}

// holdAll counts all refs up and notes where they are, or none.
func (c *Client) holdAll(ctx context.Context, refs []storage) error {
	for k := range refs {
		a, err := c.hold(ctx, refs[k].ref)
		if err != nil {
			c.dropAll(refs[:k])
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
func (s *storage) share(c *Client) {
	if s.at.owner.serial == c.pages.serial {
		c.pages.entries.Share(s.ref.Index)
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
