package shm

import (
	"encoding/binary"
	"math"
	"sync/atomic"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// Lane is one writer's ring in one topic: slots of fixed stride, message i in
// slot i mod slots (docs/protocol.md, Lane). The geometry comes from the broker,
// never from the page.
type Lane struct {
	r      Region // the lane's bytes
	mask   uint64
	stride uint64
}

// SlotHead is what a slot says of its message. Values read from a slot are unchecked data from
// the writer: only sizes are checked, against the stride.
type SlotHead struct {
	Stamp   uint64 // ns, CLOCK_MONOTONIC
	Flags   uint32
	Nref    uint16
	Tensors uint16
	Bytes   uint64 // of all tensors
	Body    uint32
}

// NewLane views a lane at an offset of a session file. It fails when the lane
// does not fit: geometry and offset come from the broker, the file's size from
// the kernel.
func NewLane(file Region, offset uint64, slots, stride uint32) (Lane, error) {
	n := protocol.LaneBytes(slots, stride)
	if slots == 0 || slots&(slots-1) != 0 || stride < protocol.SlotSize || stride&63 != 0 ||
		offset&(protocol.PageBytes-1) != 0 || !file.Has(offset, n) {
		return Lane{}, protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md: broker and client disagree",
			"lane of %d slots of %d bytes at %d does not fit a file of %d", slots, stride, offset, file.Len())
	}
	return Lane{file.Sub(offset, n), uint64(slots - 1), uint64(stride)}, nil
}

// Init writes the head of a new lane whose pages are zero. Only its writer.
func (l Lane) Init(topicID uint64) {
	l.r.Store32(protocol.LaneSlots, uint32(l.mask+1))
	l.r.Store32(protocol.LaneStride, uint32(l.stride))
	l.r.Store64(protocol.LaneTopicID, topicID)
}

// Clear empties a lane's range for reuse. Only its writer, when no reader reads it.
func (l Lane) Clear() {
	for i := uint64(0); i <= l.mask; i++ {
		l.r.Store64(l.slot(i), 0)
	}
	l.r.Store64(protocol.LaneHead, 0)
	l.r.Store64(protocol.LaneTotal, 0)
}

// Slots returns the number of slots.
func (l Lane) Slots() uint64 { return l.mask + 1 }

// Capacity returns the bytes that refs and body of one message may take in a slot.
func (l Lane) Capacity() int { return int(l.stride) - protocol.SlotSize }

func (l Lane) slot(i uint64) uint64 { return protocol.LaneSlotsAt + (i&l.mask)*l.stride }

// mostMessages is more than a lane ever has, and leaves room for many lanes in the
// numbers of a group's area.
const mostMessages = 1<<48 - 2

// Head returns the number of the last message published, 0 for none. It is data from the
// writer, kept within what a lane can have: code that counts up to it, or one
// beyond it, comes to an end.
//
// SYNC lane-head: pairs with Publish; slots up to head were published before.
func (l Lane) Head() uint64 { return min(l.r.Load64(protocol.LaneHead), mostMessages) }

// Total returns the bytes of the tensors of all messages so far, for listings: its writer
// may say anything.
func (l Lane) Total() uint64 { return l.r.Load64(protocol.LaneTotal) }

// AddTotal adds a message to it, before Publish. Only its writer.
func (l Lane) AddTotal(bytes uint64) {
	l.r.writeWord(protocol.LaneTotal, l.r.Load64(protocol.LaneTotal)+bytes)
}

// Seq returns the number that slot i holds, 0 when it holds none.
//
// SYNC slot-seq: an acquire load; a number read here was stored by Publish
// after the slot's body, and what a taker raised before a second look is seen
// by an owner that finds the slot un-named.
func (l Lane) Seq(i uint64) uint64 { return l.r.Load64(l.slot(i) + protocol.SlotSeq) }

// Has tells whether slot i still holds message i.
func (l Lane) Has(i uint64) bool { return l.Seq(i) == i }

