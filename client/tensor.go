package client

import (
	"fmt"
	"sync/atomic"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Tensor is a view of shared memory: dtype, shape, strides in elements. It is
// valid until its last Release; one that a Message, a Bundle or another tensor
// lent (views included) is valid as long as its lender, and its own Release does
// nothing. Views share the storage. Tensors may be used from any goroutine;
// their bytes are shared with all that hold them.
type Tensor struct {
	c        *Client
	held     *memory.Holding
	storage  int    // in held; -1: no elements
	offset   uint64 // bytes, in the storage
	dtype    dlpack.DType
	shape    []int64
	strides  []int64 // elements; nil: C-contiguous
	region   shm.Region
	device   *gpu.Segment // nil: memory of the machine, in region
	readonly bool
	name     string
	lent     bool
	over     atomic.Bool
}

// Shape returns the extents; the caller must not change them.
func (t *Tensor) Shape() []int64 { return t.shape }

// Strides returns the strides in elements, nil for C-contiguous.
func (t *Tensor) Strides() []int64 { return t.strides }

// DType returns what one element is.
func (t *Tensor) DType() dlpack.DType { return t.dtype }

// ReadOnly tells whether the tensor must not be written.
func (t *Tensor) ReadOnly() bool { return t.readonly }

// Name is the tensor's path in the message or bundle it came in.
func (t *Tensor) Name() string { return t.name }

// Len returns the number of elements.
func (t *Tensor) Len() int64 { n, _ := dlpack.NumElements(t.shape); return n }

// NumBytes returns the bytes that the elements would take C-contiguous.
func (t *Tensor) NumBytes() int64 {
	if t.storage < 0 {
		return 0
	}
	n, _ := t.dtype.NumBytes(t.shape)
	return n
}

// String describes the tensor in one line of text.
func (t *Tensor) String() string {
	where := "writable"
	if t.readonly {
		where = "read-only"
	}
	if t.storage < 0 || t.held == nil {
		return fmt.Sprintf("Tensor(%s%v, empty)", t.dtype, t.shape)
	}
	if t.device != nil {
		where += " on " + t.Device().String()
		if !t.OrderedByStreams() {
			where += " (its processor waits for streams)"
		}
	}
	return fmt.Sprintf("Tensor(%s%v, %s, storage %d)", t.dtype, t.shape, where, t.held.Storages[t.storage].Ref.Index)
}

// isOver tells whether it was released, or all that it was lent with.
func (t *Tensor) isOver() bool { return t.over.Load() || t.held != nil && t.held.IsOver() }

// usable refuses a tensor of which nothing is left: one that isOver, or a zero Tensor.
func (t *Tensor) usable() error {
	switch {
	case t.held == nil:
		return protocol.Errorf(protocol.CodeClosed, "use one that was allocated or received", "the tensor belongs to no session")
	case t.isOver():
		return fault.Released(t.String())
	}
	return nil
}

// Retain returns another holder of the same tensor, to be released by itself. It panics if all have been released:
// the memory may be another's by then.
func (t *Tensor) Retain() *Tensor {
	t.held.Retain()
	v := t.view()
	v.lent = false
	return v
}

// Release ends this holder. With the last one the reference is dropped and the
// memory may be recycled. A second Release, and that of a lent tensor, does
// nothing.
func (t *Tensor) Release() {
	if !t.lent && !t.over.Swap(true) {
		t.held.Release()
	}
}

// view copies the description; the copy is lent.
func (t *Tensor) view() *Tensor {
	return &Tensor{c: t.c, held: t.held, storage: t.storage, offset: t.offset, dtype: t.dtype, shape: t.shape,
		strides: t.strides, region: t.region, device: t.device, readonly: t.readonly, name: t.name, lent: true}
}

// AsReadOnly returns a view that is handed on read-only.
func (t *Tensor) AsReadOnly() *Tensor {
	v := t.view()
	v.readonly = true
	return v
}

// AsStrided returns a view with another shape and strides (in elements, nil for
// C-contiguous), offset elements from this one's first. ErrInvalid when it
// reaches past the storage.
func (t *Tensor) AsStrided(shape, strides []int64, offset int64) (*Tensor, error) {
	item, whole := t.dtype.ItemSize()
	if offset < 0 || !whole && offset != 0 || item > 0 && offset > (1<<62)/int64(item) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use an offset inside the storage", "view at element %d of %s", offset, t)
	}
	if err := t.usable(); err != nil {
		return nil, err
	}
	v := t.view()
	v.shape, v.strides = append([]int64(nil), shape...), append([]int64(nil), strides...)
	if len(strides) == 0 {
		v.strides = nil
	}
	v.offset = t.offset + uint64(offset)*uint64(item)
	if err := v.check(); err != nil {
		return nil, err
	}
	return v, nil
}

