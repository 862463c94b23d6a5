package record

import (
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Lane is a copy of a LaneRecord.
type Lane struct {
	Serial uint64 // of the session in whose file it lies
	Offset uint64 // there
	Slot   uint32
	State  uint32
	// Incarnation is a serial that no other lane has, 0 when the lane is no more.
	Incarnation uint64
}

// LaneView stands for one LaneRecord.
type LaneView struct {
	topic TopicView
	n     uint32
	r     shm.Region
}

// Lane views the record of a lane of the topic.
func (v TopicView) Lane(n uint32) LaneView {
	return LaneView{v, n, v.r.Sub(protocol.TopicLanes+uint64(n)*protocol.LaneRecordSize, protocol.LaneRecordSize)}
}

// Serial returns the serial of the lane's session, 0 when the record is free.
func (v LaneView) Serial() uint64 { return v.r.Load64(protocol.LaneRecordSerial) }

// Load copies the record.
func (v LaneView) Load() Lane {
	return Lane{Serial: v.Serial(), Offset: v.r.Load64(protocol.LaneRecordOffset), Slot: v.r.Load32(protocol.LaneRecordSlot),
		State: v.r.Load32(protocol.LaneRecordState), Incarnation: v.r.Load64(protocol.LaneRecordIncarnation)}
}

// Store writes the record, the incarnation last.
//
// SYNC lane-incarnation: set when all else stands, the lane's claims in groups too.
func (v LaneView) Store(l Lane) {
	if v.n >= v.topic.UsedLanes() {
		v.topic.SetUsedLanes(v.n + 1)
	}
	v.r.Store64(protocol.LaneRecordSerial, 0)
	v.r.Store64(protocol.LaneRecordOffset, l.Offset)
	v.r.Store32(protocol.LaneRecordSlot, l.Slot)
	v.r.Store32(protocol.LaneRecordState, l.State)
	v.r.Store64(protocol.LaneRecordSerial, l.Serial)
	crashpoint.At("broker-lane-named")
	v.r.Store64(protocol.LaneRecordIncarnation, l.Incarnation)
}

// SetState changes the lane's state alone.
func (v LaneView) SetState(state uint32) { v.r.Store32(protocol.LaneRecordState, state) }

// End makes sure that no reader takes anything from the lane any more: its place may be
// another lane's afterwards.
//
// SYNC lane-incarnation: before the lane's writer, or the broker, uses the place for
// another lane; pairs with a reader's look after its second one at the slot.
func (v LaneView) End() { v.r.Store64(protocol.LaneRecordIncarnation, 0) } // MODEL reuse:clear

// Free makes the record free, of a lane that is no more.
func (v LaneView) Free() {
	v.End()
	v.r.Store64(protocol.LaneRecordSerial, 0)
}
