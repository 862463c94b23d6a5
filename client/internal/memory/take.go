package memory

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Taken is a message that was taken from a lane: what it holds, and a copy of its body. It is
// made in one piece with what its user needs, since each take needs one.
type Taken struct {
	Stamp uint64
	Flags uint32
	Held  Holding
	Body  []byte
	// Agreed is of a revision that hosts have agreed on (protocol.SlotAgreed in Flags).
	Agreed protocol.Agreed
	room   [16]uint64
}

// Renew makes it fresh again where a take has failed or its message was let go.
func (t *Taken) Renew(m *Memory) {
	t.Held.Renew(m)
	t.Body = nil
}

// Take copies message i of a lane into one that is fresh, and holds what it names.
// ok is false when the slot no longer holds it, or the lane is no more. An error means that the message
// is malformed or names what this process cannot have: it is then as good as
// lost. In both cases it holds nothing.
func (m *Memory) Take(ctx context.Context, from *sessionfiles.Lane, i uint64, into *Taken) (ok bool, err error) {
	l := from.Ring
	m.fetchAhead(l.FirstIndex(i))
	head, words, ok := l.Read(i, into.room[:0]) // MODEL lanes:take-look
	if !ok {
		return false, nil
	}
	crashpoint.At("take-read")
	into.Stamp, into.Flags = head.Stamp, head.Flags
	h := &into.Held
	if h.Storages = h.one[:]; head.Nref != 1 {
		h.Storages = make([]storage, head.Nref)
	}
	for k := range h.Storages {
		h.Storages[k].Ref = head.Ref(words, k)
	}
	if err = m.holdAll(ctx, h.Storages); err == nil {
		if head.Flags&protocol.SlotSpilled != 0 {
			h.Storages, into.Body, err = m.unspill(ctx, h.Storages)
		} else {
			into.Body = head.BodyOf(words)
		}
	}
	if head.Flags&protocol.SlotAgreed != 0 {
		into.Agreed = head.Agreed(words)
	}
	if err == nil && head.Flags&protocol.SlotOrdered != 0 {
		stream, value := head.Order(words)
		if err = h.ordered(from.Peer, stream, value); err != nil {
			m.dropAll(h.Storages)
		}
	}
	if err == nil && head.Flags&protocol.SlotWritable != 0 {
		if err = m.mayWrite(ctx, h.Storages); err != nil {
			m.dropAll(h.Storages)
		}
	}
	if err != nil {
		if !from.Current() {
			return false, nil
		}
		return l.Has(i), err
	}
	crashpoint.At("take-counted")
	// SYNC slot-seq: the second look, after the refcounts were raised. If the slot
	// still names the message, its writer counts every ref, so none can have
	// been recycled before these refcounts counted it.
	shm.FenceAcquire()
	has := l.Has(i) // MODEL lanes:take-recheck
	crashpoint.At("take-looked")
	if !has || !from.Current() { // MODEL reuse:recheck
		m.dropAll(h.Storages)
		return false, nil
	}
	for k := range h.Storages {
		if err := h.Storages[k].locate(); err != nil {
			m.dropAll(h.Storages)
			return true, err
		}
	}
	crashpoint.At("take-held")
	return true, nil
}

// fetchAhead starts to fetch the lines that a take of a storage needs: its own
// refcount word, which the owner's free test has read, and the storage's entry,
// which the owner has written. Both then travel beside the message's body.
func (m *Memory) fetchAhead(index uint32) {
	if index >= protocol.MaxStorages {
		return
	}
	m.files.Refcounts.Prefetch(index)
	if a := m.attached.Load(index / protocol.ChunkIndices); a != nil {
		a.owner.Entries.Prefetch(index)
	}
}

func (m *Memory) dropAll(held []storage) {
	for k := range held {
		m.Drop(held[k].Ref.Index)
	}
}

// mayWrite makes sure that the segments of a writable message can be written here.
func (m *Memory) mayWrite(ctx context.Context, held []storage) error {
	for k := range held {
		if err := m.writable(ctx, held[k].At.Segment); err != nil {
			return err
		}
	}
	return nil
}

// unspill reads the refs and the body from a held spill storage and holds the
// refs in its stead. On an error nothing is held any more.
func (m *Memory) unspill(ctx context.Context, spill []storage) ([]storage, []byte, error) {
	refs, body, err := m.readSpill(spill)
	var held []storage
	if err == nil {
		held = make([]storage, len(refs))
		for k := range refs {
			held[k].Ref = refs[k]
		}
		err = m.holdAll(ctx, held)
	}
	m.dropAll(spill) // its content has been copied
	crashpoint.At("take-unspilled")
	return held, body, err
}

func (m *Memory) readSpill(spill []storage) ([]protocol.Ref, []byte, error) {
	if len(spill) != 1 {
		return nil, nil, protocol.Errorf(protocol.CodeProtocol, "update or restart its sender", "a spilled message names %d storages, not 1", len(spill))
	}
	s := &spill[0]
	if err := s.locate(); err != nil {
		return nil, nil, err
	}
	region, err := s.region(false)
	if err != nil {
		return nil, nil, err
	}
	if s.Bytes > protocol.MaxSpill {
		return nil, nil, protocol.Errorf(protocol.CodeProtocol, "update or restart its sender", "a description of %d bytes", s.Bytes)
	}
	private := append([]byte(nil), region.Bytes(s.Offset, s.Bytes)...)
	return protocol.ParseSpill(private)
}
