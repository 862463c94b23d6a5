package cudaipc

import (
	"fmt"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Slab is GPU memory that can be handed to other processes as a descriptor.
type Slab struct {
	Bytes uint64

	d      *Device
	handle uint64
}

// Granularity is what the bytes of a slab are a multiple of. ErrUnsupported: the GPU cannot share
// memory by descriptors.
func (d *Device) Granularity() (uint64, error) {
	if !d.Slabs() {
		return 0, protocol.Errorf(protocol.CodeUnsupported, "use a newer driver or GPU, or memory of the cpu",
			"%s cannot share memory by descriptors", d.Name)
	}
	var n uint64
	err := d.within(func() (err error) {
		n, err = d.api.getGranularity(d.number)
		return err
	})
	return n, err
}

// NewSlab makes memory of at least so many bytes. Errors: ErrOutOfMemory,
// ErrUnsupported.
func (d *Device) NewSlab(bytes uint64) (*Slab, error) {
	unit, err := d.Granularity()
	if err != nil {
		return nil, err
	}
	if bytes == 0 || bytes > 1<<52 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "ask for 1 to 2^52 bytes", "a slab of %d bytes", bytes)
	}
	s := &Slab{Bytes: (bytes + unit - 1) / unit * unit, d: d}
	err = d.within(func() (err error) {
		s.handle, err = d.api.memCreate(d.number, s.Bytes)
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Export returns a descriptor by which other processes get the memory. The driver
// has a limit on how many there are: make one for each slab, once. The caller
// closes it.
func (s *Slab) Export() (*sys.FD, error) {
	var n int32
	err := s.d.within(func() (err error) {
		n, err = s.d.api.memExport(s.handle)
		return err
	})
	if err != nil {
		return nil, err
	}
	fd := sys.NewFD(int(n))
	defer fd.Close()
	return fd.Dup() // CLOEXEC, which the driver's own may not be
}

// Import takes the memory of another process's descriptor, which stays the
// caller's. ErrInvalidHandle: it is no memory of this driver's, or of another GPU.
func (d *Device) Import(fd int, bytes uint64) (*Slab, error) {
	s := &Slab{Bytes: bytes, d: d}
	err := d.within(func() (err error) {
		s.handle, err = d.api.memImport(fd)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("import a slab of %d bytes on %s: %w", bytes, d.Name, err)
	}
	return s, nil
}

// Close gives up this process's handle. Mappings stay.
func (s *Slab) Close() error {
	return s.d.within(func() error { return s.d.api.release.call(uintptr(s.handle)) })
}

// Mapping is a slab at an address of this process's.
type Mapping struct {
	Address uint64
	Bytes   uint64

	d *Device
}

// Map maps the slab, read-only unless write. It may be mapped several times. With an error nothing
// is mapped.
func (s *Slab) Map(write bool) (*Mapping, error) {
	m := &Mapping{Bytes: s.Bytes, d: s.d}
	a, size := s.d.api, uintptr(s.Bytes)
	err := s.d.within(func() (err error) {
		if m.Address, err = a.memReserve(s.Bytes); err != nil {
			return err
		}
		at := uintptr(m.Address)
		if err = a.mapAt.call(at, size, 0, uintptr(s.handle), 0); err != nil {
			a.unreserve.call(at, size)
			return err
		}
		flags := int32(accessRead)
		if write {
			flags = accessBoth
		}
		if err = a.memAccess(s.d.number, m.Address, s.Bytes, flags); err != nil {
			a.unmap.call(at, size)
			a.unreserve.call(at, size)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("map a slab of %d bytes on %s: %w", s.Bytes, s.d.Name, err)
	}
	return m, nil
}

// Close unmaps. No stream may use the memory any more.
func (m *Mapping) Close() error {
	return m.d.within(func() error {
		at, size := uintptr(m.Address), uintptr(m.Bytes)
		if err := m.d.api.unmap.call(at, size); err != nil {
			return err
		}
		return m.d.api.unreserve.call(at, size)
	})
}
