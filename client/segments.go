package client

import (
	"context"
	"maps"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// segmentEntry is a segment known to this process.
type segmentEntry struct {
	*shm.Segment
	device *deviceSegment // nil: memory of the machine
	own    bool           // granted to this session and not given back; Client.mu guards it
	also   []*shm.Segment // of a keeper: the same, mapped by clients whose counts it took over
}

// segment returns a segment, asking the broker for a descriptor that allows the
// use. Concurrent calls for one segment may both ask; the second descriptor is
// closed.
func (m *memory) segment(ctx context.Context, index uint32, serial uint64, write bool) (*segmentEntry, error) {
	m.mu.Lock()
	e := m.segments[serial]
	m.mu.Unlock()
	if e != nil && (e.HasWritable() || !write && e.HasReadable()) {
		return e, nil
	}
	if m.devices == nil && m.pages.onDevice(index) {
		return nil, errNoDevices("a GPU")
	}
	var ok protocol.SegmentReply
	before := m.arriving()
	fds, err := m.broker.Call(ctx, protocol.OpSegment, protocol.Segment{Segment: index, Serial: serial, Write: write}, &ok)
	if err != nil {
		m.lacks(err, fileKey{protocol.RestoreSegment, serial})
		return nil, err
	}
	if len(fds) != 1 {
		wire.CloseAll(fds)
		return nil, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "segment came with %d descriptors, not 1", len(fds))
	}
	return m.mapGiven(index, serial, write, fds[0], &ok, before)
}

// readable returns a segment that can be read here; nil where it is not known.
func (m *memory) readable(serial uint64) *segmentEntry {
	m.mu.Lock()
	e := m.segments[serial]
	m.mu.Unlock()
	if e != nil && (e.HasWritable() || e.HasReadable()) {
		return e
	}
	return nil
}

// mapGiven keeps a segment whose descriptor has come, of which it takes ownership.
func (m *memory) mapGiven(index uint32, serial uint64, write bool, fd *sys.FD, ok *protocol.SegmentReply, before arriving) (e *segmentEntry, err error) {
	var mapped *sys.FD // its use ends behind the mutex
	defer func() {
		if mapped != nil {
			m.keepOrClose(before, fileKey{protocol.RestoreSegment, serial}, mapped, ok.Custody)
		}
	}()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed { // nobody would close it
		fd.Close()
		return nil, errClosed("client")
	}
	if ok.Device == "" {
		mapped = fd
	}
	if e = m.segments[serial]; e != nil {
		if ok.Device != "" {
			return e, e.Give(fd, write)
		}
		return e, e.Map(fd, write)
	}
	if ok.Device != "" {
		s := shm.NewDeviceSegment(index, serial, ok.Bytes, fd)
		var on *deviceSegment
		if m.devices == nil {
			err = errNoDevices(ok.Device)
		} else {
			on, err = m.devices.SegmentOf(ok, s)
		}
		if err != nil {
			s.Close()
			return nil, err
		}
		e = &segmentEntry{Segment: s, device: on}
	} else {
		s, err := shm.MapSegment(index, serial, ok.Bytes, fd, write)
		if err != nil {
			return nil, err
		}
		e = &segmentEntry{Segment: s}
	}
	m.segments[serial] = e
	return e, nil
}

// writable makes sure that a segment can be written here.
func (m *memory) writable(ctx context.Context, e *segmentEntry) error {
	if e.HasWritable() {
		return nil
	}
	_, err := m.segment(ctx, e.Index, e.Serial, true)
	return err
}

// returned forgets a segment that this session has given back.
func (m *memory) returned(serial uint64) {
	m.mu.Lock()
	if e := m.segments[serial]; e != nil {
		e.own = false
	}
	m.mu.Unlock()
	m.trim([]uint64{serial})
}

// trim forgets segments that the broker has taken back. Mapping and descriptor go only when
// this row counts nothing in it: an honest process has nothing left there but for a
// moment, after which the next comparison finds it, and a lying one must not make us
// fault.
func (m *memory) trim(gone []uint64) {
	for _, serial := range gone {
		file := fileKey{protocol.RestoreSegment, serial}
		m.mu.Lock()
		e, named := m.segments[serial], m.forReaders
		m.mu.Unlock()
		if e == nil {
			m.pages.letGo(file)
			continue
		}
		clear := true
		removed := map[uint32]*attachment{}
		for chunk, a := range m.attached.All() {
			if a.SegmentSerial != serial {
				continue
			}
			// SYNC attachment: removed first, counts read second; pairs with hold.
			if m.attached.CompareAndSwap(chunk, a, nil) {
				removed[chunk] = a
			}
			for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
				if m.pages.row.Count(index) > named[index] {
					clear = false
				}
			}
		}
		if !clear || m.pages.rowCleared() {
			for chunk, a := range removed { // the next look is to find the counts again
				m.attached.CompareAndSwap(chunk, nil, a)
			}
			continue
		}
		m.mu.Lock()
		delete(m.segments, serial)
		m.mu.Unlock()
		m.pages.letGo(file)
		e.Close()
		for _, s := range e.also {
			s.Close()
		}
	}
}

// leaveNamed has what the lanes of a session that is over name count for readers alone:
// nobody counts it down any more, and nothing here holds it.
func (m *memory) leaveNamed(n map[uint32]uint64) {
	m.mu.Lock()
	m.forReaders = n
	m.mu.Unlock()
}

// unmapFree unmaps what this session does not hold, and tells whether all is unmapped.
func (m *memory) unmapFree() bool {
	m.mu.Lock()
	all := slices.Collect(maps.Keys(m.segments))
	m.mu.Unlock()
	m.trim(all)
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.segments) == 0
}

// Close unmaps and closes. Nothing may hold memory of it.
func (e *segmentEntry) Close() error {
	if e.device != nil {
		if err := e.device.end(); err != nil {
			e.Segment.Close()
			return err
		}
	}
	return e.Segment.Close()
}

// goneSegments lists the segments that the broker has taken back.
func (m *memory) goneSegments() (gone []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for serial, e := range m.segments {
		if !e.own && m.pages.segmentSerial(e.Index) != serial {
			gone = append(gone, serial)
		}
	}
	return gone
}

// closeFiles closes the descriptors of segments; what is in use stays mapped.
func (m *memory) closeFiles() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.segments {
		s.CloseFiles()
	}
}

// inventory adds the segments whose descriptors are here, and lists those that are mapped
// without one, also in custody.
func (m *memory) inventory(custody map[fileKey]kept, add func(serial uint64, fd *sys.FD)) (mapped []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for serial, s := range m.segments {
		if fd := s.FD(); fd != nil {
			add(serial, fd)
		} else if custody[fileKey{protocol.RestoreSegment, serial}].fd == nil {
			mapped = append(mapped, serial)
		}
	}
	return mapped
}
