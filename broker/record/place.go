package record

import "github.com/baton-ipc/baton/protocol"

// Place is where bytes of the broker file stand: what is reserved before a record
// is stored.
type Place struct{ At, Bytes uint64 }

// place is the place of record i of a table.
func place(table, i, size uint64) Place { return Place{table + i*size, size} }

// HeadPlace is the place of the file's head.
func HeadPlace() Place { return Place{0, protocol.PageBytes} }

// SessionPlace is the place of a session's record.
func SessionPlace(slot uint32) Place {
	return place(protocol.BrokerSessions, uint64(slot), protocol.SessionRecordSize)
}

// ChunkPlace is the place of a chunk's record.
func ChunkPlace(chunk uint32) Place {
	return place(protocol.BrokerChunks, uint64(chunk), protocol.ChunkRecordSize)
}

// SegmentPlace is the place of a segment's record.
func SegmentPlace(i uint32) Place {
	return place(protocol.BrokerSegments, uint64(i), protocol.SegmentRecordSize)
}

// RemainsPlace is the place of the first n remains.
func RemainsPlace(n uint32) Place { return Place{remainsAt, uint64(min(n, MaxRemains)) * remainsSize} }

// TopicPlace is the place of a topic's record, with its groups and all lanes.
func TopicPlace(topic uint32) Place {
	return place(protocol.BrokerTopics, uint64(topic), protocol.TopicRecordSize)
}

// TopicHeadPlace is that of a topic's record and its groups.
func TopicHeadPlace(topic uint32) Place { return Place{TopicPlace(topic).At, protocol.TopicLanes} }

// FunctionPlace is the place of the FunctionRecord of a topic.
func FunctionPlace(topic uint32) Place {
	return place(protocol.BrokerFunctions, uint64(topic), protocol.FunctionRecordSize)
}

// LanePlace is the place of a lane's record.
func LanePlace(topic, lane uint32) Place {
	return place(TopicPlace(topic).At+protocol.TopicLanes, uint64(lane), protocol.LaneRecordSize)
}

// LeasePlace is the place of a lease's record.
func LeasePlace(i uint32) Place {
	return place(protocol.BrokerLeases, uint64(i), protocol.LeaseRecordSize)
}

// JoinPlace is the place of a join.
func JoinPlace(i uint32) Place { return place(joinsAt, uint64(i), joinSize) }
