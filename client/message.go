package client

import (
	"context"
	"encoding/json"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Message is what a reader received: tensors, value, meta, and where it came
// from. It holds its storages until Release; what it lends ends with it. With
// redelivery, Release of the last holder is the acknowledgement.
type Message struct {
	// Sender is the name of the session that sent it: of its program, or what it
	// gave as WithName. Several may have the same.
	Sender string
	// Sequence is the message's number in its sender's lane, from 1.
	Sequence uint64
	// Stamp is when it was sent, in ns of CLOCK_MONOTONIC.
	Stamp uint64
	// Lost counts the messages that went by unseen before this one: this sender's,
	// and those of senders that have gone.
	Lost uint64

	held    *holding
	flags   uint32
	bodySrc []byte
	bundle  *Bundle // built at first use
	failed  error

	// What a message of one tensor needs lies in the message itself, so that it
	// costs one allocation.
	room      [16]uint64
	dims      [4]int64
	oneHold   holding
	oneBundle Bundle
	oneTensor Tensor
	tensors   [1]*Tensor
	names     [1]string
}

// newMessage makes a message to take into.
func newMessage(c *Client) *Message {
	m := new(Message)
	m.held = &m.oneHold
	m.held.c = c
	return m
}

// Retain adds a holder.
func (m *Message) Retain() { m.held.retain() }

// Release ends one holder; after the last, tensors lent must not be used.
func (m *Message) Release() { m.held.release() }

// Bundle returns all tensors by name, lent. It fails when the sender described
// them wrongly (ErrProtocol, ErrInvalidHandle).
func (m *Message) Bundle() (*Bundle, error) {
	if m.bundle == nil && m.failed == nil {
		m.failed = m.decode()
	}
	return m.bundle, m.failed
}

// Tensor returns the first tensor, lent; nil when there is none or the message
// is malformed (Bundle tells why).
func (m *Message) Tensor() *Tensor {
	b, err := m.Bundle()
	if err != nil || len(b.tensors) == 0 {
		return nil
	}
	return b.tensors[0]
}

// Value returns the structure that was sent, with *Tensor leaves, lent.
func (m *Message) Value() (any, error) {
	b, err := m.Bundle()
	if err != nil {
		return nil, err
	}
	return b.Value()
}

// Meta decodes the meta into v; without meta it leaves v alone.
func (m *Message) Meta(v any) error {
	b, err := m.Bundle()
	if err != nil {
		return err
	}
	return b.Meta(v)
}

// RawMeta returns the JSON of the meta, nil when there is none.
func (m *Message) RawMeta() json.RawMessage {
	b, err := m.Bundle()
	if err != nil {
		return nil
	}
	return b.RawMeta()
}

// decode reads the body: a private copy of what the sender wrote.
func (m *Message) decode() error {
	b := &m.oneBundle
	b.held, b.Live = m.held, m.flags&protocol.SlotLive != 0
	b.names, b.tensors, m.tensors[0] = m.names[:], m.tensors[:], &m.oneTensor
	var d protocol.Tensor
	if protocol.ParseLone(m.bodySrc, &d, m.dims[:]) && d.Ref < len(m.held.storages) {
		if err := m.held.describe(&m.oneTensor, &d, m.flags); err != nil {
			return err
		}
	} else if err := m.decodeAny(b); err != nil {
		return err
	}
	m.bundle = b
	return nil
}

// decodeAny reads a body of any form.
func (m *Message) decodeAny(b *Bundle) error {
	body, err := protocol.ParseBody(m.bodySrc)
	if err != nil {
		return err
	}
	if err := body.CheckRefs(len(m.held.storages)); err != nil {
		return err
	}
	n := len(body.Tensors)
	room := []Tensor(nil)
	if n <= 1 {
		b.names, b.tensors = m.names[:n], m.tensors[:n]
	} else {
		b.names, b.tensors, room = make([]string, n), make([]*Tensor, n), make([]Tensor, n)
	}
	b.tree, b.meta = body.Tree, body.Meta
	for i := range body.Tensors {
		d, t := &body.Tensors[i], &m.oneTensor
		if room != nil {
			t = &room[i]
		}
		if err := m.held.describe(t, d, m.flags); err != nil {
			return err
		}
		if len(b.tree) == 0 && d.Name != "" {
			t.name = protocol.TensorKey(d.Name)
		}
		b.names[i], b.tensors[i] = t.name, t
	}
	return nil
}

// describe fills in a lent tensor of a holding from its description, all of
// which is another process's word, as are the flags of its slot.
func (h *holding) describe(t *Tensor, d *protocol.Tensor, flags uint32) error {
	write := flags&protocol.SlotWritable != 0 && !d.ReadOnly
	t.held, t.storage, t.offset, t.shape, t.strides = h, d.Ref, d.Offset, d.Shape, d.Strides
	t.readonly, t.name, t.lent = !write, d.Name, true
	t.dtype = dlpack.DType{Code: dlpack.TypeCode(d.Code), Bits: d.Bits, Lanes: d.Lanes}
	if err := t.check(); err != nil {
		return err
	}
	if t.storage >= 0 {
		if err := h.place(t, write); err != nil {
			return err
		}
	}
	if !t.device.is(d) {
		return protocol.Errorf(protocol.CodeHandle, "its sender is at fault", "tensor %q is said to be on device type %d, number %d, and lies on %s",
			d.Name, d.DeviceType, d.DeviceID, t.Device())
	}
	return nil
}

// take copies message i of a lane into m, a fresh one, and holds what it names.
// ok is false when the slot no longer holds it, or the lane is no more. An error means that the message
// is malformed or names what this process cannot have: it is then as good as
// lost. In both cases m is of no more use.
func (c *Client) take(ctx context.Context, from *laneView, i uint64, m *Message) (ok bool, err error) {
	l := from.lane
	c.fetchAhead(l.FirstIndex(i))
	head, words, ok := l.Read(i, m.room[:0]) // MODEL lanes:take-look
	if !ok {
		return false, nil
	}
	crashpoint.At("take-read")
	m.Sequence, m.Stamp, m.flags = i, head.Stamp, head.Flags
	h := m.held
	if h.storages = h.one[:]; head.Nref != 1 {
		h.storages = make([]storage, head.Nref)
	}
	for k := range h.storages {
		h.storages[k].ref = head.Ref(words, k)
	}
	if err = c.holdAll(ctx, h.storages); err == nil {
		if head.Flags&protocol.SlotSpilled != 0 {
			h.storages, m.bodySrc, err = c.unspill(ctx, h.storages)
		} else {
			m.bodySrc = head.BodyOf(words)
		}
	}
	if err == nil && head.Flags&protocol.SlotOrdered != 0 {
		stream, value := head.Order(words)
		if err = h.ordered(from.peer, stream, value); err != nil {
			c.dropAll(h.storages)
		}
	}
	if err == nil && head.Flags&protocol.SlotWritable != 0 {
		if err = c.mayWrite(ctx, h.storages); err != nil {
			c.dropAll(h.storages)
		}
	}
	if err != nil {
		if !from.current() {
			return false, nil
		}
		return l.Has(i), err
	}
	crashpoint.At("take-counted")
	// SYNC slot-seq: the second look, after the rows were raised. If the slot
	// still names the message, its writer counts every ref, so none can have
	// been recycled before this row counted it.
	shm.FenceAcquire()
	has := l.Has(i) // MODEL lanes:take-recheck
	crashpoint.At("take-looked")
	if !has || !from.current() { // MODEL reuse:recheck
		c.dropAll(h.storages)
		return false, nil
	}
	for k := range h.storages {
		if err := h.storages[k].locate(); err != nil {
			c.dropAll(h.storages)
			return true, err
		}
	}
	crashpoint.At("take-held")
	return true, nil
}

// fetchAhead starts to fetch the lines that a take of a storage needs: its own
// row's word, which the owner's free test has read, and the storage's entry,
// which the owner has written. Both then travel beside the message's body.
func (c *Client) fetchAhead(index uint32) {
	if index >= protocol.MaxStorages {
		return
	}
	c.pages.row.Prefetch(index)
	if a := c.attached.Load(index / protocol.ChunkIndices); a != nil {
		a.owner.entries.Prefetch(index)
	}
}

func (c *Client) dropAll(held []storage) {
	for k := range held {
		c.drop(held[k].ref.Index)
	}
}

// mayWrite makes sure that the segments of a writable message can be written here.
func (c *Client) mayWrite(ctx context.Context, held []storage) error {
	for k := range held {
		if err := c.writable(ctx, held[k].at.segment); err != nil {
			return err
		}
	}
	return nil
}

// unspill reads the refs and the body from a held spill storage and holds the
// refs in its stead. On an error nothing is held any more.
func (c *Client) unspill(ctx context.Context, spill []storage) ([]storage, []byte, error) {
	refs, body, err := c.readSpill(spill)
	var held []storage
	if err == nil {
		held = make([]storage, len(refs))
		for k := range refs {
			held[k].ref = refs[k]
		}
		err = c.holdAll(ctx, held)
	}
	c.dropAll(spill) // its content has been copied
	crashpoint.At("take-unspilled")
	return held, body, err
}

func (c *Client) readSpill(spill []storage) ([]protocol.Ref, []byte, error) {
	if len(spill) != 1 {
		return nil, nil, protocol.Errorf(protocol.CodeProtocol, "its sender is at fault", "a spilled message names %d storages, not 1", len(spill))
	}
	s := &spill[0]
	if err := s.locate(); err != nil {
		return nil, nil, err
	}
	region, err := s.region(false)
	if err != nil {
		return nil, nil, err
	}
	if s.bytes > protocol.MaxSpill {
		return nil, nil, protocol.Errorf(protocol.CodeProtocol, "its sender is at fault", "a description of %d bytes", s.bytes)
	}
	private := append([]byte(nil), region.Bytes(s.offset, s.bytes)...)
	return protocol.ParseSpill(private)
}