// check tests a view against its storage.
func (t *Tensor) check() error {
	size := uint64(0)
	if t.storage >= 0 {
		size = t.held.Storages[t.storage].Bytes
	}
	if err := t.dtype.CheckView(t.shape, t.strides, t.offset, size); err != nil {
		return protocol.Errorf(protocol.CodeInvalid, "use a shape and strides inside the storage", "view %s%v strides %v: %w", t.dtype, t.shape, t.strides, err)
	}
	return nil
}

// Slice returns the view of extents [from, to) of one axis. Errors: ErrInvalid for what lies
// outside the shape, ErrClosed once the tensor was released.
func (t *Tensor) Slice(axis int, from, to int64) (*Tensor, error) {
	if axis < 0 || axis >= len(t.shape) || from < 0 || to < from || to > t.shape[axis] {
		return nil, protocol.Errorf(protocol.CodeInvalid, "stay inside the shape", "slice [%d:%d) of axis %d of %v", from, to, axis, t.shape)
	}
	strides, err := t.fullStrides()
	if err != nil {
		return nil, err
	}
	shape := append([]int64(nil), t.shape...)
	shape[axis] = to - from
	if dlpack.IsContiguous(shape, strides) {
		return t.AsStrided(shape, nil, from*strides[axis])
	}
	return t.AsStrided(shape, strides, from*strides[axis])
}

// Transpose returns the view with two axes exchanged. Errors: ErrInvalid for an axis that it does
// not have, ErrClosed once it was released.
func (t *Tensor) Transpose(a, b int) (*Tensor, error) {
	if a < 0 || b < 0 || a >= len(t.shape) || b >= len(t.shape) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use axes of the tensor", "transpose axes %d and %d of %v", a, b, t.shape)
	}
	strides, err := t.fullStrides()
	if err != nil {
		return nil, err
	}
	shape := append([]int64(nil), t.shape...)
	shape[a], shape[b] = shape[b], shape[a]
	strides[a], strides[b] = strides[b], strides[a]
	return t.AsStrided(shape, strides, 0)
}

// Reshape returns the view of a contiguous tensor with another shape of as many elements. Errors:
// ErrInvalid for another number of elements or a tensor that is not contiguous, ErrClosed once it
// was released.
func (t *Tensor) Reshape(shape ...int64) (*Tensor, error) {
	n, err := dlpack.NumElements(shape)
	if err != nil || n != t.Len() || !dlpack.IsContiguous(t.shape, t.strides) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "keep the number of elements; copy what is not contiguous",
			"reshape %v (strides %v) to %v", t.shape, t.strides, shape)
	}
	return t.AsStrided(shape, nil, 0)
}

func (t *Tensor) fullStrides() ([]int64, error) {
	if t.strides != nil {
		return append([]int64(nil), t.strides...), nil
	}
	return dlpack.CompactStrides(t.shape)
}

// Contiguous tells whether the elements lie without gaps in C order.
func (t *Tensor) Contiguous() bool { return dlpack.IsContiguous(t.shape, t.strides) }

