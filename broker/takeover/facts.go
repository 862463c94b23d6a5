package takeover

import (
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/protocol"
)

// Process is what is known of a session's process.
type Process uint8

// What can be known.
const (
	Unknown Process = iota // it could not be looked at
	Alive
	Dead
)

// Facts are what is known when a takeover begins, or goes on.
type Facts struct {
	// SameBoot tells whether the machine has not been restarted, so that processes of the
	// records may still live.
	SameBoot bool
	Sessions []Session // in slots, without the broker's own
	Remains  []Remains
	Segments []Segment
	Chunks   []Chunk // those with a serial or an attached bit
	Lanes    []Lane
	Leases   []Lease
	Joins    []Join
	Groups   []Group
	// Refcounts are what the broker's own refcounts count, where that is not zero.
	Refcounts map[uint32]uint64
}

// Session is a SessionRecord, and what is known of its process and files.
type Session struct {
	Slot     uint32
	Serial   uint64
	Marked   bool // the record says that it is dead
	Closed   bool // it owns nothing any more, and its refcounts stand
	Answered bool // its client knows of it
	Process  Process
	Back     bool // all files that it has are here
	File     bool // its session file is here
}

// Remains is a record of a session that is over and whose files are still needed.
type Remains struct {
	Index  uint32
	Serial uint64
	File   bool // its session file is here
}

// Segment is a SegmentRecord.
type Segment struct {
	Index       uint32
	Serial      uint64
	OwnerSerial uint64
	Orphan      bool
	Device      bool // memory on a device, of which the broker needs no file
	File        bool // its file is here
}

// Retiring in a chunk's serial: it is being tested whether any holder counts anything of
// its segment.
const Retiring = record.ChunkRetiring

// Chunk is a ChunkRecord.
type Chunk struct {
	Index         uint32
	Serial        uint64 // perhaps with Retiring
	Segment       uint32
	SegmentSerial uint64
	Attached      []uint32 // slots
}

// Lane is a LaneRecord of a topic, and what can be read of the lane if the broker is
// the one that counts for it: an adopted one, or a name's, which lies in the broker's own file.
type Lane struct {
	Topic, Number uint32
	Incarnation   uint64
	Serial        uint64 // of the session in whose file it lies
	State         uint32
	Name          bool
	Deleted       bool   // the name is
	Ephemeral     uint64 // serial of the session whose end deletes the name
	Messages      []Message
}

// Message is what stands in one slot of a lane.
type Message struct {
	Slot    uint64
	Number  uint64
	Refs    []protocol.Ref
	Bad     bool // it cannot be read: a number out of place, lengths that do not fit
	Awaited bool // what it names stands in files that are not here
}

// Lease is a LeaseRecord.
type Lease struct {
	Index   uint32
	Session uint64 // serial
	Timed   bool   // it ends by itself
	Ref     protocol.Ref
}

// Join is the record that a session has a topic open, or reads it.
type Join struct {
	Index   uint32
	Session uint64 // serial
	Topic   uint32
	Known   bool  // its topic is the one it was when the join was made
	Group   uint8 // number + 1; 0: none
}

// Group is a GroupRecord.
type Group struct {
	Topic, Number uint32
	Queue         bool // it stays without members
}
