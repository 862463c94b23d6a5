package dlpack

import (
	"errors"
	"fmt"
)

// Refusals of a shape, a type or a view, before anything is built or read.
var (
	// ErrOverflow: the size of a shape, or the reach of its strides, does not
	// fit into a signed 64-bit number. Extents of 0 count as 1 here, so that
	// the answer does not depend on their order.
	ErrOverflow = errors.New("dlpack: size overflows 64 bits")
	// ErrNegativeDim: an extent is below 0.
	ErrNegativeDim = errors.New("dlpack: negative extent")
	// ErrNegativeStride: a stride is below 0. Copy the tensor first.
	ErrNegativeStride = errors.New("dlpack: negative stride")
	// ErrStrideCount: there are not as many strides as extents.
	ErrStrideCount = errors.New("dlpack: number of strides differs from number of dimensions")
	// ErrNDim: the number of dimensions is below 0 or above MaxDims.
	ErrNDim = errors.New("dlpack: number of dimensions out of range")
	// ErrUnknownDType: no such type code, width or name, or 0 lanes.
	ErrUnknownDType = errors.New("dlpack: unknown dtype")
	// ErrOutOfStorage: a view reaches past the memory that it lies in.
	ErrOutOfStorage = errors.New("dlpack: view reaches past its storage")
	// ErrMisaligned: an address is not a multiple of what its type needs.
	ErrMisaligned = errors.New("dlpack: misaligned address")
	// ErrFlags: a flag that is unknown, or that cannot be expressed.
	ErrFlags = errors.New("dlpack: unusable flags")
	// ErrDevice: a device type below 1, or one whose memory cannot be read here.
	ErrDevice = errors.New("dlpack: unusable device")
)

// Refusals of a structure made by other code.
var (
	// ErrNullTensor: the pointer to the structure is NULL.
	ErrNullTensor = errors.New("dlpack: tensor pointer is NULL")
	// ErrNullShape: there are dimensions but Shape is NULL.
	ErrNullShape = errors.New("dlpack: shape is NULL")
	// ErrNullData: there are elements but Data is NULL.
	ErrNullData = errors.New("dlpack: data is NULL but the shape has elements")
	// ErrVersion: the major version is not ours. Of a tensor the deleter has
	// been called and nothing else was touched.
	ErrVersion = errors.New("dlpack: unsupported major version")
	// ErrExchangeEntry: an entry of an exchange table is NULL or not known.
	ErrExchangeEntry = errors.New("dlpack: exchange table has no such entry")
	// ErrExchangeChain: the prev_api chain of an exchange table does not go
	// from newer to older.
	ErrExchangeChain = errors.New("dlpack: exchange table chain is broken")
)

// Failures of building and releasing.
var (
	// ErrNoCaller: the deleter is a C function and nothing in this program can
	// call C. Nothing was called; the tensor is still the caller's. Import
	// github.com/baton-ipc/baton/dlpack/cabi for its side effect.
	ErrNoCaller = errors.New("dlpack: releasing this tensor calls a C function: " +
		"import github.com/baton-ipc/baton/dlpack/cabi in this program")
	// ErrAllocator: a pool's allocator gave too little or misaligned memory.
	ErrAllocator = errors.New("dlpack: allocator gave unusable memory")
)

// AxisError names the axis and the value that was refused. Unwrap gives
// ErrNegativeDim, ErrNegativeStride or ErrOverflow.
type AxisError struct {
	Axis  int
	Value int64
	Err   error
}

func (e *AxisError) Error() string {
	return fmt.Sprintf("%v: %d at axis %d", e.Err, e.Value, e.Axis)
}

// Unwrap gives the sentinel.
func (e *AxisError) Unwrap() error { return e.Err }

// DTypeError names the dtype that was refused: by Text where a name was parsed
// (Named), else by DType. Unwrap gives ErrUnknownDType.
type DTypeError struct {
	Named bool
	Text  string
	DType DType
}

func (e *DTypeError) Error() string {
	if e.Named {
		return fmt.Sprintf("%v: name %.64q", ErrUnknownDType, e.Text)
	}
	return fmt.Sprintf("%v: code %d, bits %d, lanes %d",
		ErrUnknownDType, e.DType.Code, e.DType.Bits, e.DType.Lanes)
}

// Unwrap gives ErrUnknownDType.
func (e *DTypeError) Unwrap() error { return ErrUnknownDType }

// VersionError carries the version found. Unwrap gives ErrVersion.
type VersionError struct {
	Got Version
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%v: got %s, this build reads %d.x; ask the producer for max_version=(%d, %d)",
		ErrVersion, e.Got, VersionMajor, VersionMajor, VersionMinor)
}

// Unwrap gives ErrVersion.
func (e *VersionError) Unwrap() error { return ErrVersion }

// BoundsError says which bytes a view needs of a storage of which size. Unwrap
// gives ErrOutOfStorage.
type BoundsError struct {
	Offset  uint64 // of the first element, in bytes
	Bytes   int64  // from the first to behind the last element
	Storage uint64 // bytes there are
}

func (e *BoundsError) Error() string {
	return fmt.Sprintf("%v: needs %d bytes at offset %d of %d", ErrOutOfStorage, e.Bytes, e.Offset, e.Storage)
}

// Unwrap gives ErrOutOfStorage.
func (e *BoundsError) Unwrap() error { return ErrOutOfStorage }
