package shm

import (
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Segment is one mappable piece of memory, mapped at most twice in a process
// (readable, writable) and kept so. It owns its mappings, and the descriptors that it was
// given; one that was mapped by [MapSegment] has none. One on a device is kept as the
// driver's descriptor alone: a process that has the driver maps it.
type Segment struct {
	Index  uint32 // in the broker's table
	Serial uint64
	Bytes  uint64

	device bool // set once

	mu       sync.Mutex // guards mapping and descriptors
	ro, rw   *sys.FD
	readable atomic.Pointer[Region]
	writable atomic.Pointer[Region]
	maps     [][]byte
}

// NewSegment takes ownership of fd, whose file must have the size that the broker says: a mapping
// longer than its file ends in SIGBUS. With an error the descriptor is closed: CodeProtocol for a
// file that is smaller, else the system's error.
func NewSegment(index uint32, serial, bytes uint64, fd *sys.FD, write bool) (*Segment, error) {
	s := &Segment{Index: index, Serial: serial, Bytes: bytes}
	if err := s.Give(fd, write); err != nil {
		return nil, err
	}
	return s, nil
}

// MapSegment maps a segment at once, and leaves the descriptor to the caller. CodeProtocol: the
// file is smaller than the broker says. Other errors are the system's.
func MapSegment(index uint32, serial, bytes uint64, fd *sys.FD, write bool) (*Segment, error) {
	s := &Segment{Index: index, Serial: serial, Bytes: bytes}
	if err := s.Map(fd, write); err != nil {
		return nil, err
	}
	return s, nil
}

// Map maps the segment for a use, if it is not, and leaves the descriptor to the caller. Errors are
// those of MapSegment, and CodeHandle for memory on a device.
func (s *Segment) Map(fd *sys.FD, write bool) error {
	if err := s.check(fd); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	to := &s.readable
	if write {
		to = &s.writable
	}
	_, err := s.mapLocked(fd, write, to)
	return err
}

// check refuses a file that is smaller than the broker says.
func (s *Segment) check(fd *sys.FD) error {
	size, _, err := fd.Stat()
	if err == nil && uint64(size) < s.Bytes {
		err = protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md: broker and client disagree",
			"segment %d has %d bytes where %d were announced", s.Serial, size, s.Bytes)
	}
	return err
}

// NewDeviceSegment takes ownership of a descriptor of memory on a device. It says
// nothing of itself, and cannot be opened anew with other rights.
func NewDeviceSegment(index uint32, serial, bytes uint64, fd *sys.FD) *Segment {
	return &Segment{Index: index, Serial: serial, Bytes: bytes, device: true, rw: fd}
}

// Discard gives the pages back to the machine, also those that others have mapped. Memory on a
// device goes with its last mapping. The error is the system's.
func (s *Segment) Discard() error {
	if s.device {
		return nil
	}
	return s.FD().Punch(0, int64(s.Bytes))
}

// ReadAt copies bytes of the segment without mapping it: where its owner has taken pages away, or
// cut the file, that is no fault. Errors: CodeHandle for a range outside the segment or memory on a
// device; a file that ends before gives the system's error.
func (s *Segment) ReadAt(to []byte, at uint64) error {
	if s.device {
		return s.onDevice()
	}
	if at > s.Bytes || uint64(len(to)) > s.Bytes-at {
		return protocol.Errorf(protocol.CodeHandle, "restart the process that owns it", "%d bytes at %d lie outside segment %d", len(to), at, s.Serial)
	}
	return s.FD().ReadAt(to, int64(at))
}

func (s *Segment) onDevice() error {
	return protocol.Errorf(protocol.CodeHandle, "update or restart its sender, which describes memory of a device as the CPU's",
		"segment %d lies on a device", s.Serial)
}

// Give adds a descriptor, writable or not, and takes ownership of it. With an error the descriptor
// is closed: CodeProtocol for a file that is smaller than the broker says.
func (s *Segment) Give(fd *sys.FD, write bool) error {
	if s.device {
		return fd.Close() // it has one, and all are the same
	}
	if err := s.check(fd); err != nil {
		fd.Close()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := &s.ro
	if write {
		slot = &s.rw
	}
	if *slot != nil {
		return fd.Close()
	}
	*slot = fd
	return nil
}

// Readable returns the read-only mapping, made at the first call; where only a writable descriptor
// was given, of that one, and where there is only the writable mapping that one. Errors: CodeHandle
// for memory on a device, CodeReadOnly where the segment has no descriptor.
func (s *Segment) Readable() (Region, error) {
	if r := s.readable.Load(); r != nil {
		return *r, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fd := s.ro
	if fd == nil {
		fd = s.rw
	}
	if w := s.writable.Load(); w != nil && fd == nil {
		return *w, nil
	}
	return s.mapLocked(fd, false, &s.readable)
}

// Writable returns the writable mapping. It fails with ErrReadOnly when this
// process was given no writable descriptor; see HasWritable.
func (s *Segment) Writable() (Region, error) {
	if r := s.writable.Load(); r != nil {
		return *r, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mapLocked(s.rw, true, &s.writable)
}

func (s *Segment) mapLocked(fd *sys.FD, write bool, to *atomic.Pointer[Region]) (Region, error) {
	if r := to.Load(); r != nil {
		return *r, nil
	}
	if s.device {
		return Region{}, s.onDevice()
	}
	if fd == nil {
		return Region{}, protocol.Errorf(protocol.CodeReadOnly, "ask the broker for it writable",
			"segment %d cannot be mapped for this use", s.Serial)
	}
	b, err := sys.Map(fd, int(s.Bytes), write)
	if err != nil {
		return Region{}, err
	}
	r := NewRegion(b)
	s.maps = append(s.maps, b)
	to.Store(&r)
	return r, nil
}

// HasReadable and HasWritable tell which mappings can be made without a request.
func (s *Segment) HasReadable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ro != nil || s.rw != nil || s.readable.Load() != nil || s.writable.Load() != nil
}

// HasWritable is as HasReadable.
func (s *Segment) HasWritable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rw != nil || s.writable.Load() != nil
}

// FD returns the strongest descriptor there is, still the segment's own; nil where it has
// none.
func (s *Segment) FD() *sys.FD {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rw != nil {
		return s.rw
	}
	return s.ro
}

// CloseFiles closes the descriptors and keeps what is mapped.
func (s *Segment) CloseFiles() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ro.Close()
	s.rw.Close()
	s.ro, s.rw = nil, nil
}

// Close unmaps and closes. No memory of it may be held. The first error of the system is returned;
// all is closed even so.
func (s *Segment) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first error
	for _, b := range s.maps {
		if err := sys.Unmap(b); err != nil && first == nil {
			first = err
		}
	}
	s.maps = nil
	s.readable.Store(nil)
	s.writable.Store(nil)
	for _, fd := range []*sys.FD{s.ro, s.rw} {
		if err := fd.Close(); err != nil && first == nil {
			first = err
		}
	}
	s.ro, s.rw = nil, nil
	return first
}
