package client

import (
	"context"
	"fmt"
	"slices"

	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// Devices are the GPUs of this process: what cudaipc.Open returns. This package
// does not load a driver itself, so that programs without GPUs stay static.
type Devices = gpu.Devices

// Accelerator is one GPU of Devices, DeviceMemory is memory on it: what a package that
// drives GPUs has to offer. A program needs neither.
type (
	Accelerator  = gpu.Accelerator
	DeviceMemory = gpu.DeviceMemory
)

// Allocation is memory of cudaMalloc's as other processes can open it, by the IPCHandle
// that the driver has for it.
type (
	Allocation = gpu.Allocation
	IPCHandle  = gpu.IPCHandle
)

// WithDevices lets a client have tensors on GPUs: client.WithDevices(d) with d
// from cudaipc.Open.
func WithDevices(d Devices) Option {
	return func(o *options) error { o.devices = d; return nil }
}

// Device puts a tensor on a GPU: "cuda:0" as this process counts them, or
// "cuda:GPU-…" by UUID. Its bytes are reached by Pointer or ToDLPack.
func Device(name string) AllocOption { return func(o *allocOptions) { o.device = name } }

// Stream names a stream of a GPU as DLPack does: 1 is the legacy default stream,
// larger numbers are pointers; NoStream is for callers that synchronise by themselves. 2, the
// per-thread stream, is refused, since goroutines change threads. A stream lives as
// long as the client holds what was used on it or sent after it, for it is asked to
// write a value when that is let go. One that is being captured into a graph cannot be
// named.
type Stream int64

// Streams with fixed names.
const (
	NoStream     Stream = -1
	LegacyStream Stream = 1
)

func (s Stream) send(o *sendOptions)     { o.stream, o.given = gpu.Stream(s), true }
func (s Stream) export(o *exportOptions) { o.stream = gpu.Stream(s) }

// Lend makes a tensor of elements that a framework has on a GPU, as they lie, to be
// handed to others: memory of cudaMalloc's. They stay where they are, and are the
// tensor's, until done is called, on a goroutine of the client's, when nothing holds
// the tensor any more. Others open the memory while they hold it, and only as long as
// this client lives: then, and if they come late, they get ErrExpired. Of what is held
// when the client is closed done is not called. The Stream, by default the legacy one,
// is that after whose work the elements are written. With an error nothing is lent, and
// done is not called. ErrUnsupported: memory that the driver cannot lend (virtual
// memory, asynchronous pools); ErrInvalid; ErrNotFound for a GPU that is not there.
func (c *Client) Lend(ctx context.Context, v dlpack.View, done func(), opts ...ExportOption) (*Tensor, error) {
	o := exportOptions{stream: gpu.LegacyStream}
	for _, f := range opts {
		f.export(&o)
	}
	if err := o.stream.Check(); err != nil {
		return nil, err
	}
	if v.Device.Type != dlpack.CUDA || v.Data == 0 {
		return nil, protocol.Errorf(protocol.CodeUnsupported, "give elements on a GPU, or copy them into a tensor of Alloc's",
			"%s%v on %s cannot be lent", v.DType, v.Shape, v.Device)
	}
	span, err := v.DType.SpanBytes(v.Shape, v.Strides)
	if err != nil || span == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "give a shape with elements and a known dtype", "lend %s%v strides %v: %w", v.DType, v.Shape, v.Strides, err)
	}
	d, name := c.s.Devices, fmt.Sprintf("cuda:%d", v.Device.ID)
	if d == nil {
		return nil, gpu.NoDevices(name)
	}
	t := &Tensor{c: c, held: memory.NewHolding(c.s.Memory), dtype: v.DType, shape: slices.Clone(v.Shape), readonly: v.ReadOnly()}
	if !dlpack.IsContiguous(v.Shape, v.Strides) {
		t.strides = slices.Clone(v.Strides)
	}
	if t.offset, err = d.Lend(ctx, name, uint64(v.Data)+v.ByteOffset, uint64(span), done, t.held); err != nil {
		return nil, err
	}
	if err := t.place(true); err != nil {
		return nil, err
	}
	if o.stream != gpu.NoStream {
		if err := d.WrittenBy(t.part(), o.stream); err != nil {
			d.Disregard(t.held.Storages[0].Ref.Index)
			t.Release()
			return nil, err
		}
	}
	return t, nil
}
