package memory

import (
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// HasFile tells whether the file of a segment is here.
func (m *Memory) HasFile(i uint32) bool { return m.segments[i] != nil && m.segments[i].view != nil }

// Restore finds out from the record what a previous broker had granted: devices,
// segments with such files as there are, chunks. The accounts of its sessions are
// open, and the files of those that are over are known.
func (m *Memory) Restore(fetch sessionfiles.Fetch) {
	m.restoreDevices()
	m.restoreSegments(fetch)
	m.restoreChunks()
}

// restoreDevices reads the names that a previous broker noted.
func (m *Memory) restoreDevices() {
	for id := range int32(record.MaxDevices) {
		name := m.store.Record.Device(id)
		if name == "" {
			return
		}
		m.devices = append(m.devices, &device{id: id, name: name})
	}
}

// restoredDevice finds the device of a previous broker's segment.
func (m *Memory) restoredDevice(id int32) *device {
	if id >= 0 && int(id) < len(m.devices) {
		return m.devices[id]
	}
	return &device{id: id, name: protocol.DeviceCUDA + "unknown"}
}

func (m *Memory) restoreSegments(fetch sessionfiles.Fetch) {
	for i := range m.store.Record.UsedSegments() {
		view := m.store.Record.Segment(i)
		if view.Serial() == 0 {
			continue
		}
		v := view.Load()
		g := &segment{index: i, serial: v.Serial, bytes: v.Bytes, inode: v.File, kind: v.Kind,
			given: map[*Account]struct{}{}, made: record.Formerly(v.MadeAt)}
		g.owner = m.store.BySerial(v.OwnerSerial)
		if g.owner == nil {
			g.owner = m.store.Lost(v.OwnerSerial) // over, and left no record
		}
		if v.OnDevice() {
			g.device = m.restoredDevice(v.DeviceID)
		}
		k := sessionfiles.Key{Role: protocol.RestoreSegment, Serial: v.Serial}
		if g.device == nil || m.store.Files.Kind() != protocol.KindFile { // a memory directory has no file of a device's memory
			if fd := fetch(k); fd != nil {
				m.setView(g, k, fd)
			}
		}
		m.segments[i], m.bySerial[g.serial] = g, g
		m.segmentTable.Claim(i, g.owner.Holder)
		if s := m.accounts[g.owner.Slot]; s != nil && s.SessionFile == g.owner && !s.Closed {
			m.charge(g, s)
		} else {
			m.chargeAll(g)
			m.orphans[g] = struct{}{}
		}
	}
}

// setView uses the descriptor of a previous broker's segment. It takes ownership of
// fd.
func (m *Memory) setView(g *segment, k sessionfiles.Key, fd *sys.FD) {
	view := shm.NewDeviceSegment(g.index, g.serial, g.bytes, fd)
	if g.device == nil {
		var err error
		if view, err = shm.NewSegment(g.index, g.serial, g.bytes, fd, true); err != nil {
			return
		}
		if g.kind != protocol.KindHugePages {
			m.unreserved[g] = struct{}{} // its maker may have died before it had pages
		}
	}
	g.view = view
	delete(m.store.Missing, k)
}

func (m *Memory) restoreChunks() {
	for i := range m.store.Record.UsedChunks() {
		v := m.chunks.Load(i)
		c := &chunk{index: i, serial: v.Serial &^ record.ChunkRetiring}
		if v.Segment < protocol.MaxSegments {
			c.segment = m.segments[v.Segment]
		}
		if c.serial == 0 || c.segment == nil || c.segment.serial != v.SegmentSerial {
			continue // it was half freed, and the plan frees it
		}
		m.chunkTable.Claim(i, c.segment.owner.Holder)
		m.chunkOf[i] = c
		c.segment.chunks = append(c.segment.chunks, c)
		c.segment.owner.Use()
		m.chunks.EachAttached(i, func(slot uint32) bool {
			if s := m.accounts[slot]; s != nil {
				s.setAttached(i, true)
			}
			return true
		})
	}
}

// ExpireBorrowed ends lent memory whose lenders ended while no broker ran.
func (m *Memory) ExpireBorrowed() {
	for g := range m.orphans {
		if g.isBorrowed() {
			m.expire(g)
		}
	}
}

// Raise makes the broker's refcounts count at least what its places name.
func (m *Memory) Raise(target map[uint32]uint64) {
	refcounts := m.store.Own.Refcounts
	for index, n := range target { // MODEL lanes:rebuild-raise
		for refcounts.Count(index) < n && refcounts.Take(index) == nil {
		}
	}
}

// Lower takes away what the broker's refcounts count beyond what its places name.
func (m *Memory) Lower(target map[uint32]uint64) {
	refcounts := m.store.Own.Refcounts
	for _, c := range m.usedChunks() { // MODEL lanes:rebuild-lower
		for i := uint32(0); c != nil && i < protocol.ChunkIndices; i++ {
			index := c.index*protocol.ChunkIndices + i
			for refcounts.Count(index) > target[index] {
				refcounts.Drop(index)
			}
		}
	}
}

// Install uses the file of a segment that was missing, and tells whether it could;
// then it has taken ownership of fd.
func (m *Memory) Install(k sessionfiles.Key, fd *sys.FD) bool {
	g := m.bySerial[k.Serial]
	if g == nil || g.view != nil {
		return false
	}
	m.setView(g, k, fd)
	return true
}

// HasSegment reports whether there is a segment with a serial.
func (m *Memory) HasSegment(serial uint64) bool { return m.bySerial[serial] != nil }

// Owner returns the file of the session that a segment was granted to; nil where there is none.
func (m *Memory) Owner(serial uint64) *sessionfiles.SessionFile {
	if g := m.bySerial[serial]; g != nil {
		return g.owner
	}
	return nil
}

// OwnerOf returns the file of the session that a segment in files was granted to; nil where
// there is none.
func (m *Memory) OwnerOf(serial uint64) *sessionfiles.SessionFile {
	if g := m.bySerial[serial]; g != nil && g.device == nil {
		return g.owner
	}
	return nil
}

// FileOf returns the file of a segment, nil where it is not here.
func (m *Memory) FileOf(serial uint64) *sys.FD {
	if g := m.bySerial[serial]; g != nil && g.view != nil {
		return g.view.FD()
	}
	return nil
}

// Reconcile notes which segments a session has mapped, so that it is notified of their end.
func (m *Memory) Reconcile(s *Account, mapped []uint64) {
	for _, serial := range mapped {
		if g := m.bySerial[serial]; g != nil && g.holder != s {
			g.given[s] = struct{}{}
		}
	}
}
