package broker

import (
	"encoding/json"
	"fmt"
	"math/bits"

	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/protocol"
)

// TensorRow describes one tensor of a name.
type TensorRow = topics.TensorRow

const (
	// pageContents is how many bytes of descriptions end a page of names, so that it fits in a frame.
	pageContents = 256 << 10
	// mostContents bounds the JSON of one name's tensors, mostMeta its meta.
	mostContents = 1 << 20
	mostMeta     = 64 << 10
)

// contents are copies of names' messages, one for each row of a page; nil: it cannot be read. A nil contents copies none.
type contents struct {
	copied   copied
	messages []*protocol.TupleMessage
	bytes    int
}

// add copies what the name in place i of the table describes, with the mutex held.
func (c *contents) add(b *Broker, i int) {
	if c == nil {
		return
	}
	lane, revision := b.topics.RevisionAt(i)
	m := &protocol.TupleMessage{}
	if lane == nil || !c.copied.message(b, lane, revision, m) {
		m = nil
	}
	c.messages = append(c.messages, m)
	if m != nil {
		c.bytes += len(m.Body)
	}
}

func (c *contents) full() bool {
	return c != nil && (c.bytes > pageContents || c.copied.spilled > copiedSpills)
}

// describe adds the contents to the rows of a page. The mutex is not held: a setter may have described much.
func (c *contents) describe(rows []any) {
	for i, m := range c.messages {
		if row, ok := rows[i].(NameRow); ok && m != nil {
			row.Contents = contentsOf(m)
			rows[i] = row
		}
	}
}

// contentsOf reads a description; nil: its setter wrote none.
func contentsOf(m *protocol.TupleMessage) *topics.NameContents {
	body, err := protocol.ParseBody(m.Body)
	if err != nil {
		return nil
	}
	c := &topics.NameContents{Tensors: []TensorRow{}}
	room := mostContents
	for i := range body.Tensors {
		t := &body.Tensors[i]
		if room -= 128 + 6*len(t.Name) + 21*(len(t.Shape)+len(t.Strides)); room < 0 { // as JSON, at most
			c.More = len(body.Tensors) - i
			break
		}
		row := tensorRow(t, m.Writable)
		if len(body.Tree) == 0 { // a flat dict: its names are keys
			row.Name = protocol.TensorKey(t.Name)
		}
		c.Tensors = append(c.Tensors, row)
	}
	if len(body.Meta) <= mostMeta && json.Valid(body.Meta) {
		c.Meta = body.Meta
	}
	return c
}

func tensorRow(t *protocol.Tensor, writable bool) TensorRow {
	dtype, known := protocol.DTypeName(t.Code, t.Bits, t.Lanes)
	if !known {
		dtype = fmt.Sprintf("dtype(code=%d,bits=%d,lanes=%d)", t.Code, t.Bits, t.Lanes)
	}
	shape := t.Shape
	if shape == nil {
		shape = []int64{}
	}
	return TensorRow{Name: t.Name, DType: dtype, Shape: shape, Strides: t.Strides, Bytes: tensorBytes(t), ReadOnly: t.ReadOnly || !writable}
}

// tensorBytes is what the elements of a tensor take, 0 where that is no number: its setter wrote the shape.
func tensorBytes(t *protocol.Tensor) int64 {
	n := uint64(t.Bits) * uint64(t.Lanes)
	for _, d := range t.Shape {
		if d == 0 {
			return 0
		}
		high, low := bits.Mul64(n, uint64(d))
		if high != 0 || low > protocol.MaxSafeInt {
			return 0
		}
		n = low
	}
	return int64((n + 7) / 8)
}
