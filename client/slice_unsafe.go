package client

import (
	"unsafe"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// Number is what an element may be as a Go type.
type Number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64 | complex64 | complex128
}

// Slice returns the elements of a contiguous tensor as a Go slice over the shared memory. T has the
// size and kind of the dtype; a dtype that Go lacks (bool included, whose byte another process may
// set to anything, float16, bfloat16, float8…) is had as the unsigned integer of its size. The
// slice dies with the tensor's last Release, and writing that of a read-only tensor faults. Errors
// are those of Tensor.Bytes, and ErrInvalid for a T that does not fit the dtype.
func Slice[T Number](t *Tensor) ([]T, error) {
	b, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	var zero T
	size := int(unsafe.Sizeof(zero))
	if !fits(any(zero), t.dtype, size) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use the Go type of the dtype", "elements of %s are no %T", t.dtype, zero)
	}
	if len(b) == 0 {
		return nil, nil
	}
	// Sound: the view was checked to lie in its storage and to be aligned, the
	// mapping lives as long as the reference, and every bit pattern is a T.
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size), nil
}

func fits(zero any, d dlpack.DType, size int) bool {
	if n, whole := d.ItemSize(); !whole || n != size || d.Lanes != 1 {
		return false
	}
	unsigned := false
	code := dlpack.CodeInt
	switch zero.(type) {
	case float32, float64:
		code = dlpack.CodeFloat
	case complex64, complex128:
		code = dlpack.CodeComplex
	case uint8, uint16, uint32, uint64:
		code, unsigned = dlpack.CodeUInt, true
	}
	return d.Code == code || unsigned && d.Code != dlpack.CodeInt && d.Code != dlpack.CodeComplex
}
