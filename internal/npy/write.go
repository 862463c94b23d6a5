package npy

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"
)

const (
	align = 64 // where the data starts is a multiple of it
	// growthDigits leaves room to append along the slowest dimension by
	// rewriting the header in place, as numpy.save does.
	growthDigits = 21
	chunk        = 64 << 10 // bytes gathered at a time from a strided array
)

// Write writes a .npy file: dtype is Baton's name, data the elements in C order,
// exactly as many bytes as they have.
//
// Errors match ErrDType for a type that .npy cannot name (bfloat16 and the like;
// the text says how to save those), ErrSize when shape or data do not fit each
// other, or are those of w, wrapped. Nothing is written when the first two are
// returned.
func Write(w io.Writer, dtype string, shape []int64, data []byte) error {
	d, err := byName(dtype)
	if err != nil {
		return err
	}
	n, err := d.bytes(shape)
	if err != nil {
		return err
	}
	if int64(len(data)) != n {
		return wrongSize(dtype, shape, "needs %d bytes of data, got %d", n, len(data))
	}
	return writeAll(w, header(d, shape, false), data)
}

// WriteStrided is Write for an array whose elements lie apart: strides are in
// elements, one for each dimension, none negative; data starts at the element
// whose indices are all zero and reaches at least to the last one. An array in C
// or Fortran order is written from where it lies, any other is gathered a piece
// at a time. Errors are those of Write; strides that leave data match ErrSize.
func WriteStrided(w io.Writer, dtype string, shape, stride []int64, data []byte) error {
	d, err := byName(dtype)
	if err != nil {
		return err
	}
	n, err := d.bytes(shape)
	if err != nil {
		return err
	}
	if err := d.checkStrides(shape, stride, int64(len(data)), n == 0); err != nil {
		return err
	}
	switch {
	case n == 0:
		return writeAll(w, header(d, shape, false))
	case lies(shape, stride, false):
		return writeAll(w, header(d, shape, false), data[:n])
	case lies(shape, stride, true):
		return writeAll(w, header(d, shape, true), data[:n])
	}
	if err := writeAll(w, header(d, shape, false)); err != nil {
		return err
	}
	return gather(w, d.size, shape, stride, data)
}

func (d dtype) checkStrides(shape, stride []int64, have int64, empty bool) error {
	refuse := func(format string, args ...any) error { return wrongSize(d.name, shape, format, args...) }
	if len(stride) != len(shape) {
		return refuse("%d strides for %d dimensions", len(stride), len(shape))
	}
	last := int64(0) // element index of the last element
	for i, s := range stride {
		steps := shape[i] - 1
		switch {
		case s < 0:
			return refuse("stride %d is negative; make a copy of the array first", s)
		case empty || steps == 0 || s == 0:
		case s > (math.MaxInt64-last)/steps:
			return refuse("strides %v do not fit 64 bits", stride)
		default:
			last += s * steps
		}
	}
	// have/size counts whole elements, so last < have/size puts all of the last one inside.
	if !empty && last >= have/d.size {
		return refuse("strides %v reach past the %d bytes of data", stride, have)
	}
	return nil
}

// lies reports whether the elements are packed in C (or Fortran) order. The
// stride of a dimension of one is never used and so does not matter.
func lies(shape, stride []int64, fortran bool) bool {
	for i, s := range strides(shape, fortran) {
		if shape[i] != 1 && stride[i] != s {
			return false
		}
	}
	return true
}

// gather writes the elements in C order. The caller has checked that every index
// stays inside data and that no dimension is zero. Stepping past the end of a
// dimension may wrap around 64 bits; stepping back then wraps the other way, and
// no element is looked up in between.
func gather(w io.Writer, size int64, shape, stride []int64, data []byte) error {
	// A single value is packed and never comes here, so there is a last dimension.
	inner := len(shape) - 1
	var (
		buf   = make([]byte, 0, chunk)
		index [MaxDims]int64
		row   int64 // element index of the row's first element
	)
	for {
		at := row * size
		for range shape[inner] {
			if int64(cap(buf)-len(buf)) < size {
				if err := writeAll(w, buf); err != nil {
					return err
				}
				buf = buf[:0]
			}
			buf = append(buf, data[at:at+size]...)
			at += stride[inner] * size
		}
		dim := inner - 1
		for ; dim >= 0; dim-- {
			index[dim]++
			row += stride[dim]
			if index[dim] < shape[dim] {
				break
			}
			row -= stride[dim] * shape[dim]
			index[dim] = 0
		}
		if dim < 0 {
			return writeAll(w, buf)
		}
	}
}

// header builds all that stands before the data. MaxDims numbers of 19 digits
// keep it far below what version 1.0 can express.
func header(d dtype, shape []int64, fortran bool) []byte {
	order := "False"
	if fortran {
		order = "True"
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", d.descr(), order, shapeText(shape))
	if len(shape) > 0 {
		grows := shape[0]
		if fortran {
			grows = shape[len(shape)-1]
		}
		text += strings.Repeat(" ", growthDigits-len(fmt.Sprint(grows)))
	}
	fixed := len(magic) + 2 + 2
	total := ((fixed+len(text)+1)/align + 1) * align // always some padding, as NumPy does

	b := make([]byte, 0, total)
	b = append(b, magic...)
	b = append(b, 1, 0)
	b = binary.LittleEndian.AppendUint16(b, uint16(total-fixed))
	b = append(b, text...)
	for len(b) < total-1 {
		b = append(b, ' ')
	}
	return append(b, '\n')
}

func writeAll(w io.Writer, parts ...[]byte) error {
	for _, p := range parts {
		if len(p) == 0 {
			continue
		}
		if n, err := w.Write(p); err != nil {
			return fmt.Errorf("npy: writing, after %d of %d bytes: %w", n, len(p), err)
		}
	}
	return nil
}

// shapeText writes a shape the way Python writes a tuple.
func shapeText(shape []int64) string {
	text := strings.ReplaceAll(strings.Trim(fmt.Sprint(shape), "[]"), " ", ", ")
	if len(shape) == 1 {
		text += ","
	}
	return "(" + text + ")"
}
