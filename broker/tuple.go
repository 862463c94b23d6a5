package broker

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// tuple describes message i of a lane as JSON. It takes no reference: what it
// reads beside the slot (storage entries, a spill) belongs to storages that the
// slot names, and if the slot still names the message afterwards, none of them
// has changed. Callers hold mu.
func (m *mirror) tuple(t *topic, l *lane, i, lost uint64) ([]byte, bool) {
	h, words, ok := l.view.Read(i, m.words[:0])
	m.words = words
	if !ok {
		return nil, false
	}
	refs, err := protocol.ParseRefs(nil, shm.BytesOf(words), int(h.Nref))
	if err != nil {
		return nil, false
	}
	src := h.BodyOf(words)
	if h.Flags&protocol.SlotSpilled != 0 {
		if len(refs) != 1 {
			return nil, false
		}
		if refs, src, err = m.b.spilled(refs[0]); err != nil {
			return nil, false
		}
	}
	body, err := protocol.ParseBody(src)
	if err != nil || body.CheckRefs(len(refs)) != nil {
		return nil, false
	}
	out := protocol.Tuple{Topic: t.key.name, Sender: l.pages.name, Sequence: i, Host: m.b.id, Stamp: h.Stamp / 1000, Lost: lost}
	if len(body.Meta) > 0 {
		out.Meta = body.Meta
	}
	if len(body.Tree) > 0 {
		out.Value = body.Tree
	}
	for k := range body.Tensors {
		handle, ok := m.b.handleOf(&body.Tensors[k], refs, h.Flags)
		if !ok {
			return nil, false
		}
		out.Tensors = append(out.Tensors, protocol.TupleTensor{Name: body.Tensors[k].Name, Handle: handle})
	}
	data, err := out.MarshalJSON()
	// SYNC slot-seq: the second look, after everything else was read.
	shm.FenceAcquire()
	return data, err == nil && l.view.Has(i)
}

// handleOf makes the handle of one tensor of a message.
func (b *Broker) handleOf(d *protocol.Tensor, refs []protocol.Ref, flags uint32) (protocol.Handle, bool) {
	dtype, ok := protocol.DTypeName(d.Code, d.Bits, d.Lanes)
	if !ok || d.DeviceType != 1 {
		return protocol.Handle{}, false
	}
	h := protocol.Handle{Host: b.id, DType: dtype, Shape: d.Shape, Strides: d.Strides, Device: "cpu",
		ReadOnly: d.ReadOnly || flags&protocol.SlotWritable == 0}
	if d.Ref < 0 {
		return h, true
	}
	r := refs[d.Ref]
	c := b.findChunkOf(r.Index, r.Serial)
	if c == nil {
		return h, false
	}
	e := c.segment.owner.entries.Load(r.Index)
	if e.Generation != r.Generation {
		return h, false
	}
	h.Segment, h.Serial, h.Index, h.Generation = c.segment.serial, r.Serial, r.Index, r.Generation
	h.Offset, h.Bytes, h.ByteOffset = e.Offset, e.Bytes, d.Offset
	return h, true
}

// spilled reads the refs and the body of a spilled message. The spill storage is
// held meanwhile, in the way of one who opens a handle.
func (b *Broker) spilled(r protocol.Ref) ([]protocol.Ref, []byte, error) {
	if err := b.hold(r); err != nil {
		return nil, nil, err
	}
	defer b.own.row.Drop(r.Index)
	private, err := b.copySpill(r)
	if err != nil {
		return nil, nil, err
	}
	return protocol.ParseSpill(private)
}
