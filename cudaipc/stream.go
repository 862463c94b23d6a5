package cudaipc

import "github.com/baton-ipc/baton/protocol"

// Stream names a stream of a device's as DLPack does: a pointer as other CUDA code
// has it, or LegacyStream.
type Stream uint64

// Streams with fixed names. PerThreadStream belongs to a thread, and goroutines
// change theirs, so it is of use only to one that has locked its own.
const (
	LegacyStream    Stream = 1
	PerThreadStream Stream = 2
)

const nonBlocking = 1

// NewStream makes a stream that is not ordered with the legacy one.
func (d *Device) NewStream() (Stream, error) {
	var s uint64
	err := d.within(func() (err error) {
		s, err = d.api.newStream(nonBlocking)
		return err
	})
	return Stream(s), err
}

// DestroyStream ends a stream; what was enqueued is still done.
func (d *Device) DestroyStream(s Stream) error {
	return d.within(func() error { return d.api.streamDestroy.call(uintptr(s)) })
}

// SynchronizeStream waits until the stream has done all that was enqueued.
func (d *Device) SynchronizeStream(s Stream) error {
	return d.within(func() error { return d.api.streamSync.call(uintptr(s)) })
}

// WriteValue makes the stream store a value at a device address, after all that
// was enqueued before and visible after it. ErrConflict: it is being captured.
func (d *Device) WriteValue(s Stream, at, value uint64) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing(s); err != nil {
		return err
	}
	return d.api.writeValue.call(uintptr(s), uintptr(at), uintptr(value), 0)
}

// notCapturing refuses a stream whose work goes into a graph: a value would be written
// with each run of the graph, not now, and words would go back. The legacy stream is
// never captured. The context is current.
func (d *Device) notCapturing(s Stream) error {
	if s == LegacyStream {
		return nil
	}
	capturing, err := d.api.isCapturing(uint64(s))
	if err == nil && capturing {
		return protocol.Errorf(protocol.CodeConflict, "do it before the capture begins or after it has ended, or by another stream",
			"the stream is being captured into a graph, which cannot order what is handed over")
	}
	return err
}

const waitAtLeast = 0 // CU_STREAM_WAIT_VALUE_GEQ

// WaitValue makes the stream wait until the word at a device address is at least a
// value, as signed numbers that wrap. ErrConflict: it is being captured.
func (d *Device) WaitValue(s Stream, at, value uint64) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing(s); err != nil {
		return err
	}
	return d.api.waitValue.call(uintptr(s), uintptr(at), uintptr(value), waitAtLeast)
}

// CopyIn makes the stream copy host memory to the device. The slice must not be
// changed before the stream has passed, if its memory is registered.
func (d *Device) CopyIn(to uint64, from []byte, s Stream) error {
	return d.within(func() error { return d.api.copyToDevice(to, from, uint64(s)) })
}

// CopyOut makes the stream copy device memory to the host and, where the host's
// memory is not registered, waits for it.
func (d *Device) CopyOut(to []byte, from uint64, s Stream) error {
	return d.within(func() error { return d.api.copyToHost(to, from, uint64(s)) })
}

// CopyWithin makes the stream copy between device addresses.
func (d *Device) CopyWithin(to, from, bytes uint64, s Stream) error {
	return d.within(func() error {
		return d.api.copyWithin.call(uintptr(to), uintptr(from), uintptr(bytes), uintptr(s))
	})
}

// Fill makes the stream set bytes.
func (d *Device) Fill(to uint64, value byte, bytes uint64, s Stream) error {
	return d.within(func() error { return d.api.fill.call(uintptr(to), uintptr(value), uintptr(bytes), uintptr(s)) })
}

// Register lets the device reach a range of host memory, outside the Go heap, and returns its
// device address: whole pages, read-only where they may not be written. Unregister ends it. Errors:
// ErrUnsupported where read-only memory cannot be registered, ErrConflict for memory that is
// registered already; with one nothing is registered.
func (d *Device) Register(b []byte, write bool) (uint64, error) {
	flags := uintptr(hostPortable | hostDeviceMap)
	if !write {
		if !d.ReadOnlyRegister() {
			return 0, protocol.Errorf(protocol.CodeUnsupported, "use a newer driver or GPU", "%s cannot register memory that may not be written", d.Name)
		}
		flags |= hostReadOnly
	}
	var at uint64
	err := d.within(func() (err error) {
		if err = d.api.hostRegister(b, flags); err != nil {
			return err
		}
		if at, err = d.api.getHostAddress(b); err != nil {
			d.api.hostUnregister(b)
		}
		return err
	})
	return at, err
}

// Unregister ends a Register of the same range. ErrInvalid: it is not registered.
func (d *Device) Unregister(b []byte) error {
	return d.within(func() error { return d.api.hostUnregister(b) })
}
