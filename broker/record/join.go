package record

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// A join, only for brokers: which session has which topic open, or reads it as
// which member.
const (
	joinSession = 0  // u64 serial of the session; 0: free
	joinTopicID = 8  // u64
	joinNumber  = 16 // u64 of the opening, or of the reader, among the session's
	joinTail    = 24 // topic 32 bits, group + 1 8, member 16, flags 8, low to high
	joinSize    = 32

	// Flags.
	joinAlone    = 1
	joinReader   = 2
	joinProvider = 4  // a function's, of its registration now
	joinFormer   = 8  // it was there when its topic was closed
	joinLeft     = 16 // its member is no more, and its process may hold what that claimed

	joinNumberBits = 53 // above it, of a provider: how many calls it takes at a time
)

// Join is a copy of a join.
type Join struct {
	Session uint64 // serial; 0: free
	TopicID uint64
	Number  uint64 // of the opening, or of the reader, among the session's
	Reader  bool   // else it is an opening
	Topic   uint32 // table index
	Group   uint8  // number of the group + 1; 0: none
	Member  uint16
	Alone   bool // in its group
	Former  bool // it was there when its topic was closed
	Left    bool // its member is no more, and its process may hold what that claimed
	// Concurrency is how many calls at a time a provider of a function takes; 0: it is none.
	Concurrency uint32
}

// JoinView stands for one join.
type JoinView struct {
	f File
	i uint32
	r shm.Region
}

// Join views a record of the table of joins.
func (f File) Join(i uint32) JoinView {
	p := JoinPlace(i)
	return JoinView{f, i, f.r.Sub(p.At, p.Bytes)}
}

// Load copies the record.
func (v JoinView) Load() Join {
	tail := v.r.Load64(joinTail)
	number := v.r.Load64(joinNumber)
	j := Join{Session: v.r.Load64(joinSession), TopicID: v.r.Load64(joinTopicID), Number: number & protocol.MaxSafeInt,
		Topic: uint32(tail), Group: uint8(tail >> 32), Member: uint16(tail >> 40),
		Alone: tail>>56&joinAlone != 0, Reader: tail>>56&joinReader != 0, Former: tail>>56&joinFormer != 0,
		Left: tail>>56&joinLeft != 0}
	if tail>>56&joinProvider != 0 {
		j.Concurrency = uint32(number >> joinNumberBits)
	}
	return j
}

// Store writes the record, the session last.
func (v JoinView) Store(j Join) {
	v.f.markUsed(headJoins, v.i)
	tail := uint64(j.Topic) | uint64(j.Group)<<32 | uint64(j.Member)<<40
	if j.Alone {
		tail |= joinAlone << 56
	}
	if j.Reader {
		tail |= joinReader << 56
	}
	if j.Former {
		tail |= joinFormer << 56
	}
	number := j.Number
	if j.Concurrency > 0 {
		tail |= joinProvider << 56
		number |= uint64(j.Concurrency) << joinNumberBits
	}
	v.r.Store64(joinTopicID, j.TopicID)
	v.r.Store64(joinNumber, number)
	v.r.Store64(joinTail, tail)
	v.r.Store64(joinSession, j.Session)
}

// MarkFormer notes that the join was there when its topic was closed.
func (v JoinView) MarkFormer() { v.r.Store64(joinTail, v.r.Load64(joinTail)|joinFormer<<56) }

// MarkLeft notes that the member of the join is no more, and that its process may hold what it claimed.
func (v JoinView) MarkLeft() { v.r.Store64(joinTail, v.r.Load64(joinTail)|joinLeft<<56) }

// Free makes the record free.
func (v JoinView) Free() { v.r.Store64(joinSession, 0) }
