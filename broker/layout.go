package broker

import "github.com/baton-ipc/baton/protocol"

// Parts of the broker file that are the broker's alone: a successor reads them,
// clients do not (docs/protocol.md, Broker file).
const (
	// In the head page.
	brokerSerial = 0x80  // u64: last serial given out
	brokerBoot   = 0x88  // char[40]: boot id of the machine
	topicsUsed   = 0xb0  // u32: records from here on were never used
	joinsUsed    = 0xb4  // u32
	leasesUsed   = 0xb8  // u32
	remainsUsed  = 0xbc  // u32
	brokerPIDNS  = 0xc0  // u64: inode of the broker's pid namespace
	brokerDir    = 0x100 // char[1024]: runtime directory

	// Names of devices by number, to the end of the head page.
	brokerDevices   = 0x580
	maxDevices      = 56
	deviceNameBytes = 48

	brokerBootBytes = 40
	brokerDirBytes  = 1024

	// Joins: who has which topic open and reads it as which member.
	brokerJoins  = 0x800000
	maxJoins     = 245760
	joinSession  = 0  // u64 serial of the session; 0: free
	joinTopicID  = 8  // u64
	joinReader   = 16 // u64; 0: an opener
	joinTopic    = 24 // u32 table index
	joinGroup    = 28 // u8 number of the group + 1; 0: none
	joinMember   = 29 // u8
	joinFlags    = 30 // u8: 1 alone in its group
	joinSize     = 32
	joinAlone    = 1
	joinWordTail = joinTopic // topic, group, member and flags as one word

	// Remains: sessions that are over and whose files are still needed.
	brokerRemains  = 0xf80000
	maxRemains     = 4096
	remainsSerial  = 0  // u64; 0: free
	remainsSession = 8  // u64 inode of the session file
	remainsBell    = 16 // u64 inode of the bell file
	remainsSlot    = 24 // u32
	remainsPID     = 28 // u32
	remainsName    = 32 // char[64]
	remainsSize    = 128

	// Inodes, by which a successor knows that it was handed the right file.
	sessionInode = 192 // u64 in a SessionRecord: of the session file
	bellInode    = 200 // u64 in a SessionRecord: of the bell file
	segmentInode = 56  // u64 in a SegmentRecord
	groupInode   = 56  // u64 in a GroupRecord

	sessionAnswered = 208 // u32 in a SessionRecord: 1 when its client knows of it

	// In a TopicRecord.
	topicEphemeral   = 592 // u64 serial of the session whose end deletes the name
	topicDescription = 600 // u32 as asked for
)

// Offsets of records in the broker file.
func sessionAt(slot uint32) uint64 {
	return protocol.BrokerSessions + uint64(slot)*protocol.SessionRecordSize
}

func segmentAt(i uint32) uint64 {
	return protocol.BrokerSegments + uint64(i)*protocol.SegmentRecordSize
}

func deviceAt(id int32) uint64 { return brokerDevices + uint64(id)*deviceNameBytes }

func leaseAt(i uint32) uint64 {
	return protocol.BrokerLeases + uint64(i)*protocol.LeaseRecordSize
}

func topicAt(i uint32) uint64 {
	return protocol.BrokerTopics + uint64(i)*protocol.TopicRecordSize
}

func groupAt(topic, group uint32) uint64 {
	return topicAt(topic) + protocol.TopicGroups + uint64(group)*protocol.GroupRecordSize
}

func laneAt(topic, lane uint32) uint64 {
	return topicAt(topic) + protocol.TopicLanes + uint64(lane)*protocol.LaneRecordSize
}

func remainsAt(i uint32) uint64 { return brokerRemains + uint64(i)*remainsSize }

func joinAt(i uint32) uint64 { return brokerJoins + uint64(i)*joinSize }

// rowPart is where a chunk's words stand in a session file, and their bytes.
func rowPart(chunk uint32) (at, bytes int64) {
	const n = protocol.ChunkIndices * protocol.RowWordSize
	return protocol.SessionRow + int64(chunk)*n, n
}

// entryPart is where a chunk's entries stand in a session file, and their bytes.
func entryPart(chunk uint32) (at, bytes int64) {
	const n = protocol.ChunkIndices * protocol.EntrySize
	return protocol.SessionEntries + int64(chunk)*n, n
}

// putText writes a text and the zeros behind it; what is too long is cut.
func (b *Broker) putText(at, bytes uint64, s string) {
	dst := b.file.Bytes(at, bytes)
	clear(dst[copy(dst[:bytes-1], s):])
}

// text reads what putText wrote.
func (b *Broker) text(at, bytes uint64) string {
	src := b.file.Bytes(at, bytes)
	for i, c := range src {
		if c == 0 {
			return string(src[:i])
		}
	}
	return string(src)
}

// zero empties a record but for its first word, which the caller sets first.
func (b *Broker) zero(at, bytes uint64) { clear(b.file.Bytes(at, bytes)) }

// markUsed notes how far a table has been used, so that a successor does not
// touch the pages behind.
func (b *Broker) markUsed(at uint64, n uint32) {
	if n >= b.file.Load32(at) {
		b.file.Store32(at, n+1)
	}
}
