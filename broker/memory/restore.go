package memory

import (
	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Restore finds out from the record what a former broker had granted: devices,
// segments with such files as there are, chunks. The accounts of its sessions are
// open, and the pages of those that are over are known.
func (m *Memory) Restore(fetch pages.Fetch) {
	m.restoreDevices()
	m.restoreSegments(fetch)
	m.restoreChunks()
}

// restoreDevices reads the names that a former broker noted.
func (m *Memory) restoreDevices() {
	for id := range int32(record.MaxDevices) {
		name := m.store.Record.Device(id)
		if name == "" {
			return
		}
		m.devices = append(m.devices, &device{id: id, name: name})
	}
}

// restoredDevice finds the device of a former broker's segment.
func (m *Memory) restoredDevice(id int32) *device {
	if id >= 0 && int(id) < len(m.devices) {
		return m.devices[id]
	}
	return &device{id: id, name: protocol.DeviceCUDA + "unknown"}
}

func (m *Memory) restoreSegments(fetch pages.Fetch) {
	for i := range uint32(protocol.MaxSegments) {
		view := m.store.Record.Segment(i)
		if view.Serial() == 0 {
			continue
		}
		v := view.Load()
		g := &segment{index: i, serial: v.Serial, bytes: v.Bytes, inode: v.File, kind: v.Kind,
			given: map[*Account]struct{}{}, made: record.Formerly(v.MadeAt)}
		g.owner = m.store.BySerial(v.OwnerSerial)
		if g.owner == nil {
			g.owner = m.store.Lost(v.OwnerSerial) // the segment is gone: see Gone
		}
		if v.OnDevice() {
			g.device = m.restoredDevice(v.DeviceID)
		}
		k := pages.Key{Role: protocol.RestoreSegment, Serial: v.Serial}
		if g.device == nil || m.store.Files.Kind() != protocol.KindFile { // a directory has none of a device
			if fd := fetch(k); fd != nil {
				m.setView(g, k, fd)
			}
		}
		m.segments[i] = g
		m.segmentTable.Claim(i)
		if s := m.accounts[g.owner.Slot]; s != nil && s.Pages == g.owner {
			m.charge(g, s)
		} else {
			m.chargeAll(g)
			m.orphans[g] = struct{}{}
			view.SetOrphan()
		}
	}
}

// setView uses the descriptor of a former broker's segment. It takes ownership of
// fd.
func (m *Memory) setView(g *segment, k pages.Key, fd *sys.FD) {
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
	for i := range uint32(protocol.MaxChunks) {
		v := m.chunks.Load(i)
		if v.Serial == 0 {
			// Its freeing may have been half done.
			m.chunks.EachAttached(i, func(slot uint32) bool {
				m.chunks.Detach(i, slot)
				return true
			})
			continue
		}
		m.chunkTable.Claim(i)
		c := &chunk{index: i, serial: v.Serial}
		if v.Segment < protocol.MaxSegments {
			c.segment = m.segments[v.Segment]
		}
		if c.segment == nil || c.segment.serial != v.SegmentSerial {
			// Its segment's freeing was half done: nobody held anything of it.
			m.store.Record.SetChunkSerial(i, 0)
			m.chunkTable.Give(i)
			continue
		}
		m.chunkOf[i] = c
		c.segment.chunks = append(c.segment.chunks, c)
		c.segment.owner.Use()
		if c.segment.isBorrowed() && c.segment.holder == nil {
			m.store.Record.SetChunkSerial(i, 0) // as in expire: its owner ended while no broker ran
		}
		m.chunks.EachAttached(i, func(slot uint32) bool {
			if s := m.accounts[slot]; s != nil {
				s.setAttached(i, true)
			} else if slot != protocol.BrokerSlot {
				m.chunks.Detach(i, slot)
			}
			return true
		})
	}
}

// Recount makes the broker's row count what its places name: raised first, and
// lowered last.
func (m *Memory) Recount(target map[uint32]uint64, raised func()) {
	row := m.store.Own.Row
	for index, n := range target { // MODEL lanes:rebuild-raise
		for row.Count(index) < n && row.Take(index) == nil {
		}
	}
	raised()
	for _, c := range m.chunkOf { // MODEL lanes:rebuild-lower
		for i := uint32(0); c != nil && i < protocol.ChunkIndices; i++ {
			index := c.index*protocol.ChunkIndices + i
			for row.Count(index) > target[index] {
				row.Drop(index)
			}
		}
	}
}

// Install uses the file of a segment that was missing, and tells whether it could;
// then it has taken ownership of fd.
func (m *Memory) Install(k pages.Key, fd *sys.FD) bool {
	for _, g := range m.segments {
		if g != nil && g.serial == k.Serial && g.view == nil {
			m.setView(g, k, fd)
			return true
		}
	}
	return false
}

// HasSegment tells whether there is a segment with a serial.
func (m *Memory) HasSegment(serial uint64) bool {
	for _, g := range m.segments {
		if g != nil && g.serial == serial {
			return true
		}
	}
	return false
}

// Gone are segments of a former broker that no process has mapped any more.
type Gone struct {
	m        *Memory
	segments map[*segment]bool
}

// Gone lists the segments whose files no session can hand over any more. missing
// are those that were waited for.
func (m *Memory) Gone(missing map[pages.Key]uint64) Gone {
	gone := Gone{m, map[*segment]bool{}}
	for _, g := range m.segments {
		if g == nil {
			continue
		}
		// One on a device that was granted since may still be offered.
		_, waited := missing[pages.Key{Role: protocol.RestoreSegment, Serial: g.serial}]
		if g.view == nil && (g.device == nil || waited) || !g.owner.There() {
			gone.segments[g] = true
		}
	}
	return gone
}

// None tells whether nothing is gone.
func (g Gone) None() bool { return len(g.segments) == 0 }

// Lost tells whether a storage lies in what is gone.
func (g Gone) Lost(index uint32) bool {
	c := g.m.chunkOf[index/protocol.ChunkIndices]
	return c != nil && g.segments[c.segment]
}

// Free frees what is gone. Nothing of the broker's names it any more.
func (g Gone) Free() {
	for s := range g.segments {
		g.m.log.Warn("a segment was handed over by nobody: its tensors are gone", "segment", s.index, "owner", s.owner.Name)
		g.m.freeSegmentNow(s)
	}
}

// Reconcile compares what a session has mapped, which listed tells, with what it
// has been given. A segment that it does not know of was in an answer that its
// broker's death kept from it, and it will never use it.
func (m *Memory) Reconcile(s *Account, listed func(pages.Key) bool) {
	for _, g := range m.segments {
		if g == nil {
			continue
		}
		mapped := listed(pages.Key{Role: protocol.RestoreSegment, Serial: g.serial})
		switch {
		case g.holder != s:
			if mapped {
				g.given[s] = struct{}{}
			}
		case !mapped:
			if _, _, held := m.heldIn(g); !held {
				m.freeSegmentNow(g)
			}
		}
	}
}
