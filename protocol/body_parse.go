package protocol

import (
	"encoding/binary"
	"unicode/utf8"
)

// ParseBody reads the wire form. src must be the body alone, and a private copy:
// not memory that its sender can still write. Tree and Meta alias it. Lengths,
// counts, flags, reserved bytes and padding are checked, so that a body has one
// form only; types, devices, and views against storages are not (see Tensor),
// nor the number of Refs (see CheckRefs). Errors have CodeProtocol.
func ParseBody(src []byte) (*Body, error) {
	h, err := checkBody(src)
	if err != nil {
		return nil, err
	}
	b := &Body{Tensors: make([]Tensor, h.count)}
	h.fill(b, make([]int64, h.dims), src)
	return b, nil
}

// ParseLone reads the common body, that of one tensor without a name, tree or
// meta, with its dimensions and strides in dims, and needs no memory of its own.
// It returns false for every other body, malformed or not: that is ParseBody's.
func ParseLone(src []byte, t *Tensor, dims []int64) bool {
	if len(src) < BodySize+DescShape {
		return false
	}
	table := src[BodySize:]
	if binary.LittleEndian.Uint64(src[BodyTensors:]) != 1|uint64(len(table))<<32 || binary.LittleEndian.Uint64(src[BodyTree:]) != 0 {
		return false
	}
	size, words, name, err := checkDesc(table)
	if err != nil || size != len(table) || name != 0 || words > len(dims) {
		return false
	}
	t.Name = ""
	getDesc(t, table, dims)
	return true
}

// bodyHead is what checkBody found: the body can be read without more checks.
type bodyHead struct {
	count int // tensors
	dims  int // dimensions and strides of all of them
	table int // bytes
	tree  int // bytes
	named bool
}

func checkBody(src []byte) (h bodyHead, err error) {
	if len(src) < BodySize {
		return h, errBody("of %d bytes is shorter than its head", len(src))
	}
	if len(src) > MaxBody {
		return h, errBody("of %d bytes is longer than %d", len(src), MaxBody)
	}
	count := uint64(binary.LittleEndian.Uint32(src[BodyTensors:]))
	table := uint64(binary.LittleEndian.Uint32(src[BodyTable:]))
	tree := uint64(binary.LittleEndian.Uint32(src[BodyTree:]))
	meta := uint64(binary.LittleEndian.Uint32(src[BodyMeta:]))
	if BodySize+table+tree+meta != uint64(len(src)) {
		return h, errBody("of %d bytes has parts of %d, %d and %d", len(src), table, tree, meta)
	}
	if count > MaxTensors || count > table/DescShape {
		return h, errBody("has %d tensors in a table of %d bytes", count, table)
	}
	h = bodyHead{count: int(count), table: int(table), tree: int(tree)}
	h.dims, h.named, err = checkTable(src[BodySize:BodySize+table], h.count)
	return h, err
}

// fill reads a checked body into b, whose Tensors are h.count already.
func (h *bodyHead) fill(b *Body, space []int64, src []byte) {
	descs := src[BodySize : BodySize+h.table]
	names := ""
	if h.named {
		names = string(descs) // one allocation for all names, which are parts of it
	}
	at := 0
	for i := range b.Tensors {
		t := &b.Tensors[i]
		size, name := 0, 0
		size, name, space = getDesc(t, descs[at:], space)
		if t.Name = ""; name > 0 {
			from := at + DescShape + 8*(len(t.Shape)+len(t.Strides))
			t.Name = names[from : from+name]
		}
		at += size
	}
	at += BodySize
	if h.tree > 0 {
		b.Tree = src[at : at+h.tree : at+h.tree]
	}
	if at += h.tree; at < len(src) {
		b.Meta = src[at:]
	}
}

// checkTable walks a table of count TensorDescs that must fill it, and returns
// the number of dimensions and strides in all and whether any has a name.
func checkTable(table []byte, count int) (dims int, named bool, err error) {
	for i := range count {
		size, words, name, err := checkDesc(table)
		if err != nil {
			return 0, false, Errorf(CodeProtocol, remedyBody, "tensor %d of the message body %w", i, err)
		}
		dims += words
		named = named || name > 0
		table = table[size:]
	}
	if len(table) != 0 {
		return 0, false, errBody("has %d bytes after the last tensor of its table", len(table))
	}
	return dims, named, nil
}

