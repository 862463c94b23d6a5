package npy

import (
	"errors"
	"fmt"
	"strings"
)

// Met while reading a header.
var (
	// ErrNotNPY: the first bytes are not those of a .npy file. An .npz file is a
	// zip archive of .npy files: unpack it first.
	ErrNotNPY = errors.New("npy: not a .npy file")
	// ErrVersion: the file has a format version other than 1.0, 2.0 or 3.0. Load
	// and save it again with the NumPy that wrote it.
	ErrVersion = errors.New("npy: unknown format version")
	// ErrHeader: the header is malformed or longer than MaxHeader. The file is
	// damaged or was not written by NumPy.
	ErrHeader = errors.New("npy: malformed header")
	// ErrTruncated: the file ends early. Copy or save it again.
	ErrTruncated = errors.New("npy: file is cut short")
)

// Met while reading or writing.
var (
	// ErrByteOrder: the elements are big-endian. Save a.astype(a.dtype.newbyteorder('<')).
	ErrByteOrder = errors.New("npy: big-endian elements")
	// ErrPickle: the file holds pickled Python objects, which can run code when
	// loaded. Save an array of numbers.
	ErrPickle = errors.New("npy: pickled Python objects")
	// ErrDType: the element type is not one that both NumPy names and Baton
	// carries. The error text names a way round it.
	ErrDType = errors.New("npy: unsupported element type")
	// ErrSize: a dimension is negative, there are more than MaxDims, the size
	// overflows 64 bits, or a buffer does not fit the shape.
	ErrSize = errors.New("npy: invalid size")
)

// VersionError tells which format version was met. It matches ErrVersion.
type VersionError struct{ Major, Minor uint8 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("%v %d.%d: versions 1.0, 2.0 and 3.0 are read; load and save the file again with NumPy", ErrVersion, e.Major, e.Minor)
}

func (e *VersionError) Unwrap() error { return ErrVersion }

// HeaderError tells what is wrong with a header and where. It matches ErrHeader.
type HeaderError struct {
	Offset  int64 // bytes from the start of the file
	Problem string
}

func (e *HeaderError) Error() string {
	return fmt.Sprintf("%v at byte %d: %s; save the array again with numpy.save", ErrHeader, e.Offset, e.Problem)
}

func (e *HeaderError) Unwrap() error { return ErrHeader }

// DTypeError tells which element type was refused. It matches the sentinel in
// Kind: ErrByteOrder, ErrPickle or ErrDType.
type DTypeError struct {
	Type   string // the file's descr when reading, Baton's name when writing
	Kind   error
	Reason string
	Remedy string
}

func (e *DTypeError) Error() string {
	return fmt.Sprintf("%v: %s: %s; %s", e.Kind, e.Type, e.Reason, e.Remedy)
}

func (e *DTypeError) Unwrap() error { return e.Kind }

// SizeError tells which shape or buffer was refused. It matches ErrSize.
type SizeError struct {
	DType   string
	Shape   []int64
	Problem string
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%v: %s%s: %s", ErrSize, e.DType, shapeText(e.Shape), e.Problem)
}

func (e *SizeError) Unwrap() error { return ErrSize }

// TruncatedError tells how much of the file was there. It matches ErrTruncated.
type TruncatedError struct {
	Part      string // "header" or "data"
	Got, Want int64  // bytes of that part
}

func (e *TruncatedError) Error() string {
	return fmt.Sprintf("%v: %d of %d bytes of its %s; copy or save it again", ErrTruncated, e.Got, e.Want, e.Part)
}

func (e *TruncatedError) Unwrap() error { return ErrTruncated }

// shapeText writes a shape the way Python writes a tuple.
func shapeText(shape []int64) string {
	var b strings.Builder
	b.WriteByte('(')
	for i, d := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d", d)
	}
	if len(shape) == 1 {
		b.WriteByte(',')
	}
	b.WriteByte(')')
	return b.String()
}