// Stamp returns the time of message i; of use only if Has says so afterwards.
func (l Lane) Stamp(i uint64) uint64 { return l.r.Load64(l.slot(i) + protocol.SlotStamp) }

// FetchSecond starts to fetch the second line of message i's slot, while it is
// waited for: it is there when the number comes, or on its way beside it.
func (l Lane) FetchSecond(i uint64) {
	if l.stride > lineBytes {
		l.r.Prefetch(l.slot(i) + lineBytes)
	}
}

// Fetch starts to fetch what a small message has, its head, refs and body.
func (l Lane) Fetch(i uint64) {
	l.r.Prefetch(l.slot(i))
	l.FetchSecond(i)
	if l.stride > 2*lineBytes {
		l.r.Prefetch(l.slot(i) + 2*lineBytes)
	}
}

// FirstIndex returns what stands where message i, just seen, names its first
// storage. It is of use only to fetch ahead what belongs to it: nothing here was
// checked.
func (l Lane) FirstIndex(i uint64) uint32 {
	line := l.r.line(l.slot(i))
	if w := atomic.LoadUint64(&line[protocol.SlotFlags/8]); w&protocol.SlotBrief != 0 {
		return uint32(w >> 32)
	}
	return uint32(atomic.LoadUint64(&line[(protocol.SlotSize+protocol.RefIndex)/8]))
}

// FirstRef returns what message i names first, where slot i holds it and it names anything.
// It is a hint of what taking the message will need: nothing here was checked.
func (l Lane) FirstRef(i uint64) (ref protocol.Ref, ok bool) {
	line := l.r.line(l.slot(i))
	flags := atomic.LoadUint64(&line[protocol.SlotFlags/8])
	if i == 0 || atomic.LoadUint64(&line[protocol.SlotSeq/8]) != i {
		return ref, false
	}
	if flags&protocol.SlotBrief != 0 {
		return protocol.Ref{Serial: atomic.LoadUint64(&line[protocol.BriefSerial/8]),
			Generation: atomic.LoadUint64(&line[protocol.BriefGeneration/8]), Index: uint32(flags >> 32)}, true
	}
	if uint16(flags>>32) == 0 {
		return ref, false
	}
	const at = protocol.SlotSize
	return protocol.Ref{Serial: atomic.LoadUint64(&line[(at+protocol.RefSerial)/8]),
		Generation: atomic.LoadUint64(&line[(at+protocol.RefGeneration)/8]),
		Index:      uint32(atomic.LoadUint64(&line[(at+protocol.RefIndex)/8]))}, true
}

// Read copies message i into words: refs, then body. It returns false when the
// slot does not hold i or what it says is impossible. The copy is worth
// something only if Has(i) is still true after the references were counted.
func (l Lane) Read(i uint64, words []uint64) (SlotHead, []uint64, bool) {
	at := l.slot(i)
	line := l.r.line(at)
	if atomic.LoadUint64(&line[protocol.SlotSeq/8]) != i || i == 0 {
		return SlotHead{}, words[:0], false
	}
	stamp, counts := atomic.LoadUint64(&line[protocol.SlotStamp/8]), atomic.LoadUint64(&line[protocol.SlotFlags/8])
	if counts&protocol.SlotBrief != 0 {
		w := [briefWords]uint64{counts}
		for k := 1; k < briefWords; k++ {
			w[k] = atomic.LoadUint64(&line[protocol.BriefFlags/8+k])
		}
		// SYNC slot-body: the copy above is complete before seq is looked at again.
		FenceAcquire()
		return unpackBrief(&w, stamp, words)
	}
	bytes, body := atomic.LoadUint64(&line[protocol.SlotBytes/8]), uint32(atomic.LoadUint64(&line[protocol.SlotBody/8]))
	flags, nref := uint32(counts), uint16(counts>>32)
	n := bodyAt(flags, nref) + uint64(body)
	if n > l.stride-protocol.SlotSize {
		return SlotHead{}, words[:0], false
	}
	need := int((n + 7) / 8)
	if cap(words) < need {
		words = make([]uint64, need, max(need, 32))
	}
	words = words[:need]
	l.r.ReadWords(words, at+protocol.SlotSize)
	// SYNC slot-body: the copy above is complete before seq is looked at again.
	FenceAcquire()
	// Put together only now: a copy of what was just written in parts waits for all of them.
	return SlotHead{stamp, flags, nref, uint16(counts >> 48), bytes, body}, words, true
}

