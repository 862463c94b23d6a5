package sys

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

func isErrno(err error, errno unix.Errno) bool {
	var e unix.Errno
	return errors.As(err, &e) && e == errno
}

// Map maps size bytes of a shared file from its start. The slice's memory is
// outside Go's heap: it is valid until Unmap, whatever the collector does.
// Pages that a Go program's forked child must not inherit (all that this
// process writes) are marked with DontFork.
func Map(f *FD, size int, writable bool) ([]byte, error) {
	fd, err := f.Acquire()
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of shared memory: %w", size, err)
	}
	defer f.Release()
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of shared memory: %w", size, err)
	}
	return b, nil
}

// MapAnonymous maps zeroed private memory outside Go's heap.
func MapAnonymous(size int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	return b, nil
}

// Unmap ends a mapping made here. No part of it may be held.
func Unmap(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := unix.Munmap(b); err != nil {
		return fmt.Errorf("unmap: %w", err)
	}
	return nil
}

// DontFork keeps a mapping out of forked children: a pidfd says nothing of
// children, so pages that this process writes must not live on in one.
func DontFork(b []byte) error {
	if err := unix.Madvise(b, unix.MADV_DONTFORK); err != nil {
		return fmt.Errorf("keep mapping from children: %w", err)
	}
	return nil
}

// Populate touches reserved pages for writing, so that the first user does not
// pay for faults. Kernels before 5.14 do not know how; then nothing happens.
func Populate(b []byte) error {
	const madvPopulateWrite = 23 // since Linux 5.14
	err := unix.Madvise(b, madvPopulateWrite)
	if err == unix.EINVAL {
		return nil
	}
	if err != nil {
		return fmt.Errorf("touch %d bytes of shared memory: %w", len(b), err)
	}
	return nil
}
