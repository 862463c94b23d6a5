package record

import (
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// The rest of the head page, which only brokers read.
const (
	headSerial    = 0x80  // u64: last serial given out
	headBoot      = 0x88  // char[40]: boot id of the machine
	headJoins     = 0xb4  // u32: records from here on were never used
	headLeases    = 0xb8  // u32
	headRemains   = 0xbc  // u32
	headPIDNS     = 0xc0  // u64: inode of the broker's pid namespace
	headHanded    = 0xc8  // u64: whether the broker has handed over to another living one
	headVersion   = 0xd0  // u64: no topic that is over had a higher version
	headBells     = 0xd8  // u64: inode of the bell file
	headClaims    = 0xe0  // u64: how many claims were noted
	headEvictions = 0xe8  // u64: how many evicted sessions that are over were noted
	headDir       = 0x100 // char[1024]: runtime directory
	headDevices   = 0x580 // names of devices by number, to the end of the head page

	bootBytes = 40
	dirBytes  = 1024
)

const (
	// MaxDevices is how many devices have a number.
	MaxDevices      = 56
	deviceNameBytes = 48
)

// Tables that only brokers read.
const (
	remainsAt   = 0x600000
	claimsAt    = 0x800000
	evictionsAt = 0x900000
	joinsAt     = 0x2000000

	// MaxJoins is how many openings and readers there can be.
	MaxJoins = 1048576
	// MaxRemains is how many ended sessions a successor can know of.
	MaxRemains = 16384
	// MaxClaims is how many claims of leases are known at a time.
	MaxClaims = 16384
	// MaxEvictions is how many evicted sessions are known once they are over.
	MaxEvictions = 1024
)

// File is a view of a mapped broker file. The zero File has none.
type File struct{ r shm.Region }

// Of views a mapping of a whole broker file.
func Of(r shm.Region) File { return File{r} }

// Valid tells whether there is a file.
func (f File) Valid() bool { return f.r.Valid() }

// Chunks views the chunk records.
func (f File) Chunks() handles.Chunks { return handles.NewChunks(f.r) }

// ChunkRetiring is added to a chunk's serial while it is tested whether any holder counts
// anything of its segment: handles to it are Expired meanwhile. The serial can be read from the
// sum, so a successor restores it if the broker dies before the test has ended.
const ChunkRetiring uint64 = 1 << 63

// MarkChunk notes that a chunk's record is used from now on, before it is stored.
func (f File) MarkChunk(chunk uint32) { f.markUsed(protocol.BrokerChunksEnd, chunk) }

// SetChunkSerial names or un-names a chunk: with another serial, or none, every
// handle to it is Expired.
func (f File) SetChunkSerial(chunk uint32, serial uint64) {
	f.r.Store64(protocol.BrokerChunks+uint64(chunk)*protocol.ChunkRecordSize+protocol.ChunkSerial, serial)
}

// BellsFile returns the inode of the bell file, by which a successor knows that it was
// handed the right one.
func (f File) BellsFile() uint64 { return f.r.Load64(headBells) }

// SetBellsFile notes it.
func (f File) SetBellsFile(inode uint64) { f.r.Store64(headBells, inode) }

// NextSerial gives out the next serial: one counter for sessions, chunks, segments,
// topics and groups, so that nothing is ever mistaken for what had its place before.
func (f File) NextSerial() uint64 { return f.r.Add64(headSerial, 1) }

// LastSerial returns the last serial given out.
func (f File) LastSerial() uint64 { return f.r.Load64(headSerial) }

// Boot returns the boot id of the machine, as the broker that wrote the file noted it.
func (f File) Boot() string { return text(f.r, headBoot, bootBytes) }

// SetBoot notes the boot id of the machine.
func (f File) SetBoot(id string) { putText(f.r, headBoot, bootBytes, id) }

// PIDNamespace returns the inode of the broker's pid namespace.
func (f File) PIDNamespace() uint64 { return f.r.Load64(headPIDNS) }

// SetPIDNamespace notes it.
func (f File) SetPIDNamespace(inode uint64) { f.r.Store64(headPIDNS, inode) }

// States of a replacement between two living brokers.
const (
	handedNot   = 0 // the old one serves
	handedOver  = 1 // the new one does
	handedNever = 2 // the new one has given up
)

// HandOver gives the instance to the broker that has asked for it, and tells whether that
// broker has not given up. After that this broker changes nothing.
//
// SYNC handed-over: everything that the old broker wrote comes before.
func (f File) HandOver() bool { return f.r.CAS64(headHanded, handedNot, handedOver) }

// GiveUp ends the wait of a broker that asked for the instance, and tells whether the replacement
// had come in time: then that broker serves.
//
// SYNC handed-over: one of the two swaps is first, and both brokers know which.
func (f File) GiveUp() bool { return f.r.CAS64(headHanded, handedNot, handedNever) }

// NotHanded notes that the broker which has the file serves.
func (f File) NotHanded() { f.r.Store64(headHanded, handedNot) }

// SetEnded tells the processes that map the file whether the instance is over, so that
// none of them waits for another broker.
//
// SYNC instance-ended: everything that the broker wrote comes before.
func (f File) SetEnded(over bool) {
	var flags uint32
	if over {
		flags = protocol.HeadEnded
	}
	f.r.Store32(protocol.HeadFlags, flags)
}

// SetDir notes the runtime directory that the file belongs to.
func (f File) SetDir(path string) { putText(f.r, headDir, dirBytes, path) }

// Dir returns the runtime directory that the file belongs to. Its head page is
// enough.
func (f File) Dir() string { return text(f.r, headDir, dirBytes) }

// Device returns the name of a device, "" when the number was not given out.
func (f File) Device(id int32) string {
	return text(f.r, headDevices+uint64(id)*deviceNameBytes, deviceNameBytes)
}

// SetDevice notes a device's name under its number.
func (f File) SetDevice(id int32, name string) {
	putText(f.r, headDevices+uint64(id)*deviceNameBytes, deviceNameBytes, name)
}

// UsedTopics and its kin return how far a table has been used, so that a successor
// does not touch the pages behind. Store notes it.
func (f File) UsedTopics() uint32 {
	return min(f.r.Load32(protocol.BrokerTopicsEnd), protocol.MaxTopics)
}

// SetUsedTopics notes that all topics from n on are free, and are not looked at.
func (f File) SetUsedTopics(n uint32) { f.r.Store32(protocol.BrokerTopicsEnd, n) }

// UsedSessions is as UsedTopics.
func (f File) UsedSessions() uint32 {
	return min(f.r.Load32(protocol.BrokerSessionsEnd), protocol.MaxSessions)
}

// UsedChunks is as UsedTopics.
func (f File) UsedChunks() uint32 {
	return min(f.r.Load32(protocol.BrokerChunksEnd), protocol.MaxChunks)
}

// UsedSegments is as UsedTopics.
func (f File) UsedSegments() uint32 {
	return min(f.r.Load32(protocol.BrokerSegmentsEnd), protocol.MaxSegments)
}

// UsedJoins is as UsedTopics.
func (f File) UsedJoins() uint32 { return min(f.r.Load32(headJoins), MaxJoins) }

// UsedLeases is as UsedTopics.
func (f File) UsedLeases() uint32 { return min(f.r.Load32(headLeases), protocol.MaxLeases) }

// UsedRemains is as UsedTopics.
func (f File) UsedRemains() uint32 { return min(f.r.Load32(headRemains), MaxRemains) }

// markUsed is called before the record's first word is set.
func (f File) markUsed(at uint64, n uint32) {
	if n >= f.r.Load32(at) {
		f.r.Store32(at, n+1)
	}
}

// putText writes a text and the zeros behind it; what is too long is cut.
func putText(r shm.Region, at, bytes uint64, s string) {
	dst := r.Bytes(at, bytes)
	clear(dst[copy(dst[:bytes-1], s):])
}

// text reads what putText wrote.
func text(r shm.Region, at, bytes uint64) string {
	src := r.Bytes(at, bytes)
	for i, c := range src {
		if c == 0 {
			return string(src[:i])
		}
	}
	return string(src)
}
