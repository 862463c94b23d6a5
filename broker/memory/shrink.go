package memory

import (
	"cmp"
	"slices"

	"github.com/baton-ipc/baton/protocol"
)

// span is a run of bytes of a segment.
type span struct{ from, to uint64 }

// heldSpans returns the pages of an orphan that are covered by storages not found free: sorted
// and joined, so that none touches the next. False: an entry names a place outside of the
// segment, as only a hostile client writes it, and nothing is known.
func (g *segment) heldSpans() ([]span, bool) {
	const mask = protocol.PageBytes - 1
	var all []span
	for _, c := range g.chunks {
		for i := range uint32(protocol.ChunkIndices) {
			if c.free[i/64]>>(i%64)&1 != 0 {
				continue
			}
			e := g.owner.Entries.Load(c.index*protocol.ChunkIndices + i)
			if e.Offset > g.bytes || e.Bytes > g.bytes-e.Offset {
				return nil, false
			}
			if e.Bytes > 0 {
				all = append(all, span{e.Offset &^ mask, (e.Offset + e.Bytes + mask) &^ mask})
			}
		}
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	joined := all[:0]
	for _, s := range all {
		if n := len(joined); n > 0 && s.from <= joined[n-1].to {
			joined[n-1].to = max(joined[n-1].to, s.to)
		} else {
			joined = append(joined, s)
		}
	}
	return joined, true
}

// shrink gives back the pages of an orphan that no held storage covers. Each storage
// that lay on them has been recycled, so that a bare handle to it is Expired. The
// pages of a file stay: a late read of a hole would end with SIGBUS once the file
// system is full. Huge pages stay as well: a hole is filled only while some are free.
func (m *Memory) shrink(g *segment) {
	if g.kind != protocol.KindMemfd || g.view == nil {
		return
	}
	held, ok := g.heldSpans()
	if !ok {
		return
	}
	delete(m.unreserved, g)
	kept, at := uint64(0), uint64(0)
	for _, s := range append(held, span{g.bytes, g.bytes}) {
		if s.from > at {
			if err := g.view.FD().Punch(int64(at), int64(s.from-at)); err != nil {
				m.log.Warn("cannot give pages of an ended session back", "segment", g.index, "error", err)
				return
			}
		}
		kept += s.to - s.from
		at = s.to
	}
	if given := g.bytes - g.punched - kept; given > 0 {
		g.punched += given
		m.used -= given
		m.notifyRefused()
	}
}
