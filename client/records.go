package client

import "github.com/baton-ipc/baton/protocol"

// Where records stand in the broker file.

func segmentRecordAt(index uint32) uint64 {
	return protocol.BrokerSegments + uint64(index)*protocol.SegmentRecordSize
}

func topicRecordAt(topic uint32) uint64 {
	return protocol.BrokerTopics + uint64(topic)*protocol.TopicRecordSize
}

func laneRecordAt(topic, number uint32) uint64 {
	return topicRecordAt(topic) + protocol.TopicLanes + uint64(number)*protocol.LaneRecordSize
}
