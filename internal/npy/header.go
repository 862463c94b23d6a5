package npy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxHeader is the largest header, in bytes, that ReadHeader accepts: all that
// version 1.0 can express. The types read here need a few hundred.
const MaxHeader = 1<<16 - 1

const magic = "\x93NUMPY"

// Header describes the array of a file.
type Header struct {
	DType        string  // Baton's name of the element type: "float32"
	Shape        []int64 // empty for a single value
	FortranOrder bool    // the first index varies fastest
	DataOffset   int64   // bytes from the start of the file to the first element
}

// NBytes returns the bytes of the array's data. The header must come from ReadHeader.
func (h Header) NBytes() int64 {
	d, _ := byName(h.DType)
	n, _ := d.bytes(h.Shape)
	return n
}

// Strides returns the distance between neighbours along each dimension, in
// elements, as the data lies in the file: a tensor over those bytes needs them
// when FortranOrder is set. The slice is the caller's. Dimensions of zero count
// as one. The header must come from ReadHeader.
func (h Header) Strides() []int64 {
	return strides(h.Shape, h.FortranOrder)
}

func strides(shape []int64, fortran bool) []int64 {
	s := make([]int64, len(shape))
	step := int64(1)
	for i := range shape {
		at := len(shape) - 1 - i
		if fortran {
			at = i
		}
		s[at] = step
		step *= max(shape[at], 1)
	}
	return s
}

// ReadHeader reads the start of a .npy file and leaves r at the first element.
// It reads exactly Header.DataOffset bytes.
//
// Errors match ErrNotNPY, ErrVersion, ErrHeader, ErrTruncated, ErrByteOrder,
// ErrPickle, ErrDType, ErrSize, or are those of r, wrapped.
func ReadHeader(r io.Reader) (Header, error) {
	var fixed [len(magic) + 2 + 4]byte
	start := fixed[:len(magic)+2]
	if n, err := io.ReadFull(r, start); err != nil {
		if n < len(magic) || string(fixed[:len(magic)]) != magic {
			return Header{}, notNPY(fixed[:n], err)
		}
		return Header{}, readError("header", int64(n), int64(len(start)), err)
	}
	if string(start[:len(magic)]) != magic {
		return Header{}, notNPY(start, nil)
	}

	major, minor := start[len(magic)], start[len(magic)+1]
	if minor != 0 || major < 1 || major > 3 {
		return Header{}, fmt.Errorf("%w %d.%d: versions 1.0, 2.0 and 3.0 are read; load and save the file again with NumPy", ErrVersion, major, minor)
	}
	length := fixed[len(start) : len(start)+2]
	if major > 1 {
		length = fixed[len(start):]
	}
	if n, err := io.ReadFull(r, length); err != nil {
		return Header{}, readError("header", int64(len(start)+n), int64(len(start)+len(length)), err)
	}
	var size uint32
	if major > 1 {
		size = binary.LittleEndian.Uint32(length)
	} else {
		size = uint32(binary.LittleEndian.Uint16(length))
	}
	at := int64(len(start) + len(length))
	if size > MaxHeader {
		return Header{}, malformed(at, "it claims %d bytes, at most %d are read", size, MaxHeader)
	}

	text := make([]byte, size)
	if n, err := io.ReadFull(r, text); err != nil {
		return Header{}, readError("header", at+int64(n), at+int64(size), err)
	}
	h, err := parseHeader(text, at)
	if err != nil {
		return Header{}, err
	}
	h.DataOffset = at + int64(size)
	return h, nil
}

// ReadFull fills dst, of Header.NBytes bytes, with the array's data. A file that
// ends before gives an error that matches ErrTruncated and says how much there
// was; what r itself reports comes wrapped. What follows the data stays unread.
func ReadFull(r io.Reader, dst []byte) error {
	n, err := io.ReadFull(r, dst)
	if err != nil {
		return readError("data", int64(n), int64(len(dst)), err)
	}
	return nil
}

func readError(part string, got, want int64, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return Truncated(part, got, want)
	}
	return fmt.Errorf("npy: reading the %s, after %d of %d bytes: %w", part, got, want, err)
}

func notNPY(start []byte, err error) error {
	switch {
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("npy: reading the header: %w", err)
	case len(start) >= 4 && string(start[:4]) == "PK\x03\x04":
		return fmt.Errorf("%w: it is a zip archive, perhaps an .npz; unpack it and use one of its files", ErrNotNPY)
	case len(start) == 0:
		return fmt.Errorf("%w: it is empty; save the array again with numpy.save", ErrNotNPY)
	}
	return fmt.Errorf("%w: it starts with %q; save the array with numpy.save", ErrNotNPY, start)
}
