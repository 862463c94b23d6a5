package shm

import (
	"math"
	"math/bits"

	"github.com/baton-ipc/baton/protocol"
)

// A brief message stands in its slot's first line (docs/protocol.md, Brief). Here it
// is a form of the slot alone: Write takes it where a message is such, and Read
// copies it as the words that a longer one has, so that no other code knows of it.

// Words of a message of one tensor: its ref, the head of its body, its description
// up to the extents.
const (
	loneBody   = protocol.RefSize / 8
	loneDesc   = loneBody + protocol.BodySize/8
	loneShape  = loneDesc + protocol.DescShape/8
	loneMost   = loneShape + protocol.BriefMaxNdim
	briefWords = (protocol.BriefSize - protocol.BriefFlags) / 8
	cpu        = 1 // device type
)

// packBrief returns the words behind the stamp of a message that can be brief.
func packBrief(h *SlotHead, data []uint64) (w [briefWords]uint64, ok bool) {
	ndim := uint64(len(data) - loneShape)
	if len(data) < loneShape || len(data) > loneMost || h.Nref != 1 || h.Tensors != 1 ||
		h.Flags&^(protocol.SlotWritable|protocol.SlotLive) != 0 {
		return w, false
	}
	size := protocol.DescShape + 8*ndim
	desc := data[loneDesc:]
	flags := desc[1] >> 32
	if uint64(h.Body) != protocol.BodySize+size || data[loneBody] != 1|size<<32 || data[loneBody+1] != 0 ||
		desc[0]&math.MaxUint32 != size || desc[1]&math.MaxUint32 != ndim || flags&^protocol.DescReadOnly != 0 ||
		desc[2] != cpu || desc[3] != 0 || data[2] > math.MaxUint32 {
		return w, false
	}
	word := uint64(h.Flags) | protocol.SlotBrief | ndim<<16 | data[2]<<32
	if flags != 0 {
		word |= protocol.SlotReadOnly
	}
	w = [briefWords]uint64{word, data[0], data[1], desc[0] >> 32}
	for k, n := range data[loneShape:] {
		if n > math.MaxUint32 {
			return w, false
		}
		w[4+k/2] |= n << (32 * (k & 1))
	}
	return w, true
}

// unpackBrief puts a brief message into words that have room for it. It returns false for what no
// writer that keeps to the protocol has written.
func unpackBrief(w *[briefWords]uint64, stamp uint64, words []uint64) (SlotHead, []uint64, bool) {
	flags, ndim := uint32(w[0])&math.MaxUint16, w[0]&math.MaxUint32>>16
	const known = protocol.SlotBrief | protocol.SlotWritable | protocol.SlotLive | protocol.SlotReadOnly
	if ndim > protocol.BriefMaxNdim || flags&^known != 0 || w[3] > math.MaxUint32 {
		return SlotHead{}, words[:0], false
	}
	n := loneShape + int(ndim)
	if cap(words) < n {
		words = make([]uint64, n, loneMost)
	}
	words = words[:n]
	size := protocol.DescShape + 8*ndim
	words[0], words[1], words[2] = w[1], w[2], w[0]>>32
	words[loneBody], words[loneBody+1] = 1|size<<32, 0
	desc := words[loneDesc:n]
	desc[0], desc[1], desc[2], desc[3] = size|w[3]<<32, ndim, cpu, 0
	if flags&protocol.SlotReadOnly != 0 {
		desc[1] |= protocol.DescReadOnly << 32
	}
	elements, over := uint64(1), uint64(0)
	for k := range words[loneShape:] {
		e := w[4+k/2] >> (32 * (k & 1)) & math.MaxUint32
		words[loneShape+k] = e
		var high uint64
		high, elements = bits.Mul64(elements, e)
		over |= high
	}
	// The bytes are unchecked data from the writer here as elsewhere.
	high, low := bits.Mul64(elements, w[3]>>8&math.MaxUint8*(w[3]>>16&math.MaxUint16))
	if over|high != 0 {
		low = math.MaxUint64
	}
	h := SlotHead{Stamp: stamp, Flags: flags & (protocol.SlotWritable | protocol.SlotLive), Nref: 1, Tensors: 1,
		Bytes: low/8 + (low&7+7)/8, Body: uint32(protocol.BodySize + size)}
	return h, words, true
}
