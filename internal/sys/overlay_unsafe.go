package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Overlay puts a writable mapping of a file's bytes from offset in the place of memory
// that is mapped already. Other threads may use the memory meanwhile: each access
// meets the one mapping or the other. No child inherits the new one. Unmapping the
// memory later ends it as well.
func Overlay(memory []byte, f *FD, offset int64) error {
	fd, err := f.Acquire()
	if err != nil {
		return fmt.Errorf("map %d bytes of shared memory: %w", len(memory), err)
	}
	defer f.Release()
	size := uintptr(len(memory))
	at, err := unix.MmapPtr(fd, offset, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %d bytes of shared memory: %w", size, err)
	}
	// Marked before it is moved: no fork of another thread may come in between.
	if err = unix.Madvise(unsafe.Slice((*byte)(at), size), unix.MADV_DONTFORK); err == nil {
		// Sound: the range is the caller's mapping, and the kernel changes all of it at once.
		_, err = unix.MremapPtr(at, size, unsafe.Pointer(unsafe.SliceData(memory)), size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
	}
	if err != nil {
		unix.MunmapPtr(at, size)
		return fmt.Errorf("put a mapping in the place of another: %w", err)
	}
	return nil
}
