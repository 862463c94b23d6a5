package client

import (
	"encoding/json"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
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

	c      *Client
	taken  memory.Taken
	bundle *Bundle // built at first use
	failed error

	// What a message of one tensor needs lies in the message itself, so that it
	// costs one allocation.
	dims      [4]int64
	oneBundle Bundle
	oneTensor Tensor
	tensors   [1]*Tensor
	names     [1]string
}

// from notes where a message that was taken came from.
func (m *Message) from(r lanes.Received) *Message {
	m.Sender, m.Sequence, m.Stamp, m.Lost = r.Sender, r.Number, m.taken.Stamp, r.Lost
	if m.taken.Flags&protocol.SlotAgreed != 0 {
		// A revision may have been set before the machine started. Its stamp is below 0 then and wraps around; its
		// distance from now wraps around as well, and is right.
		m.Sequence, m.Stamp = m.taken.Agreed.Revision, m.taken.Stamp-m.taken.Agreed.Age
	}
	return m
}

// newMessage makes a message to take into.
func newMessage(c *Client) *Message {
	m := &Message{c: c}
	m.taken.Held.Renew(c.s.Memory)
	return m
}

// Retain adds a holder. It panics after the last Release.
func (m *Message) Retain() { m.taken.Held.Retain() }

// Release ends one holder; after the last, tensors lent must not be used. It panics if no holder is left: holders are
// counted, and which of them has released twice cannot be known.
func (m *Message) Release() { m.taken.Held.Release() }

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

// Value returns the structure that was sent, with *Tensor leaves, lent. Errors are those of Bundle,
// and of Bundle.Value.
func (m *Message) Value() (any, error) {
	b, err := m.Bundle()
	if err != nil {
		return nil, err
	}
	return b.Value()
}

// Meta decodes the meta into v; without meta it leaves v alone. Errors are those of Bundle, and of
// Bundle.Meta.
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
	b.held, b.Live = &m.taken.Held, m.taken.Flags&protocol.SlotLive != 0
	b.names, b.tensors, m.tensors[0] = m.names[:], m.tensors[:], &m.oneTensor
	var d protocol.Tensor
	if protocol.ParseLone(m.taken.Body, &d, m.dims[:]) && d.Ref < len(m.taken.Held.Storages) {
		if err := m.describe(&m.oneTensor, &d); err != nil {
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
	body, err := protocol.ParseBody(m.taken.Body)
	if err != nil {
		return err
	}
	if err := body.CheckRefs(len(m.taken.Held.Storages)); err != nil {
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
		if err := m.describe(t, d); err != nil {
			return err
		}
		if len(b.tree) == 0 && d.Name != "" {
			t.name = protocol.TensorKey(d.Name)
		}
		b.names[i], b.tensors[i] = t.name, t
	}
	return nil
}

// describe fills in a lent tensor from its description, all of which is unchecked data from another
// process, as are the flags of its slot.
func (m *Message) describe(t *Tensor, d *protocol.Tensor) error {
	write := m.taken.Flags&protocol.SlotWritable != 0 && !d.ReadOnly
	t.c, t.held, t.storage, t.offset, t.shape, t.strides = m.c, &m.taken.Held, d.Ref, d.Offset, d.Shape, d.Strides
	t.readonly, t.name, t.lent = !write, d.Name, true
	t.dtype = dlpack.DType{Code: dlpack.TypeCode(d.Code), Bits: d.Bits, Lanes: d.Lanes}
	if err := t.check(); err != nil {
		return err
	}
	if t.storage >= 0 {
		if err := t.place(write); err != nil {
			return err
		}
	}
	if !t.device.Is(d) {
		return protocol.Errorf(protocol.CodeHandle, "update or restart its sender", "tensor %q is said to be on device type %d, number %d, and lies on %s",
			d.Name, d.DeviceType, d.DeviceID, t.Device())
	}
	return nil
}
