package memory

import (
	"slices"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Spill is a spill storage, which the broker holds. Its writer may still change it and take its
// pages away. So it is read through its file and never mapped, which makes neither a fault, and
// what was read once is not read again.
type Spill struct {
	segment *shm.Segment
	at      uint64
	nref    int
	body    uint64
}

// OpenSpill reads and checks the head of a spill storage.
func (m *Memory) OpenSpill(r protocol.Ref) (s Spill, err error) {
	c := m.findChunkOf(r.Index, r.Serial)
	if c == nil {
		return s, expired(r)
	}
	g := c.segment
	if g.view == nil || !g.owner.There() {
		return s, m.store.Awaited(g.key(), "segment of "+g.owner.Name)
	}
	e := g.owner.Entries.Load(r.Index)
	if e.Offset > g.bytes || e.Bytes > g.bytes-e.Offset || e.Bytes < protocol.SpillSize {
		return s, protocol.Errorf(protocol.CodeHandle, "send the message anew",
			"storage %d lies outside its segment, or is no spilled message's", r.Index)
	}
	var words [protocol.SpillSize / 8]uint64
	if err := g.view.ReadAt(shm.BytesOf(words[:]), e.Offset); err != nil {
		return s, err
	}
	nref, body := words[1]&0xffffffff, words[1]>>32
	if words[0] != protocol.SpillMagic || nref > protocol.MaxRefs || body > protocol.MaxBody ||
		protocol.SpillSize+nref*protocol.RefSize+body > e.Bytes {
		return s, protocol.Errorf(protocol.CodeHandle, "send the message anew", "a spilled message does not fit its storage")
	}
	return Spill{g.view, e.Offset + protocol.SpillSize, int(nref), body}, nil
}

// Read copies its refs, and the body behind them if it is asked for.
func (s *Spill) Read(whole bool) (refs []protocol.Ref, body []byte, err error) {
	n := uint64(s.nref) * protocol.RefSize
	size := n
	if whole {
		size += s.body
	}
	private := make([]byte, size)
	if err := s.segment.ReadAt(private, s.at); err != nil {
		return nil, nil, err
	}
	refs, err = protocol.ParseRefs(nil, private, s.nref)
	return refs, private[n:], err
}

// NamedBy lists the storages that a message names, those of its spill storage too.
// budget bounds how many are read of one sender. awaited: they stand in a file that was not
// handed over.
func (m *Memory) NamedBy(h shm.SlotHead, data []uint64, budget *int) (refs []protocol.Ref, awaited, bad bool) {
	refs, err := protocol.ParseRefs(nil, shm.BytesOf(data), int(h.Nref))
	if err != nil {
		return nil, false, true
	}
	if h.Flags&protocol.SlotSpilled != 0 {
		if len(refs) != 1 || *budget <= 0 {
			return nil, false, true
		}
		if lacks, awaited := m.spillMissing(refs[0]); lacks {
			return nil, awaited, !awaited
		}
		nested, err := m.ReadSpill(refs[0])
		if err != nil {
			*budget -= protocol.MaxRefs // as many may have been read
			return nil, false, true
		}
		refs = append(refs, nested...)
	}
	*budget -= len(refs)
	return refs, false, *budget < 0
}

// Awaited reports whether the storages that a message names cannot be counted for want of
// files that may still come: those that describe them, or of what it spilled. budget bounds
// how many are looked at of one sender; after it nothing is waited for.
func (m *Memory) Awaited(h shm.SlotHead, data []uint64, budget *int) bool {
	refs, err := protocol.ParseRefs(nil, shm.BytesOf(data), int(h.Nref))
	if err != nil || m.anyAwaited(refs, budget) {
		return err == nil && *budget >= 0
	}
	if h.Flags&protocol.SlotSpilled == 0 || len(refs) != 1 || *budget <= 0 {
		return false
	}
	if lacks, awaited := m.spillMissing(refs[0]); lacks {
		return awaited
	}
	nested, err := m.ReadSpill(refs[0])
	return err == nil && m.anyAwaited(nested, budget) && *budget >= 0
}

// anyAwaited reports whether the description of any storage may still come.
func (m *Memory) anyAwaited(refs []protocol.Ref, budget *int) bool {
	*budget -= len(refs)
	return *budget >= 0 && slices.ContainsFunc(refs, func(r protocol.Ref) bool {
		c := m.findChunkOf(r.Index, r.Serial)
		return c != nil && !c.segment.owner.There() &&
			m.store.Awaits(sessionfiles.Key{Role: protocol.RestoreSession, Serial: c.segment.owner.Serial})
	})
}

// spillMissing reports whether a spill storage cannot be read because its file, or its
// owner's, was not handed over, and whether what is missing may still come.
func (m *Memory) spillMissing(r protocol.Ref) (lacks, awaited bool) {
	c := m.findChunkOf(r.Index, r.Serial)
	if c == nil {
		return false, false
	}
	g, awaited := c.segment, true
	if g.view == nil {
		lacks, awaited = true, m.store.Awaits(g.key())
	}
	if !g.owner.There() {
		own := sessionfiles.Key{Role: protocol.RestoreSession, Serial: g.owner.Serial}
		lacks, awaited = true, awaited && m.store.Awaits(own)
	}
	return lacks, lacks && awaited
}

// ReadSpill reads the refs that stand in a spill storage.
func (m *Memory) ReadSpill(r protocol.Ref) ([]protocol.Ref, error) {
	s, err := m.OpenSpill(r)
	if err != nil {
		return nil, err
	}
	refs, _, err := s.Read(false)
	return refs, err
}

// Bytes tells how many bytes Read reads of refs and body.
func (s *Spill) Bytes() uint64 { return uint64(s.nref)*protocol.RefSize + s.body }