// descError says what is wrong with a TensorDesc; it follows "tensor N".
type descError string

func (e descError) Error() string { return string(e) }

func checkDesc(d []byte) (size, words, name int, err error) {
	if len(d) < DescShape {
		return 0, 0, 0, descError("does not fit in the table")
	}
	size = int(binary.LittleEndian.Uint16(d[DescSize:]))
	ndim := int(binary.LittleEndian.Uint16(d[DescNdim:]))
	name = int(binary.LittleEndian.Uint16(d[DescName:]))
	flags := binary.LittleEndian.Uint32(d[DescFlags:]) // and the zero after them
	if ndim > MaxNdim {
		return 0, 0, 0, descError("has more than 64 dimensions")
	}
	if flags&^(DescStrides|DescReadOnly) != 0 {
		return 0, 0, 0, descError("has flags that are not of this version")
	}
	words = ndim
	if flags&DescStrides != 0 {
		words *= 2
	}
	end := DescShape + 8*words + name
	if size != (end+7)&^7 {
		return 0, 0, 0, descError("has a size that its dimensions and name do not make")
	}
	if size > len(d) {
		return 0, 0, 0, descError("reaches past the table")
	}
	empty := false
	for i := range ndim {
		n := int64(binary.LittleEndian.Uint64(d[DescShape+8*i:]))
		if n < 0 {
			return 0, 0, 0, descError("has a negative dimension")
		}
		empty = empty || n == 0
	}
	if binary.LittleEndian.Uint16(d[DescRef:]) == NoRef && !empty {
		return 0, 0, 0, descError("has elements but no storage")
	}
	if name > 0 && !utf8.Valid(d[end-name:end]) {
		return 0, 0, 0, descError("has a name that is not UTF-8")
	}
	for _, c := range d[end:size] {
		if c != 0 {
			return 0, 0, 0, descError("has padding that is not zero")
		}
	}
	return size, words, name, nil
}

// getDesc reads a checked TensorDesc, all but its name, into memory of space. It
// returns the bytes of the description and of the name, and the space left.
func getDesc(t *Tensor, d []byte, space []int64) (size, name int, left []int64) {
	t.Ref = int(binary.LittleEndian.Uint16(d[DescRef:]))
	if t.Ref == NoRef {
		t.Ref = -1
	}
	t.Code, t.Bits = d[DescCode], d[DescBits]
	t.Lanes = binary.LittleEndian.Uint16(d[DescLanes:])
	t.DeviceType = int32(binary.LittleEndian.Uint32(d[DescDeviceType:]))
	t.DeviceID = int32(binary.LittleEndian.Uint32(d[DescDeviceID:]))
	t.Offset = binary.LittleEndian.Uint64(d[DescOffset:])
	flags := binary.LittleEndian.Uint16(d[DescFlags:])
	t.ReadOnly = flags&DescReadOnly != 0
	ndim := int(binary.LittleEndian.Uint16(d[DescNdim:]))
	t.Shape, space = takeDims(space, d[DescShape:], ndim)
	t.Strides = nil
	if flags&DescStrides != 0 {
		t.Strides, space = takeDims(space, d[DescShape+8*ndim:], ndim)
	}
	return int(binary.LittleEndian.Uint16(d[DescSize:])), int(binary.LittleEndian.Uint16(d[DescName:])), space
}

func takeDims(space []int64, src []byte, n int) (dims, left []int64) {
	dims, left = space[:n:n], space[n:]
	for i := range dims {
		dims[i] = int64(binary.LittleEndian.Uint64(src[8*i:]))
	}
	return dims, left
}

// CheckRefs refuses (CodeProtocol) a body with a tensor that names a Ref which
// the message, having n of them, does not have.
func (b *Body) CheckRefs(n int) error {
	for i := range b.Tensors {
		if r := b.Tensors[i].Ref; r >= n {
			return errBody("has tensor %d in storage %d, but the message names %d", i, r, n)
		}
	}
	return nil
}

func errBody(format string, args ...any) error {
	return Errorf(CodeProtocol, remedyBody, "a message body "+format, args...)
}
