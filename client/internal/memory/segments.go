package memory

import (
	"context"
	"maps"
	"slices"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Segment is a segment known to this process.
type Segment struct {
	*shm.Segment
	Device *gpu.Segment   // nil: memory of the machine
	own    bool           // granted to this session and not given back; Client.mu guards it
	also   []*shm.Segment // of a keeper: the same, mapped by clients whose counts it has
}

// segment returns a segment, asking the broker for a descriptor that allows the
// use. Concurrent calls for one segment may both ask; the second descriptor is
// closed.
func (m *Memory) segment(ctx context.Context, index uint32, serial uint64, write bool) (*Segment, error) {
	m.mu.Lock()
	e := m.segments[serial]
	m.mu.Unlock()
	if e != nil && (e.HasWritable() || !write && e.HasReadable()) {
		return e, nil
	}
	if m.devices == nil && m.files.OnDevice(index) {
		return nil, gpu.NoDevices("a GPU")
	}
	var ok protocol.SegmentReply
	before := m.arriving()
	fds, err := m.broker.Call(ctx, protocol.OpSegment, protocol.Segment{Segment: index, Serial: serial, Write: write}, &ok)
	if err != nil {
		m.lacks(err, sessionfiles.SegmentFile(serial))
		return nil, err
	}
	if len(fds) != 1 {
		wire.CloseAll(fds)
		return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "segment came with %d descriptors, not 1", len(fds))
	}
	return m.mapGiven(index, serial, write, fds[0], &ok, before)
}

// readable returns a segment that can be read here; nil where it is not known.
func (m *Memory) readable(serial uint64) *Segment {
	m.mu.Lock()
	e := m.segments[serial]
	m.mu.Unlock()
	if e != nil && (e.HasWritable() || e.HasReadable()) {
		return e
	}
	return nil
}

// mapGiven keeps a segment whose descriptor has come, of which it takes ownership.
func (m *Memory) mapGiven(index uint32, serial uint64, write bool, fd *sys.FD, ok *protocol.SegmentReply, before Arriving) (e *Segment, err error) {
	var mapped *sys.FD // its use ends after the mutex
	defer func() {
		if mapped != nil {
			m.keepOrClose(before, sessionfiles.SegmentFile(serial), mapped, ok.Custody)
		}
	}()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed { // nothing would close it
		fd.Close()
		return nil, fault.Closed("client")
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
		var on *gpu.Segment
		if m.devices == nil {
			err = gpu.NoDevices(ok.Device)
		} else {
			on, err = m.devices.SegmentOf(ok, s)
		}
		if err != nil {
			s.Close()
			return nil, err
		}
		e = &Segment{Segment: s, Device: on}
	} else {
		s, err := shm.MapSegment(index, serial, ok.Bytes, fd, write)
		if err != nil {
			return nil, err
		}
		e = &Segment{Segment: s}
	}
	m.segments[serial] = e
	return e, nil
}

// writable makes sure that a segment can be written here.
func (m *Memory) writable(ctx context.Context, e *Segment) error {
	if e.HasWritable() {
		return nil
	}
	_, err := m.segment(ctx, e.Index, e.Serial, true)
	return err
}

// returned forgets a segment that this session has given back.
func (m *Memory) returned(serial uint64) {
	m.mu.Lock()
	if e := m.segments[serial]; e != nil {
		e.own = false
	}
	m.mu.Unlock()
	m.Trim([]uint64{serial})
}

// Trim forgets segments that the broker has taken back. Mapping and descriptor go only when
// these refcounts count nothing in it. Among processes that keep the protocol they count something
// there for a moment at most, after which the next comparison finds the segment; one that breaks it
// must not make this process fault.
func (m *Memory) Trim(gone []uint64) {
	for _, serial := range gone {
		file := sessionfiles.SegmentFile(serial)
		m.mu.Lock()
		e, named := m.segments[serial], m.forReaders
		m.mu.Unlock()
		if e == nil {
			m.files.LetGo(file)
			continue
		}
		clear := true
		removed := map[uint32]*Attachment{}
		for chunk, a := range m.attached.All() {
			if a.SegmentSerial != serial {
				continue
			}
			// SYNC attachment: removed first, counts read second; pairs with hold.
			if m.attached.CompareAndSwap(chunk, a, nil) {
				removed[chunk] = a
			}
			for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
				if m.files.Refcounts.Count(index) > named[index] {
					clear = false
				}
			}
		}
		if !clear || m.files.RefcountsCleared() {
			for chunk, a := range removed { // the next look is to find the counts again
				m.attached.CompareAndSwap(chunk, nil, a)
			}
			continue
		}
		m.mu.Lock()
		delete(m.segments, serial)
		m.mu.Unlock()
		m.files.LetGo(file)
		e.Close()
		for _, s := range e.also {
			s.Close()
		}
	}
}

// LeaveNamed has what the lanes of a session that is over name count for readers alone:
// nothing counts it down any more, and nothing here holds it.
func (m *Memory) LeaveNamed(n map[uint32]uint64) {
	m.mu.Lock()
	m.forReaders = n
	m.mu.Unlock()
}

// UnmapFree unmaps what this session does not hold, and tells whether all is unmapped.
func (m *Memory) UnmapFree() bool {
	m.mu.Lock()
	all := slices.Collect(maps.Keys(m.segments))
	m.mu.Unlock()
	m.Trim(all)
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.segments) == 0
}

// Close unmaps and closes. Nothing may hold memory of it.
func (e *Segment) Close() error {
	if e.Device != nil {
		if err := e.Device.End(); err != nil {
			e.Segment.Close()
			return err
		}
	}
	return e.Segment.Close()
}

// GoneSegments lists the segments that the broker has taken back.
func (m *Memory) GoneSegments() (gone []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for serial, e := range m.segments {
		if !e.own && m.files.SegmentSerial(e.Index) != serial {
			gone = append(gone, serial)
		}
	}
	return gone
}

// CloseFiles closes the descriptors of segments; what is in use stays mapped.
func (m *Memory) CloseFiles() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.segments {
		s.CloseFiles()
	}
}

// Inventory adds the segments whose descriptors are here, and lists those that are mapped
// without one, also in custody.
func (m *Memory) Inventory(custody map[protocol.RestoreItem]sessionfiles.Kept, add func(serial uint64, fd *sys.FD)) (mapped []uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for serial, s := range m.segments {
		if fd := s.FD(); fd != nil {
			add(serial, fd)
		} else if custody[sessionfiles.SegmentFile(serial)].FD == nil {
			mapped = append(mapped, serial)
		}
	}
	return mapped
}
