package record

import (
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

const segmentFile = 56 // u64 in a SegmentRecord, only for brokers: inode of its file

// Segment is a copy of a SegmentRecord.
type Segment struct {
	Serial      uint64
	Bytes       uint64
	Kind        uint32
	Owner       uint32 // slot
	OwnerSerial uint64
	State       uint32
	DeviceType  int32
	DeviceID    int32
	MadeAt      uint64 // ns, CLOCK_REALTIME
	File        uint64 // inode; 0: memory of a device's driver
}

// OnDevice tells whether the memory is a device's and not the machine's.
func (s Segment) OnDevice() bool { return s.Kind == protocol.KindCUDA || s.Borrowed() }

// Borrowed tells whether the memory is its owner's, which ends with the session.
func (s Segment) Borrowed() bool { return s.Kind == protocol.KindCUDALegacy }

// SegmentView stands for one SegmentRecord.
type SegmentView struct {
	f File
	i uint32
	r shm.Region
}

// Segment views a record of the table of segments.
func (f File) Segment(i uint32) SegmentView {
	p := SegmentPlace(i)
	return SegmentView{f, i, f.r.Sub(p.At, p.Bytes)}
}

// Serial returns the segment's serial, 0 when the record is free.
func (v SegmentView) Serial() uint64 { return v.r.Load64(protocol.SegmentSerial) }

// Load copies the record.
func (v SegmentView) Load() Segment {
	return Segment{
		Serial: v.Serial(), Bytes: v.r.Load64(protocol.SegmentBytes), Kind: v.r.Load32(protocol.SegmentKind),
		Owner: v.r.Load32(protocol.SegmentOwner), OwnerSerial: v.r.Load64(protocol.SegmentOwnerSerial),
		State:      v.r.Load32(protocol.SegmentState),
		DeviceType: int32(v.r.Load32(protocol.SegmentDeviceType)), DeviceID: int32(v.r.Load32(protocol.SegmentDeviceID)),
		MadeAt: v.r.Load64(protocol.SegmentMadeAt), File: v.r.Load64(segmentFile),
	}
}

// Store writes the record, the serial last.
func (v SegmentView) Store(s Segment) {
	v.f.markUsed(protocol.BrokerSegmentsEnd, v.i)
	v.r.Store64(protocol.SegmentSerial, 0)
	clear(v.r.Bytes(8, protocol.SegmentRecordSize-8))
	v.r.Store64(protocol.SegmentBytes, s.Bytes)
	v.r.Store32(protocol.SegmentKind, s.Kind)
	v.r.Store32(protocol.SegmentOwner, s.Owner)
	v.r.Store64(protocol.SegmentOwnerSerial, s.OwnerSerial)
	v.r.Store32(protocol.SegmentState, s.State)
	v.r.Store32(protocol.SegmentDeviceType, uint32(s.DeviceType))
	v.r.Store32(protocol.SegmentDeviceID, uint32(s.DeviceID))
	v.r.Store64(protocol.SegmentMadeAt, s.MadeAt)
	v.r.Store64(segmentFile, s.File)
	v.r.Store64(protocol.SegmentSerial, s.Serial)
}

// SetOrphan notes that the segment's owner is gone.
func (v SegmentView) SetOrphan() { v.r.Store32(protocol.SegmentState, protocol.SegmentOrphan) }

// Free makes the record free.
func (v SegmentView) Free() { v.r.Store64(protocol.SegmentSerial, 0) }
