package protocol

import (
	"encoding/binary"
	"slices"
)

// Ref names one storage in a message. Serial is that of the chunk of indices
// that Index belongs to, so that a storage of an earlier owner of the same
// index is never mistaken for it.
type Ref struct {
	Serial     uint64
	Generation uint64 // 52 bits
	Index      uint32 // below MaxStorages
}

// MaxSpill is the most bytes that a spill takes.
const MaxSpill = SpillSize + MaxRefs*RefSize + MaxBody

// AppendRefs appends the wire form of refs to dst, in place where dst has the
// room. Refs are the caller's own and are not checked.
func AppendRefs(dst []byte, refs []Ref) []byte {
	at := len(dst)
	n := len(refs) * RefSize
	dst = slices.Grow(dst, n)[:at+n]
	out := dst[at:]
	for i := range refs {
		r := out[i*RefSize : i*RefSize+RefSize]
		binary.LittleEndian.PutUint64(r[RefSerial:], refs[i].Serial)
		binary.LittleEndian.PutUint64(r[RefGeneration:], refs[i].Generation)
		binary.LittleEndian.PutUint64(r[RefIndex:], uint64(refs[i].Index)) // and the zero after it
	}
	return dst
}

// ParseRefs reads n Refs from the start of src and appends them to dst, which
// is returned unchanged with an error (CodeProtocol) when they do not fit or a
// number in them can name no storage. src must be a private copy.
func ParseRefs(dst []Ref, src []byte, n int) ([]Ref, error) {
	if n < 0 || n > MaxRefs || n > len(src)/RefSize {
		return dst, Errorf(CodeProtocol, remedyBody, "a message names %d storages in %d bytes", n, len(src))
	}
	at := len(dst)
	out := slices.Grow(dst, n)[:at+n]
	for i := range n {
		r := src[i*RefSize : i*RefSize+RefSize]
		ref := Ref{
			Serial:     binary.LittleEndian.Uint64(r[RefSerial:]),
			Generation: binary.LittleEndian.Uint64(r[RefGeneration:]),
		}
		index := binary.LittleEndian.Uint64(r[RefIndex:]) // and the zero after it
		if index >= MaxStorages || ref.Serial == 0 || ref.Generation > GenerationMask {
			return dst, Errorf(CodeProtocol, remedyBody, "storage %d of a message has index %#x, serial %d, generation %#x",
				i, index, ref.Serial, ref.Generation)
		}
		ref.Index = uint32(index)
		out[at+i] = ref
	}
	return out, nil
}

// SpillLen returns the bytes of a spill of refs Refs and a body of body bytes,
// or CodeInvalid where there are more than MaxRefs or MaxBody.
func SpillLen(refs, body int) (int, error) {
	if refs < 0 || refs > MaxRefs {
		return 0, Errorf(CodeInvalid, "send fewer storages at once, or pack tensors into one", "a message of %d storages: at most %d fit", refs, MaxRefs)
	}
	if body < 0 || body > MaxBody {
		return 0, Errorf(CodeInvalid, "put large values into tensors", "a message body of %d bytes: at most %d fit", body, MaxBody)
	}
	return SpillSize + refs*RefSize + body, nil
}

// AppendSpill appends to dst what a spill storage holds, in place where dst has
// SpillLen bytes of room. Errors are those of SpillLen; dst is unchanged then.
func AppendSpill(dst []byte, refs []Ref, body []byte) ([]byte, error) {
	n, err := SpillLen(len(refs), len(body))
	if err != nil {
		return dst, err
	}
	dst = slices.Grow(dst, n)
	dst = binary.LittleEndian.AppendUint64(dst, SpillMagic)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(refs)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(body)))
	dst = AppendRefs(dst, refs)
	return append(dst, body...), nil
}

// ParseSpill reads the content of a spill storage. src must be a private copy;
// body aliases it. Bytes after the body are ignored: a storage may be larger
// than what stands in it. The body itself is not read: see ParseBody. Errors
// have CodeProtocol.
func ParseSpill(src []byte) (refs []Ref, body []byte, err error) {
	if len(src) < SpillSize {
		return nil, nil, Errorf(CodeProtocol, remedyBody, "a spilled message of %d bytes is shorter than its head", len(src))
	}
	if magic := binary.LittleEndian.Uint64(src[SpillMagicAt:]); magic != SpillMagic {
		return nil, nil, Errorf(CodeProtocol, remedyBody, "a spilled message begins with %#x, not %#x", magic, SpillMagic)
	}
	nref := uint64(binary.LittleEndian.Uint32(src[SpillNref:]))
	size := uint64(binary.LittleEndian.Uint32(src[SpillBody:]))
	if nref > MaxRefs || size > MaxBody || SpillSize+nref*RefSize+size > uint64(len(src)) {
		return nil, nil, Errorf(CodeProtocol, remedyBody, "a spilled message of %d storages and %d bytes does not fit in its storage of %d bytes", nref, size, len(src))
	}
	at := SpillSize + nref*RefSize
	if refs, err = ParseRefs(nil, src[SpillSize:at], int(nref)); err != nil {
		return nil, nil, err
	}
	return refs, src[at : at+size : at+size], nil
}
