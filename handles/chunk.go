package handles

import (
	"math/bits"

	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Chunks views the chunk records of the broker file. The broker writes them.
type Chunks struct{ r shm.Region }

// NewChunks views the chunk records of a broker file.
func NewChunks(broker shm.Region) Chunks {
	return Chunks{broker.Sub(protocol.BrokerChunks, protocol.MaxChunks*protocol.ChunkRecordSize)}
}

// Chunk is a copy of one chunk record: 128 storage indices and the range of a
// segment that they may name.
type Chunk struct {
	Serial        uint64
	Owner         uint32
	OwnerSerial   uint64
	Segment       uint32
	SegmentSerial uint64
	Offset, Bytes uint64
}

// Load copies a record.
func (c Chunks) Load(chunk uint32) Chunk {
	at := uint64(chunk) * protocol.ChunkRecordSize
	return Chunk{
		Serial:        c.r.Load64(at + protocol.ChunkSerial),
		OwnerSerial:   c.r.Load64(at + protocol.ChunkOwnerSerial),
		Owner:         c.r.Load32(at + protocol.ChunkOwner),
		Segment:       c.r.Load32(at + protocol.ChunkSegment),
		Offset:        c.r.Load64(at + protocol.ChunkOffset),
		Bytes:         c.r.Load64(at + protocol.ChunkBytes),
		SegmentSerial: c.r.Load64(at + protocol.ChunkSegmentSerial),
	}
}

// Serial returns the serial of a chunk's present grant, 0 when it is free.
func (c Chunks) Serial(chunk uint32) uint64 {
	return c.r.Load64(uint64(chunk)*protocol.ChunkRecordSize + protocol.ChunkSerial)
}

// Store writes a record, the serial last. The broker's.
func (c Chunks) Store(chunk uint32, v Chunk) {
	at := uint64(chunk) * protocol.ChunkRecordSize
	c.r.Store64(at+protocol.ChunkSerial, 0)
	c.r.Store64(at+protocol.ChunkOwnerSerial, v.OwnerSerial)
	c.r.Store32(at+protocol.ChunkOwner, v.Owner)
	c.r.Store32(at+protocol.ChunkSegment, v.Segment)
	c.r.Store64(at+protocol.ChunkOffset, v.Offset)
	c.r.Store64(at+protocol.ChunkBytes, v.Bytes)
	c.r.Store64(at+protocol.ChunkSegmentSerial, v.SegmentSerial)
	c.r.Store64(at+protocol.ChunkSerial, v.Serial)
}

// Epoch returns the count of changes of the attached bits.
//
// SYNC epoch: the free test compares it across its two collects; pairs with
// Attach and Detach.
func (c Chunks) Epoch(chunk uint32) uint64 {
	return c.r.Load64(uint64(chunk)*protocol.ChunkRecordSize + protocol.ChunkEpoch)
}

// Attached returns word w of the attached bits.
func (c Chunks) Attached(chunk uint32, w int) uint64 {
	return c.r.Load64(uint64(chunk)*protocol.ChunkRecordSize + protocol.ChunkAttached + uint64(w)*8)
}

// AttachedWords returns which words of the attached bits may not be 0.
func (c Chunks) AttachedWords(chunk uint32) uint64 {
	return c.r.Load64(uint64(chunk)*protocol.ChunkRecordSize + protocol.ChunkAttachedWords)
}

// IsAttached tells whether the owner's free test looks at a session's refcounts.
func (c Chunks) IsAttached(chunk, slot uint32) bool {
	return c.Attached(chunk, int(slot/64))>>(slot%64)&1 != 0
}

// Attach sets a session's bit, then the epoch; the broker's, which replies to
// the session only afterwards, so that no count in its refcounts can go unseen.
//
// SYNC epoch: bit first, epoch second, reply last. The word's own bit goes before: also
// where the broker dies in between, no bit stands in a word that no session looks at.
func (c Chunks) Attach(chunk, slot uint32) {
	at := uint64(chunk) * protocol.ChunkRecordSize
	c.r.Or64(at+protocol.ChunkAttachedWords, 1<<(slot/64))
	c.r.Or64(at+protocol.ChunkAttached+uint64(slot/64)*8, 1<<(slot%64)) // MODEL attach:bit-set
	c.r.Add64(at+protocol.ChunkEpoch, 1)                                // MODEL attach:epoch-up
}

// Detach clears a session's bit, whose refcounts have been emptied. The broker's.
//
// SYNC epoch: as Attach.
func (c Chunks) Detach(chunk, slot uint32) {
	at := uint64(chunk) * protocol.ChunkRecordSize
	word, bit := at+protocol.ChunkAttached+uint64(slot/64)*8, uint64(1)<<(slot%64)
	if old := c.r.And64(word, ^bit); old&^bit == 0 { // MODEL attach:bit-clear
		c.r.And64(at+protocol.ChunkAttachedWords, ^uint64(1<<(slot/64)))
	}
	c.r.Add64(at+protocol.ChunkEpoch, 1)
}

// EachAttached calls f for every attached slot until f returns false.
func (c Chunks) EachAttached(chunk uint32, f func(slot uint32) bool) {
	for words := c.AttachedWords(chunk); words != 0; words &= words - 1 {
		w := bits.TrailingZeros64(words)
		for b := c.Attached(chunk, w); b != 0; b &= b - 1 {
			if !f(uint32(w*64 + bits.TrailingZeros64(b))) {
				return
			}
		}
	}
}
