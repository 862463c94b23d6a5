package record

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

const groupFile = 56 // u64 in a GroupRecord, only for brokers: inode of its file

// Group is a copy of a GroupRecord.
type Group struct {
	ID      uint64
	Members uint32 // count
	Flags   uint32
	Name    string
	File    uint64 // inode
}

// GroupView stands for one GroupRecord.
type GroupView struct{ r shm.Region }

// Group views the record of a group of the topic.
func (v TopicView) Group(n uint32) GroupView {
	return GroupView{v.r.Sub(protocol.TopicGroups+uint64(n)*protocol.GroupRecordSize, protocol.GroupRecordSize)}
}

// ID returns the group's id, 0 when the record is free.
func (v GroupView) ID() uint64 { return v.r.Load64(protocol.GroupID) }

// Load copies the record.
func (v GroupView) Load() Group {
	return Group{ID: v.ID(), Members: v.r.Load32(protocol.GroupMembers), Flags: v.r.Load32(protocol.GroupFlags),
		Name: text(v.r, protocol.GroupName, protocol.GroupNameBytes), File: v.r.Load64(groupFile)}
}

// Store writes the record, the id last. A group that is in the record already stays
// readable meanwhile: senders read the record without a request.
func (v GroupView) Store(g Group) {
	if v.ID() != g.ID {
		v.r.Store64(protocol.GroupID, 0)
	}
	v.r.Store32(protocol.GroupMembers, g.Members)
	v.r.Store32(protocol.GroupFlags, g.Flags)
	v.r.Store64(groupFile, g.File)
	putText(v.r, protocol.GroupName, protocol.GroupNameBytes, g.Name)
	v.r.Store64(protocol.GroupID, g.ID)
}

// SetMembers changes the count of members alone.
func (v GroupView) SetMembers(n uint32) { v.r.Store32(protocol.GroupMembers, n) }

// Free makes the record free.
func (v GroupView) Free() { v.r.Store64(protocol.GroupID, 0) }