// firstWords are the words of refs and body that stand in a slot's first line.
const firstWords = (lineBytes - protocol.SlotSize) / 8

// Write fills the slot of message i, which must be un-named. data is refs and
// body, padded to words, at most Capacity bytes. Only its writer.
//
// Readers look at the slot's first lines all the time. They are asked for here,
// and what is done until they have come costs nothing; but they are fetched away
// again at once. So all is written in one go, and SetStamp and Publish come soon.
func (l Lane) Write(i uint64, h *SlotHead, data []uint64) {
	at := l.slot(i)
	l.r.PrefetchWrite(at)
	if w, ok := packBrief(h, data); ok {
		// SYNC slot-body: as below.
		FenceRelease()
		l.r.writeWord(at+protocol.SlotStamp, h.Stamp)
		for k := range w {
			l.r.writeWord(at+protocol.BriefFlags+8*uint64(k), w[k])
		}
		return
	}
	if len(data) > firstWords {
		l.r.PrefetchWrite(at + lineBytes)
	}
	// SYNC slot-body: seq was stored 0 before anything below is; a reader that
	// copies a mixture will find seq changed.
	FenceRelease()
	if len(data) > firstWords {
		l.r.writeWords(at+lineBytes, data[firstWords:])
		data = data[:firstWords]
	}
	l.r.writeWords(at+protocol.SlotSize, data)
	// Each word for itself: put together first, they could be copied only when all
	// that was stored before had reached the cache.
	l.r.writeWord(at+protocol.SlotStamp, h.Stamp)
	l.r.writeWord(at+protocol.SlotFlags, uint64(h.Flags)|uint64(h.Nref)<<32|uint64(h.Tensors)<<48)
	l.r.writeWord(at+protocol.SlotBytes, h.Bytes)
	l.r.writeWord(at+protocol.SlotBody, uint64(h.Body))
}

// SetStamp sets the time of message i, which was written and not yet published.
func (l Lane) SetStamp(i, stamp uint64) {
	l.r.StoreRelease64(l.slot(i)+protocol.SlotStamp, stamp)
}

// lineBytes is what processors exchange at once.
const lineBytes = 64

// PrepareWrite starts to fetch the lines that Write of message i writes when it is
// small. No reader waits for it yet if i is the one after the next; of the next one
// waiting readers would fetch them away. In a ring so short that others still read
// that slot it does nothing.
func (l Lane) PrepareWrite(i uint64) {
	if l.mask >= 7 {
		at := l.slot(i)
		l.r.PrefetchWrite(at)
		l.r.PrefetchWrite(at + lineBytes)
	}
}

// PrepareUnname starts to fetch the line that Unname of message i writes.
func (l Lane) PrepareUnname(i uint64) { l.r.PrefetchWrite(l.slot(i)) }

// Publish makes message i, the one after head, visible. Only its writer.
//
// SYNC slot-seq: the store releases the body and the refcounts of its refs.
// SYNC lane-head: the store releases the slot.
func (l Lane) Publish(i uint64) {
	l.r.StoreRelease64(l.slot(i)+protocol.SlotSeq, i)
	crashpoint.At("publish-seq")
	l.r.StoreRelease64(protocol.LaneHead, i)
}

// Unname empties the slot of message i; its refs are counted down afterwards,
// never before. Only its writer, or the broker in the lane of the dead.
//
// SYNC slot-seq: pairs with a taker's second look.
func (l Lane) Unname(i uint64) { l.r.StoreRelease64(l.slot(i)+protocol.SlotSeq, 0) }

