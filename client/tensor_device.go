package client

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/devices"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// Device tells where the tensor's elements are: the device as this process
// numbers it.
func (t *Tensor) Device() dlpack.Device {
	if t.device == nil {
		return dlpack.CPUDevice
	}
	return t.device.GPU.Device()
}

// OrderedByStreams tells whether streams wait for each other when this tensor is handed
// over. False: it is memory of the machine, or the driver of its GPU is too old, and
// the processor waits in their stead, which is as right and takes longer.
func (t *Tensor) OrderedByStreams() bool { return t.device != nil && t.device.GPU.Values() }

// Pointer returns the device address of the first element of a tensor on a GPU. It may be used
// by work that follows UseOn, until Release. Errors: ErrInvalid for memory of the machine,
// ErrClosed once it was released, ErrExpired if the lender of the memory has ended.
func (t *Tensor) Pointer() (uint64, error) {
	if err := t.usable(); err != nil {
		return 0, err
	}
	if t.device == nil {
		return 0, protocol.Errorf(protocol.CodeInvalid, "use Bytes or ToDLPack", "%s is memory of the machine", t)
	}
	if err := t.held.Open(t.storage); err != nil {
		return 0, err
	}
	base, err := t.device.Address(!t.readonly)
	return base + t.held.Storages[t.storage].Offset + t.offset, err
}

// deviceSpec describes the export of a tensor on a GPU. Its deleter makes no call
// and counts nothing down, since the stream may still use it then.
func (t *Tensor) deviceSpec(s *dlpack.Spec, opts []ExportOption) error {
	o := exportOptions{stream: gpu.LegacyStream}
	for _, f := range opts {
		f.export(&o)
	}
	at, err := t.Pointer()
	if err == nil {
		err = t.UseOn(Stream(o.stream))
	}
	if err != nil {
		return err
	}
	s.Device, s.Address = t.Device(), uintptr(at)
	s.Cookie, err = t.c.s.Devices.Exported(t.held)
	return err
}

// onHost refuses to look into memory of a device.
func (t *Tensor) onHost() error {
	if t.device == nil {
		return nil
	}
	return protocol.Errorf(protocol.CodeUnsupported, "copy it to the host with cudaipc, or hand it on by ToDLPack", "%s lies on %s", t, t.Device())
}

// UseOn says that work enqueued on a stream from now on uses the tensor: the stream
// waits until it is written, and Release waits, without blocking, until the
// stream has come past what was enqueued before it. Work that follows a Send is
// announced anew. ErrExpired: the sender ended before it had written, or the lender of the
// memory has ended. For memory of the machine it does nothing.
func (t *Tensor) UseOn(s Stream) error {
	if err := gpu.Stream(s).Check(); err != nil {
		return err
	}
	if err := t.usable(); err != nil {
		return err
	}
	if t.device == nil || s == NoStream {
		return nil
	}
	return t.c.s.Devices.UseOn(context.Background(), t.part(), gpu.Stream(s))
}

// part is the tensor as what streams are ordered for.
func (t *Tensor) part() devices.Part { return devices.Part{Held: t.held, On: t.device} }

// Written waits until the sender's stream has written the tensor. ErrExpired: the
// sender ended before, or the lender of the memory has ended; ErrClosed: it was released. A stream that waited by
// UseOn and came through because the sender died has read what was there before:
// a caller that must not use that asks here, when the stream has passed.
func (t *Tensor) Written(ctx context.Context) error {
	if err := t.usable(); err != nil {
		return err
	}
	return t.held.Written(ctx)
}
