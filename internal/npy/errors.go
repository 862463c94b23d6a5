package npy

import (
	"errors"
	"fmt"
)

// Met while reading a file. Every error matches one of these, or is the reader's, and says
// what to do.
var (
	ErrNotNPY    = errors.New("npy: not a .npy file")          // also an .npz, a zip archive of .npy files
	ErrVersion   = errors.New("npy: unknown format version")   // others than 1.0, 2.0 and 3.0
	ErrHeader    = errors.New("npy: malformed header")         // or one of more than MaxHeader bytes
	ErrTruncated = errors.New("npy: file is cut short")        // copy or save it again
	ErrByteOrder = errors.New("npy: big-endian elements")      // Baton's machines are little-endian
	ErrPickle    = errors.New("npy: pickled Python objects")   // which can run code when they are loaded
	ErrDType     = errors.New("npy: unsupported element type") // of a file, or of a tensor to be written
	ErrSize      = errors.New("npy: invalid size")             // of a file, or of what is to be written
)

// Truncated is the error for a file that has got of the want bytes of a part, header or data.
func Truncated(part string, got, want int64) error {
	return fmt.Errorf("%w: %d of %d bytes of its %s; copy or save it again", ErrTruncated, got, want, part)
}

// malformed says what is wrong with a header, and where in the file.
func malformed(at int64, format string, args ...any) error {
	return fmt.Errorf("%w at byte %d: %s; save the array again with numpy.save", ErrHeader, at, fmt.Sprintf(format, args...))
}

// wrongSize says what is wrong with a shape, or with the buffer for it.
func wrongSize(dtype string, shape []int64, format string, args ...any) error {
	return fmt.Errorf("%w: %s%s: %s", ErrSize, dtype, shapeText(shape), fmt.Sprintf(format, args...))
}
