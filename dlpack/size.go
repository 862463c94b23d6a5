package dlpack

import (
	"fmt"
	"math"
	"math/bits"
)

// NumElements multiplies the extents. It gives ErrNDim, ErrNegativeDim or
// ErrOverflow (as *AxisError). No extents is a scalar: 1. Extents of 0 count as
// 1 in the overflow check.
func NumElements(shape []int64) (int64, error) {
	if len(shape) > MaxDims {
		return 0, errNDim(len(shape))
	}
	n, empty, err := product(shape)
	if empty {
		n = 0
	}
	return n, err
}

// product multiplies the extents, 0 counted as 1, and says whether one is 0.
func product(shape []int64) (n int64, empty bool, err error) {
	n = 1
	for i, d := range shape {
		if d < 0 {
			return 0, false, &AxisError{Axis: i, Value: d, Err: ErrNegativeDim}
		}
		if d == 0 {
			empty = true
			continue
		}
		hi, lo := bits.Mul64(uint64(n), uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false, &AxisError{Axis: i, Value: d, Err: ErrOverflow}
		}
		n = int64(lo)
	}
	return n, empty, nil
}

// bytesOf gives the bytes that n elements take, rounded up once at the end.
func bytesOf(n, slotBits uint64) (int64, error) {
	hi, lo := bits.Mul64(n, slotBits)
	lo, carry := bits.Add64(lo, 7, 0)
	hi += carry
	b := hi<<61 | lo>>3
	if hi>>3 != 0 || b > math.MaxInt64 {
		return 0, fmt.Errorf("%w: %d elements of %d bits", ErrOverflow, n, slotBits)
	}
	return int64(b), nil
}

// NumBytes is the size of a compact tensor: sub-byte types are packed and the
// end is rounded up to a byte. It gives ErrUnknownDType, ErrNDim,
// ErrNegativeDim or ErrOverflow. Extents of 0 count as 1 in the overflow check.
func (d DType) NumBytes(shape []int64) (int64, error) {
	return d.numBytes(shape, 0)
}

// NumBytesPadded is NumBytes for FlagSubbyteTypePadded: each element of a
// sub-byte type takes a byte. Vectors of such elements give ErrFlags.
func (d DType) NumBytesPadded(shape []int64) (int64, error) {
	return d.numBytes(shape, FlagSubbyteTypePadded)
}

func (d DType) numBytes(shape []int64, flags uint64) (int64, error) {
	slot, err := d.slotBits(flags)
	if err != nil {
		return 0, err
	}
	if len(shape) > MaxDims {
		return 0, errNDim(len(shape))
	}
	n, empty, err := product(shape)
	if err != nil {
		return 0, err
	}
	b, err := bytesOf(uint64(n), slot)
	if err != nil {
		return 0, err
	}
	if empty {
		return 0, nil
	}
	return b, nil
}

func errNDim(n int) error {
	return fmt.Errorf("%w: %d, allowed are 0 to %d", ErrNDim, n, MaxDims)
}
