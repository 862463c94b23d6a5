package dlpack

import (
	"fmt"
	"math"
	"math/bits"
)

// CompactStrides gives the row-major strides of a shape, in elements. Extents
// of 0 count as 1. It gives what NumElements gives as errors.
func CompactStrides(shape []int64) ([]int64, error) {
	if len(shape) > MaxDims {
		return nil, errNDim(len(shape))
	}
	if _, _, err := product(shape); err != nil {
		return nil, err
	}
	s := make([]int64, len(shape))
	fillCompact(s, shape)
	return s, nil
}

// fillCompact writes the strides of a shape whose product is known to fit.
func fillCompact(dst, shape []int64) {
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		dst[i] = step
		step *= max(shape[i], 1)
	}
}

// IsContiguous says whether strides are those of a compact row-major tensor.
// No strides (nil) are. Axes of extent 1 may have any stride, and a tensor
// without elements is always contiguous. Lengths that differ are not.
func IsContiguous(shape, strides []int64) bool {
	if strides == nil {
		return true
	}
	if len(shape) != len(strides) {
		return false
	}
	for _, d := range shape {
		if d == 0 {
			return true
		}
	}
	step := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] == 1 {
			continue
		}
		if strides[i] != step {
			return false
		}
		hi, lo := bits.Mul64(uint64(step), uint64(shape[i]))
		if hi != 0 || lo > math.MaxInt64 {
			return false
		}
		step = int64(lo)
	}
	return true
}

// SpanBytes is the distance from the first byte of the first element to behind
// the last byte that any element has, sub-byte types packed; 0 without
// elements. Strides are in elements, nil is compact, 0 repeats an axis. It
// gives ErrUnknownDType, ErrNDim, ErrStrideCount, ErrNegativeDim,
// ErrNegativeStride or ErrOverflow. The shape itself must also fit, even where
// strides of 0 make the span small.
func (d DType) SpanBytes(shape, strides []int64) (int64, error) {
	return d.span(shape, strides, 0)
}

func (d DType) span(shape, strides []int64, flags uint64) (int64, error) {
	slot, err := d.slotBits(flags)
	if err != nil {
		return 0, err
	}
	if len(shape) > MaxDims {
		return 0, errNDim(len(shape))
	}
	if strides != nil && len(strides) != len(shape) {
		return 0, fmt.Errorf("%w: %d strides, %d dimensions", ErrStrideCount, len(strides), len(shape))
	}
	n, empty, err := product(shape)
	if err != nil {
		return 0, err
	}
	total, err := bytesOf(uint64(n), slot)
	if err != nil {
		return 0, err
	}
	if strides != nil {
		last, err := lastIndex(shape, strides)
		if err != nil {
			return 0, err
		}
		if total, err = bytesOf(last+1, slot); err != nil {
			return 0, err
		}
	}
	if empty {
		return 0, nil
	}
	return total, nil
}

// lastIndex is the element index that the highest coordinates reach. The sum
// is at most MaxInt64, so one more does not wrap.
func lastIndex(shape, strides []int64) (uint64, error) {
	var last uint64
	for i, st := range strides {
		if st < 0 {
			return 0, &AxisError{Axis: i, Value: st, Err: ErrNegativeStride}
		}
		if shape[i] == 0 {
			continue
		}
		hi, lo := bits.Mul64(uint64(shape[i]-1), uint64(st))
		sum, carry := bits.Add64(last, lo, 0)
		if hi != 0 || carry != 0 || sum > math.MaxInt64 {
			return 0, &AxisError{Axis: i, Value: st, Err: ErrOverflow}
		}
		last = sum
	}
	return last, nil
}

// CheckView says whether a view lies inside a storage of storageBytes bytes
// when its first element is at byteOffset. The storage is taken to be aligned
// to at least 8 bytes. On top of what SpanBytes gives: *BoundsError
// (ErrOutOfStorage) and ErrMisaligned.
func (d DType) CheckView(shape, strides []int64, byteOffset, storageBytes uint64) error {
	span, err := d.span(shape, strides, 0)
	if err != nil {
		return err
	}
	if byteOffset > storageBytes || uint64(span) > storageBytes-byteOffset {
		return &BoundsError{Offset: byteOffset, Bytes: span, Storage: storageBytes}
	}
	if a := uint64(d.Alignment()); byteOffset%a != 0 {
		return fmt.Errorf("%w: offset %d of %s is not a multiple of %d", ErrMisaligned, byteOffset, d, a)
	}
	return nil
}
