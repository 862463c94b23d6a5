package dlpack

import (
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// View is what a checked tensor says, copied out of it. Shape and Strides are
// ordinary Go memory and stay valid after the release; the bytes do not.
type View struct {
	Version Version // zero for a legacy tensor
	Device  Device
	DType   DType
	Shape   []int64
	// Strides in elements, as many as extents; compact where the tensor had none.
	Strides []int64
	Flags   uint64 // zero for a legacy tensor, which says nothing
	// Data and ByteOffset as the producer wrote them. On devices without
	// addresses Data is an opaque handle.
	Data       uintptr
	ByteOffset uint64
	// Span is the number of bytes from the first element to behind the last
	// one; 0 without elements.
	Span int64
}

// ReadOnly says whether the producer forbids writing. A caller that writes all the
// same may meet a mapping that cannot be written, and end the process.
func (v *View) ReadOnly() bool { return v.Flags&FlagReadOnly != 0 }

// Contiguous says whether the elements lie compact and row-major.
func (v *View) Contiguous() bool { return IsContiguous(v.Shape, v.Strides) }

// Bytes gives the Span bytes from the first element on, nil without elements.
// They are the producer's memory: they must not be used after the release, and
// not be written if ReadOnly. ErrDevice where the CPU cannot reach them.
func (v *View) Bytes() ([]byte, error) {
	if !v.Device.Type.HostReadable() {
		return nil, fmt.Errorf("%w: %s memory cannot be read by the CPU; copy it to the host first",
			ErrDevice, v.Device)
	}
	if v.Span == 0 {
		return nil, nil
	}
	// Sound as far as the producer told the truth: checkPlace has seen that
	// address, offset and span do not wrap, and the memory is not Go's.
	return unsafe.Slice((*byte)(addrPointer(v.Data+uintptr(v.ByteOffset))), v.Span), nil
}

// Check looks at a tensor made by other code and gives a copy of what it says.
// The caller still owns the tensor, with one exception: on another major
// version the deleter has been called, nothing else was touched, and the result
// is a *VersionError (ErrVersion; together with ErrNoCaller if there is no way
// to call C, then the tensor is still the caller's).
//
// Other errors: ErrNullTensor, ErrMisaligned, ErrNDim, ErrNullShape,
// ErrNullData, ErrNegativeDim, ErrNegativeStride, ErrOverflow, ErrUnknownDType,
// ErrDevice, ErrFlags. Unknown flag bits and minor versions are accepted.
func Check(m *ManagedTensorVersioned) (View, error) {
	// Sound: only the address is looked at.
	if err := checkSelf(uintptr(unsafe.Pointer(m))); err != nil {
		return View{}, err
	}
	if v := m.Version; v.Major != VersionMajor {
		err := error(&VersionError{Got: v})
		if rerr := Release(m); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return View{}, err
	}
	return m.Tensor.view(m.Version, m.Flags)
}

// CheckLegacy is Check for the legacy structure, which has no version. The caller still owns the
// tensor, whatever the error.
func CheckLegacy(m *ManagedTensor) (View, error) {
	// Sound: only the address is looked at.
	if err := checkSelf(uintptr(unsafe.Pointer(m))); err != nil {
		return View{}, err
	}
	return m.Tensor.view(Version{}, 0)
}

func checkSelf(addr uintptr) error {
	if addr == 0 {
		return ErrNullTensor
	}
	if addr%8 != 0 {
		return fmt.Errorf("%w: tensor structure at %#x", ErrMisaligned, addr)
	}
	return nil
}

// view copies the tensor once and checks the copy.
func (t *Tensor) view(version Version, flags uint64) (View, error) {
	c := *t
	if c.NDim < 0 || c.NDim > MaxDims {
		return View{}, errNDim(int(c.NDim))
	}
	if c.Device.Type < 1 {
		return View{}, fmt.Errorf("%w: type %d", ErrDevice, c.Device.Type)
	}
	n := int(c.NDim)
	v := View{Version: version, Device: c.Device, DType: c.DType, Flags: flags,
		Data: c.Data, ByteOffset: c.ByteOffset}
	dims := make([]int64, 2*n)
	v.Shape, v.Strides = dims[:n:n], dims[n:]
	if n > 0 && c.Shape == 0 {
		return View{}, fmt.Errorf("%w: %d dimensions", ErrNullShape, n)
	}
	if err := copyDims(v.Shape, c.Shape, "shape"); err != nil {
		return View{}, err
	}
	strides := v.Strides
	if c.Strides == 0 {
		strides = nil
	} else if err := copyDims(v.Strides, c.Strides, "strides"); err != nil {
		return View{}, err
	}
	span, err := checkPlace(c.Data, c.ByteOffset, c.Device, c.DType, v.Shape, strides, flags)
	if err != nil {
		return View{}, err
	}
	if strides == nil {
		fillCompact(v.Strides, v.Shape)
	}
	v.Span = span
	return v, nil
}

// copyDims reads len(dst) numbers at addr. Sound as far as the producer told
// the truth: the array is aligned, does not wrap and is not Go memory.
func copyDims(dst []int64, addr uintptr, what string) error {
	if len(dst) == 0 {
		return nil
	}
	if addr%8 != 0 || addr > math.MaxUint64-8*MaxDims {
		return fmt.Errorf("%w: %s array at %#x", ErrMisaligned, what, addr)
	}
	copy(dst, unsafe.Slice((*int64)(addrPointer(addr)), len(dst)))
	return nil
}

// checkPlace checks everything that can be checked about where the elements of
// a tensor are, and gives the span. Used in both directions.
func checkPlace(data uintptr, offset uint64, dev Device, d DType, shape, strides []int64, flags uint64) (int64, error) {
	span, err := d.span(shape, strides, flags)
	if err != nil || span == 0 {
		return 0, err
	}
	if data == 0 {
		return 0, fmt.Errorf("%w: %s of shape %v", ErrNullData, d, shape)
	}
	if !dev.Type.hasAddresses() {
		return span, nil
	}
	first := uint64(data) + offset
	if first < offset || first > math.MaxUint64-uint64(span) {
		return 0, fmt.Errorf("%w: %d bytes at address %#x, offset %d", ErrOverflow, span, data, offset)
	}
	if a := uint64(d.Alignment()); first%a != 0 {
		return 0, fmt.Errorf("%w: %s at %#x is not a multiple of %d", ErrMisaligned, d, first, a)
	}
	return span, nil
}