// Cancel notes that the call which message i is, is wanted no more, and tells whether the slot still
// has it. Only its writer, in the turn in which it may reuse slots.
//
// SYNC cancelled: stored before the session that has the call is rung.
func (l Lane) Cancel(i uint64) bool {
	if !l.Has(i) {
		return false
	}
	l.r.Store32(l.slot(i)+protocol.SlotCancelled, 1)
	return true
}

// Cancelled tells whether the call which message i is, is wanted no more: its caller says so, or the
// slot has it no longer.
//
// SYNC cancelled: pairs with Cancel; a session that sleeps looks once more after its parked word.
func (l Lane) Cancelled(i uint64) bool {
	return l.r.Load32(l.slot(i)+protocol.SlotCancelled) != 0 || !l.Has(i)
}

// Drop empties the slot of message i if it still holds it, and tells whether it did. The
// broker's, in the lane of a living writer: that goes on paying for what the message names
// until it empties the slot itself.
//
// SYNC slot-seq: as Unname; a swap, since the writer may use the slot anew.
func (l Lane) Drop(i uint64) bool { return i != 0 && l.r.CAS64(l.slot(i)+protocol.SlotSeq, i, 0) }

// ParseRefs decodes the refs at the front of a copied message.
func (h *SlotHead) ParseRefs(dst []protocol.Ref, words []uint64) []protocol.Ref {
	for k := 0; k < int(h.Nref) && (k+1)*3 <= len(words); k++ {
		dst = append(dst, h.Ref(words, k))
	}
	return dst
}

// Ref decodes ref k, one of Nref, of a copied message. An index too large for its
// field becomes one that no storage has.
func (h *SlotHead) Ref(words []uint64, k int) protocol.Ref {
	w := words[k*3 : k*3+3]
	return protocol.Ref{Serial: w[0], Generation: w[1], Index: uint32(min(w[2], math.MaxUint32))}
}

// BodyOf returns the body behind the refs of a copied message.
func (h *SlotHead) BodyOf(words []uint64) []byte {
	b := BytesOf(words)
	from := int(bodyAt(h.Flags, h.Nref))
	return b[from : from+int(h.Body)]
}

// bodyAt returns where the body begins behind the head.
func bodyAt(flags uint32, nref uint16) uint64 {
	n := uint64(nref) * protocol.RefSize
	if flags&protocol.SlotOrdered != 0 {
		n += protocol.OrderSize
	}
	if flags&protocol.SlotAgreed != 0 {
		n += protocol.AgreedSize
	}
	return n
}

// Agreed decodes what hosts have agreed of a copied message that has SlotAgreed.
func (h *SlotHead) Agreed(words []uint64) protocol.Agreed {
	w := words[int(bodyAt(h.Flags, h.Nref)-protocol.AgreedSize)/8:]
	return protocol.Agreed{Revision: w[0], Age: w[1], Bucket: w[2]}
}

// Order decodes the order of a copied message that has SlotOrdered: the sender's
// stream and the value that it comes to, as the sender says.
func (h *SlotHead) Order(words []uint64) (stream uint32, ready uint64) {
	w := words[int(h.Nref)*3:]
	return uint32(w[0]), w[1]
}

// AppendOrder adds an order, behind the refs of a message being built.
func AppendOrder(words []uint64, stream uint32, ready uint64) []uint64 {
	return append(words, uint64(stream), ready)
}

// AppendRef adds a ref to a message being built.
func AppendRef(words []uint64, ref protocol.Ref) []uint64 {
	return append(words, ref.Serial, ref.Generation, uint64(ref.Index))
}

// AppendBytes adds a body to a message being built, padded to words.
func AppendBytes(words []uint64, b []byte) []uint64 {
	for len(b) >= 8 {
		words = append(words, binary.LittleEndian.Uint64(b))
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		words = append(words, binary.LittleEndian.Uint64(last[:]))
	}
	return words
}
