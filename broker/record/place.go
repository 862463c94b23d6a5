package record

import "github.com/baton-ipc/baton/protocol"

// Place is where bytes of the broker file stand: what is reserved before a record
// is stored.
type Place struct{ At, Bytes uint64 }

// Tables is the place of what is looked at wherever a number or handle points:
// head, sessions, chunks and segments.
func Tables() Place {
	return Place{0, protocol.BrokerSegments + protocol.MaxSegments*protocol.SegmentRecordSize}
}

// AllRemains is the place of the remains, which a death must be able to note.
func AllRemains() Place { return Place{remainsAt, MaxRemains * remainsSize} }

// TopicPlace is the place of a topic's record, with its groups and lanes.
func TopicPlace(topic uint32) Place {
	return Place{protocol.BrokerTopics + uint64(topic)*protocol.TopicRecordSize, protocol.TopicRecordSize}
}

// LeasePlace is the place of a lease's record.
func LeasePlace(i uint32) Place {
	return Place{protocol.BrokerLeases + uint64(i)*protocol.LeaseRecordSize, protocol.LeaseRecordSize}
}

// JoinPlace is the place of a join.
func JoinPlace(i uint32) Place { return Place{joinsAt + uint64(i)*joinSize, joinSize} }
