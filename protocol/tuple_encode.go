package protocol

import (
	"bytes"
	"encoding/binary"
)

// maxForm is the longest description that a TupleEncoder remembers.
const maxForm = 256 << 10

// TupleEncoder writes the tuples of one sender in one topic, from messages as they
// stand in its lane, into memory that its caller uses again. What is the same in
// all of them is written once; so is what describes the tensors, as long as
// messages differ in their storages and meta only, which then cost no allocation.
// Not for concurrent use.
type TupleEncoder struct {
	host     string
	begin    string // up to the sequence
	position string // from there up to the stamp
	handle   string // of a tensor, up to the segment
	form     tupleForm
}

// TupleMessage is what a tuple is made of. Nothing in it was checked.
type TupleMessage struct {
	Sequence, Stamp, Lost uint64
	Body                  []byte    // wire form, a private copy
	Storages              []Storage // that its Refs name
	Writable              bool      // its receivers may write
}

// Tensors tells how many tensors the message has, as far as it says so.
func (m *TupleMessage) Tensors() uint64 {
	if len(m.Body) < BodySize {
		return 0
	}
	return uint64(binary.LittleEndian.Uint32(m.Body[BodyTensors:]))
}

// tupleForm is a tuple's text behind its meta, with gaps for storages.
type tupleForm struct {
	known    bool
	writable bool
	count    uint32 // tensors
	tree     uint32 // bytes
	source   []byte // table and tree of the body
	text     []byte
	gaps     []formGap
	storages int // that the gaps need
}

// formGap is filled with a storage.
type formGap struct {
	cut
	storage    int
	byteOffset uint64
}

// NewTupleEncoder refuses (CodeHandle) what no tuple has.
func NewTupleEncoder(topic, sender, host string, origin Origin) (*TupleEncoder, error) {
	if err := checkOrigin(topic, sender, host, &origin); err != nil {
		return nil, err
	}
	begin := appendText([]byte(`{"v":1,"topic":`), topic)
	begin = appendText(append(begin, `,"sender":`...), sender)
	position := origin.append(appendText([]byte(`,"host":`), host))
	return &TupleEncoder{host: host,
		begin: string(begin) + `,"sequence":`, position: string(position) + `,"stamp":`,
		handle: `,"handle":` + string(appendHandleBegin(nil, host))}, nil
}

// Append writes the tuple of a message behind dst. It refuses what no reader would
// take, with CodeHandle or, for the body, CodeProtocol or CodeInvalid; dst is then
// returned as it was.
func (e *TupleEncoder) Append(dst []byte, m *TupleMessage) ([]byte, error) {
	meta, ok, err := e.knows(m)
	if err != nil {
		return dst, err
	}
	if !ok {
		if err := e.learn(m); err != nil {
			return dst, err
		}
	}
	head := Tuple{Sequence: m.Sequence, Stamp: m.Stamp, Lost: m.Lost, Meta: meta}
	if err := head.checkMessage(e.host); err != nil {
		return dst, err
	}
	f, from := &e.form, len(dst)
	dst = e.appendBegin(dst, m.Sequence, m.Stamp, m.Lost, meta)
	at := 0
	for i := range f.gaps {
		g := &f.gaps[i]
		s := &m.Storages[g.storage]
		if err := s.check(g.byteOffset); err != nil {
			return dst[:from], err
		}
		if s.Serial == 0 || s.Segment == 0 {
			return dst[:from], errTuple("has tensor %d without a storage", i)
		}
		dst = s.append(append(dst, f.text[at:g.from]...))
		at = g.to
	}
	dst = append(dst, f.text[at:]...)
	if !f.known {
		*f = tupleForm{} // too long to be kept
	}
	return dst, nil
}

// knows tells whether the message is described as the last one was, and finds its
// meta.
func (e *TupleEncoder) knows(m *TupleMessage) (meta []byte, ok bool, err error) {
	if len(m.Body) < BodySize {
		return nil, false, errBody("of %d bytes is shorter than its head", len(m.Body))
	}
	count := binary.LittleEndian.Uint32(m.Body[BodyTensors:])
	table := uint64(binary.LittleEndian.Uint32(m.Body[BodyTable:]))
	tree := binary.LittleEndian.Uint32(m.Body[BodyTree:])
	end := BodySize + table + uint64(tree)
	size := uint64(binary.LittleEndian.Uint32(m.Body[BodyMeta:]))
	if end+size != uint64(len(m.Body)) {
		return nil, false, errBody("of %d bytes has parts of %d, %d and %d", len(m.Body), table, tree, size)
	}
	if size > 0 {
		meta = m.Body[end:]
	}
	f := &e.form
	return meta, f.known && f.writable == m.Writable && f.count == count && f.tree == tree &&
		f.storages <= len(m.Storages) && bytes.Equal(f.source, m.Body[BodySize:end]), nil
}

// learn writes the form of a message.
func (e *TupleEncoder) learn(m *TupleMessage) error {
	f := &e.form
	f.known = false
	body, err := ParseBody(m.Body)
	if err == nil {
		err = body.CheckRefs(len(m.Storages))
	}
	if err != nil {
		return err
	}
	t := Tuple{Sequence: 1, Tensors: make([]TupleTensor, len(body.Tensors))}
	if len(body.Tree) > 0 {
		t.Value = body.Tree
	}
	for i := range body.Tensors {
		d := &body.Tensors[i]
		t.Tensors[i].Name = d.Name
		if t.Tensors[i].Handle, err = e.handleOf(d, m); err != nil {
			return err
		}
	}
	if err := t.checkMessage(e.host); err != nil {
		return err
	}
	var cuts []cut
	if f.text, cuts, err = e.appendForm(f.text[:0], &t, nil); err != nil {
		return err
	}
	f.gaps, f.storages = f.gaps[:0], 0
	for i := range body.Tensors {
		if d := &body.Tensors[i]; d.Ref >= 0 {
			f.gaps = append(f.gaps, formGap{cuts[i], d.Ref, d.Offset})
			f.storages = max(f.storages, d.Ref+1)
		}
	}
	f.source = append(f.source[:0], m.Body[BodySize:len(m.Body)-len(body.Meta)]...)
	f.writable, f.count, f.tree = m.Writable, uint32(len(body.Tensors)), uint32(len(body.Tree))
	f.known = len(f.text) <= maxForm
	return nil
}

// handleOf makes the handle of one tensor of a message.
func (e *TupleEncoder) handleOf(d *Tensor, m *TupleMessage) (Handle, error) {
	if d.DeviceType != 1 {
		return Handle{}, errTuple("has no stream to wait for, as tensors on a device of type %d want", d.DeviceType)
	}
	dtype, ok := DTypeName(d.Code, d.Bits, d.Lanes)
	if !ok {
		return Handle{}, errTuple("has a tensor of type %d.%d.%d, which has no name", d.Code, d.Bits, d.Lanes)
	}
	h := Handle{Host: e.host, DType: dtype, Shape: d.Shape, Strides: d.Strides, Device: "cpu", ReadOnly: d.ReadOnly || !m.Writable}
	if d.Ref >= 0 {
		s := &m.Storages[d.Ref]
		h.Segment, h.Serial, h.Index, h.Generation = s.Segment, s.Serial, s.Index, s.Generation
		h.Offset, h.Bytes, h.ByteOffset = s.Offset, s.Bytes, d.Offset
	}
	return h, nil
}
