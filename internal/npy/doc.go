// Package npy reads and writes NumPy's .npy files: one array, a short text
// header, then the raw bytes.
//
// # Purpose
//
// It lets `baton set` and `baton get` move an array between a file and shared
// memory with no copy on the way: ReadHeader says how much memory is needed,
// the caller allocates it wherever it likes, and ReadFull reads straight into
// it. Format versions 1.0, 2.0 and 3.0 are read. Written files are version 1.0
// and equal those of numpy.save byte for byte.
//
// The types carried are those that NumPy names and DLPack knows: bool, int8 to
// int64, uint8 to uint64, float16 to float64, complex64 and complex128. Names
// are Baton's (those of ml_dtypes). Files in big-endian order, pickled objects,
// structured types, text, dates and the raw bytes that ml_dtypes leaves behind
// are refused with an error that says how to get round it. A file in Fortran
// order is read as it lies; Header.Strides describes it.
//
// # Ownership
//
// Nothing here keeps a reference to a reader, writer or buffer after the call
// returns, and nothing needs to be closed. A Header owns its Shape.
//
// # Concurrency
//
// Functions may be called from any goroutine. The readers, writers and buffers
// passed in belong to the call while it runs. Where a buffer is shared memory
// that others write at the same moment, the file holds what was seen, which may
// be a mixture.
//
// # Hostile input
//
// A header is at most MaxHeader bytes, is read by one regular expression for each of
// its three members, and names at most MaxDims dimensions. Sizes are computed
// with overflow checks before they are returned. No input makes this package
// panic, and a header never makes it allocate more than a few times its own
// length.
//
// # Death
//
// A process that dies while writing leaves a short file, which ReadFull refuses
// with ErrTruncated. Callers that replace files write to a temporary name and
// rename.
//
// The format is described at
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
package npy
