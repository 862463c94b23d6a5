package dlpack

import (
	"fmt"
	"unsafe"
)

// Spec says what Export builds. The slices are copied.
type Spec struct {
	// Data is the address of the first element, outside the Go heap. It stays
	// mapped until the deleter has run. Ignored when there are no elements.
	Data unsafe.Pointer
	// Address takes the place of Data on devices whose addresses this process
	// cannot read.
	Address uintptr
	Device  Device // CPUDevice for shared memory
	DType   DType
	Shape   []int64
	// Strides in elements; nil is compact and row-major.
	Strides []int64
	// Flags: FlagReadOnly for memory that the receiver must not write.
	Flags uint64
	// Word is the refcount word that pays for this tensor, or nil if nothing
	// counts it. It is aligned to 8 bytes and stays mapped and the holder's own
	// until the deleter has run. The caller has counted up before Export; the
	// deleter adds Delta, once, atomically.
	// SYNC dlpack-drop: the add is acquire and release; its other end is the
	// free test of the storage's owner.
	Word *uint64
	// Delta is added to Word, wrapping (a drop is 1<<20 - 1).
	Delta uint64
	// Cookie is handed to the function given to Reap.
	Cookie uint64
}

// Export builds a tensor that C code, or Release, frees by its deleter. It has
// version 1.3, byte offset 0, strides whenever it has dimensions, and NULL data
// when it has no elements.
//
// On an error nothing was built and the reference in s.Word is still the
// caller's: ErrUnknownDType, ErrNDim, ErrStrideCount, ErrNegativeDim,
// ErrNegativeStride, ErrOverflow, ErrNullData, ErrMisaligned, ErrDevice,
// ErrFlags, ErrAllocator or the allocator's own.
func (p *Pool) Export(s *Spec) (*ManagedTensorVersioned, error) {
	b, err := p.build(s)
	if err != nil {
		return nil, err
	}
	m := &b.tensor
	m.Version = CurrentVersion
	m.ManagerCtx = b.ctxAddr()
	m.Deleter = ownVersioned
	m.Flags = s.Flags
	b.fill(&m.Tensor, s)
	return m, nil
}

// ExportLegacy is Export for consumers that only take the legacy structure. It
// has no flags: FlagReadOnly and FlagSubbyteTypePadded give ErrFlags, because
// the consumer would write to the memory or misread it. FlagIsCopied is lost.
func (p *Pool) ExportLegacy(s *Spec) (*ManagedTensor, error) {
	if s.Flags&(FlagReadOnly|FlagSubbyteTypePadded) != 0 {
		return nil, fmt.Errorf("%w: %#x cannot be said in a legacy structure; "+
			"export the versioned one, or a private copy", ErrFlags, s.Flags)
	}
	b, err := p.build(s)
	if err != nil {
		return nil, err
	}
	m := b.legacy()
	m.ManagerCtx = b.ctxAddr()
	m.Deleter = ownLegacy
	b.fill(&m.Tensor, s)
	return m, nil
}

// address is that of the first element. Sound: only the number is used.
func (s *Spec) address() uintptr {
	if s.Data != nil {
		return uintptr(s.Data)
	}
	return s.Address
}

// build checks the spec and arms a block for it.
func (p *Pool) build(s *Spec) (*block, error) {
	if s.Flags&^knownFlags != 0 {
		return nil, fmt.Errorf("%w: unknown bits %#x", ErrFlags, s.Flags&^knownFlags)
	}
	if s.Device.Type < 1 {
		return nil, fmt.Errorf("%w: type %d (ordinary memory is CPUDevice)", ErrDevice, s.Device.Type)
	}
	// Sound: only the numbers are looked at.
	data, word := s.address(), uintptr(unsafe.Pointer(s.Word))
	if _, err := checkPlace(data, 0, s.Device, s.DType, s.Shape, s.Strides, s.Flags); err != nil {
		return nil, err
	}
	if word%8 != 0 {
		return nil, fmt.Errorf("%w: refcount word at %#x", ErrMisaligned, word)
	}
	b, err := p.get(len(s.Shape))
	if err != nil {
		return nil, err
	}
	b.ctx.word = word
	b.ctx.delta = s.Delta
	b.ctx.cookie = s.Cookie
	b.ctx.next = 0
	b.ctx.live = 1
	return b, nil
}

// fill writes the view. The spec has been checked.
func (b *block) fill(t *Tensor, s *Spec) {
	*t = Tensor{Data: s.address(), Device: s.Device, NDim: int32(len(s.Shape)), DType: s.DType}
	shape, strides := b.dims(len(s.Shape))
	copy(shape, s.Shape)
	if s.Strides == nil {
		fillCompact(strides, s.Shape)
	} else {
		copy(strides, s.Strides)
	}
	for _, d := range s.Shape {
		if d == 0 {
			t.Data = 0
		}
	}
	if len(s.Shape) > 0 {
		// Sound: the room lies in this block, which lives until it is reaped.
		t.Shape = uintptr(unsafe.Pointer(&shape[0]))
		t.Strides = uintptr(unsafe.Pointer(&strides[0]))
	}
}