// Bytes returns the bytes of a contiguous tensor, nil when it has none. They die with the last
// Release. Writing those of a read-only tensor faults. Errors: ErrInvalid for a tensor that is not
// contiguous, ErrUnsupported for one on a GPU, ErrClosed once it was released.
func (t *Tensor) Bytes() ([]byte, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	if !t.Contiguous() {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use its strides, or copy it", "bytes of %v with strides %v are not contiguous", t.shape, t.strides)
	}
	if t.storage < 0 {
		return nil, nil
	}
	if err := t.onHost(); err != nil {
		return nil, err
	}
	return t.region.Bytes(t.offset, uint64(t.NumBytes())), nil
}

// ToDLPack exports the tensor: the caller, or the C code that it is given to, calls its deleter
// once, on any thread, and with that a reference of its own is dropped. It is independent of this
// holder's Release. Of a tensor on a GPU the consumer's Stream is made to wait until it is written,
// and is waited for when the deleter was called. Errors: ErrClosed once it was released, and those
// of UseOn for a tensor on a GPU. With an error nothing was exported.
func (t *Tensor) ToDLPack(opts ...ExportOption) (*dlpack.ManagedTensorVersioned, error) {
	spec, err := t.spec(opts)
	if err != nil {
		return nil, err
	}
	var m *dlpack.ManagedTensorVersioned
	dl, err := t.c.s.Files.Exports.Get()
	if err == nil {
		m, err = dl.Export(spec)
	}
	t.undo(spec, err)
	return m, err
}

// ToDLPackLegacy is ToDLPack for consumers of the structure before 1.0, which
// has no read-only flag: a read-only tensor is refused (dlpack.ErrFlags).
func (t *Tensor) ToDLPackLegacy(opts ...ExportOption) (*dlpack.ManagedTensor, error) {
	spec, err := t.spec(opts)
	if err != nil {
		return nil, err
	}
	var m *dlpack.ManagedTensor
	dl, err := t.c.s.Files.Exports.Get()
	if err == nil {
		m, err = dl.ExportLegacy(spec)
	}
	t.undo(spec, err)
	return m, err
}

// ExportOption configures ToDLPack: a Stream, by default the legacy one.
type ExportOption interface{ export(*exportOptions) }

type exportOptions struct{ stream gpu.Stream }

// spec describes an export and counts its reference up.
func (t *Tensor) spec(opts []ExportOption) (*dlpack.Spec, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	s := &dlpack.Spec{Device: dlpack.CPUDevice, DType: t.dtype, Shape: t.shape, Strides: t.strides}
	if t.readonly {
		s.Flags = dlpack.FlagReadOnly
	}
	if t.storage < 0 {
		return s, nil
	}
	if t.device != nil {
		return s, t.deviceSpec(s, opts)
	}
	m := t.c.s.Memory
	index := t.held.Storages[t.storage].Ref.Index
	if err := m.CountUp(index); err != nil {
		return nil, err
	}
	s.Data = t.region.Address(t.offset)
	s.Word, s.Delta, s.Cookie = m.CountWord(index), protocol.Drop, uint64(index)
	return s, nil
}

func (t *Tensor) undo(s *dlpack.Spec, err error) {
	switch {
	case err == nil:
	case s.Word != nil:
		t.c.s.Memory.Drop(uint32(s.Cookie))
	case s.Cookie&memory.DeviceCookie != 0:
		t.c.s.Devices.Deleted(s.Cookie)
	}
}

// place finds the bytes of the tensor's storage: on its device, or in this process.
func (t *Tensor) place(write bool) (err error) {
	if t.device = t.held.Storages[t.storage].At.Segment.Device; t.device != nil {
		return nil // mapped when its pointer is asked for
	}
	t.region, err = t.held.Region(t.storage, write)
	return err
}
