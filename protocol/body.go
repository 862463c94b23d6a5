package protocol

import (
	"encoding/binary"
	"slices"
	"unicode/utf8"
)

// MaxTensors bounds the tensors of one message: the slot counts them in 16 bits.
const MaxTensors = 65535

// maxDesc is the longest TensorDesc: its size is a multiple of 8 in 16 bits.
const maxDesc = 0xfff8

// Tensor is one TensorDesc: a view over a storage of the message, as DLPack
// sees it. Code, Bits, Lanes and the device are carried as they are; whether
// they mean something, and whether the view lies within its storage, is for the
// dlpack package and the client to check.
type Tensor struct {
	Ref        int // which Ref of the message; -1: no elements, no storage
	Code, Bits uint8
	Lanes      uint16
	DeviceType int32
	DeviceID   int32
	Offset     uint64 // bytes, from the start of the storage
	ReadOnly   bool
	Shape      []int64
	Strides    []int64 // elements; nil: C-contiguous
	Name       string  // path in the tree; "": unnamed
}

// Body is the part of a message that describes it: its tensors, the JSON of the
// value tree and the JSON of meta. Tree and Meta are carried unread.
type Body struct {
	Tensors []Tensor
	Tree    []byte // empty: see DecodeValue
	Meta    []byte // empty: none
}

const remedyBody = "the sender wrote what is not a Baton message: update or restart it"

// BodyLen returns the bytes that AppendBody writes. It refuses what has no form
// on the wire (CodeInvalid): more than MaxNdim dimensions, a negative one,
// strides of another count, a tensor without storage that has elements, a name
// that is too long or not UTF-8, more than MaxTensors tensors or MaxBody bytes.
func BodyLen(b *Body) (int, error) {
	if len(b.Tensors) > MaxTensors {
		return 0, Errorf(CodeInvalid, "send fewer at once", "a message of %d tensors: at most %d fit", len(b.Tensors), MaxTensors)
	}
	if len(b.Tree) > MaxBody || len(b.Meta) > MaxBody {
		return 0, errBodyLen(len(b.Tree), len(b.Meta))
	}
	n := BodySize + len(b.Tree) + len(b.Meta)
	for i := range b.Tensors {
		size, err := descLen(&b.Tensors[i])
		if err != nil {
			return 0, err
		}
		n += size
	}
	if n > MaxBody {
		return 0, errBodyLen(len(b.Tree), len(b.Meta))
	}
	return n, nil
}

func errBodyLen(tree, meta int) error {
	return Errorf(CodeInvalid, "put large values into tensors: they are handed over uncopied",
		"the description of the message (value %d bytes, meta %d) is longer than %d bytes", tree, meta, MaxBody)
}

func descLen(t *Tensor) (int, error) {
	if len(t.Shape) > MaxNdim {
		return 0, errTensor(t, "reshape it", "has %d dimensions, at most %d fit", len(t.Shape), MaxNdim)
	}
	words := len(t.Shape)
	if t.Strides != nil {
		if len(t.Strides) != len(t.Shape) {
			return 0, errTensor(t, "give one stride for each dimension, or none", "has %d strides for %d dimensions", len(t.Strides), len(t.Shape))
		}
		words *= 2
	}
	empty := false
	for _, d := range t.Shape {
		if d < 0 {
			return 0, errTensor(t, "correct the shape", "has the negative dimension %d", d)
		}
		empty = empty || d == 0
	}
	switch {
	case t.Ref == -1:
		if !empty {
			return 0, errTensor(t, "name its storage", "has elements but no storage")
		}
	case t.Ref < 0 || t.Ref >= MaxRefs:
		return 0, errTensor(t, "name one of the message's storages", "names storage %d of the message, outside 0 to %d", t.Ref, MaxRefs-1)
	}
	if len(t.Name) > maxDesc {
		return 0, errTensor(t, "use a shorter one", "has a name of %d bytes", len(t.Name))
	}
	if t.Name != "" && !utf8.ValidString(t.Name) {
		return 0, errTensor(t, "use UTF-8", "has a name that is not UTF-8")
	}
	n := (DescShape + 8*words + len(t.Name) + 7) &^ 7
	if n > maxDesc {
		return 0, errTensor(t, "use a shorter name", "needs a description of %d bytes, at most %d fit", n, maxDesc)
	}
	return n, nil
}

func errTensor(t *Tensor, remedy, format string, args ...any) error {
	name := t.Name
	if len(name) > MaxName {
		name = name[:MaxName] + "…"
	}
	return Errorf(CodeInvalid, remedy, "tensor %q "+format, append([]any{name}, args...)...)
}

// AppendBody appends the wire form of b to dst. Where dst has BodyLen bytes of
// room it writes there and allocates nothing, so dst may be shared memory cut
// to length 0. It writes each byte once and reads none back. Errors are those
// of BodyLen; dst is unchanged then.
func AppendBody(dst []byte, b *Body) ([]byte, error) {
	n, err := BodyLen(b)
	if err != nil {
		return dst, err
	}
	at := len(dst)
	dst = slices.Grow(dst, n)[:at+n]
	out := dst[at:]
	binary.LittleEndian.PutUint32(out[BodyTensors:], uint32(len(b.Tensors)))
	binary.LittleEndian.PutUint32(out[BodyTable:], uint32(n-BodySize-len(b.Tree)-len(b.Meta)))
	binary.LittleEndian.PutUint32(out[BodyTree:], uint32(len(b.Tree)))
	binary.LittleEndian.PutUint32(out[BodyMeta:], uint32(len(b.Meta)))
	out = out[BodySize:]
	for i := range b.Tensors {
		out = out[putDesc(out, &b.Tensors[i]):]
	}
	out = out[copy(out, b.Tree):]
	copy(out, b.Meta)
	return dst, nil
}

// putDesc writes one checked TensorDesc and returns its size.
func putDesc(out []byte, t *Tensor) int {
	ref, flags := uint16(NoRef), uint16(0)
	if t.Ref >= 0 {
		ref = uint16(t.Ref)
	}
	if t.Strides != nil {
		flags |= DescStrides
	}
	if t.ReadOnly {
		flags |= DescReadOnly
	}
	size := (DescShape + 8*(len(t.Shape)+len(t.Strides)) + len(t.Name) + 7) &^ 7
	out = out[:size]
	binary.LittleEndian.PutUint16(out[DescSize:], uint16(size))
	binary.LittleEndian.PutUint16(out[DescRef:], ref)
	out[DescCode], out[DescBits] = t.Code, t.Bits
	binary.LittleEndian.PutUint16(out[DescLanes:], t.Lanes)
	binary.LittleEndian.PutUint16(out[DescNdim:], uint16(len(t.Shape)))
	binary.LittleEndian.PutUint16(out[DescName:], uint16(len(t.Name)))
	binary.LittleEndian.PutUint32(out[DescFlags:], uint32(flags)) // and the zero after them
	binary.LittleEndian.PutUint32(out[DescDeviceType:], uint32(t.DeviceType))
	binary.LittleEndian.PutUint32(out[DescDeviceID:], uint32(t.DeviceID))
	binary.LittleEndian.PutUint64(out[DescOffset:], t.Offset)
	out = out[DescShape:]
	for _, d := range t.Shape {
		binary.LittleEndian.PutUint64(out, uint64(d))
		out = out[8:]
	}
	for _, d := range t.Strides {
		binary.LittleEndian.PutUint64(out, uint64(d))
		out = out[8:]
	}
	clear(out[copy(out, t.Name):])
	return size
}
