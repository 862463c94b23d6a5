package sys

import (
	"fmt"
	"io"
	"math/bits"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FD owns a descriptor. The zero value owns none. Close may be called while others
// use it: the descriptor is closed after the last call under way, since one that
// has its number and not yet called the kernel would meet whatever file got the
// number next.
type FD struct {
	n      int
	uses   atomic.Int64 // calls under way, and one until Close; with the last the descriptor is closed
	closed atomic.Bool
}

// NewFD takes ownership of a descriptor.
func NewFD(n int) *FD {
	f := &FD{n: n}
	f.uses.Store(1)
	return f
}

// InheritFD takes a descriptor that was open when the process began.
func InheritFD(n int) (*FD, error) {
	if _, err := unix.FcntlInt(uintptr(n), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("take descriptor %d: %w", n, err)
	}
	return NewFD(n), nil
}

// Int returns the number, -1 after Close. It is for a caller that knows that it is not closed
// meanwhile.
func (f *FD) Int() int {
	if f == nil || f.closed.Load() || f.uses.Load() == 0 {
		return -1
	}
	return f.n
}

// Acquire returns the number, which stays this file's until Release. After Close it
// fails, and there is nothing to release.
func (f *FD) Acquire() (int, error) {
	for f != nil && !f.closed.Load() {
		uses := f.uses.Load()
		if uses == 0 {
			break
		}
		if f.uses.CompareAndSwap(uses, uses+1) {
			return f.n, nil
		}
	}
	return -1, unix.EBADF
}

// Release ends a use that Acquire began.
func (f *FD) Release() { f.end() }

func (f *FD) end() error {
	if f.uses.Add(-1) > 0 {
		return nil
	}
	return unix.Close(f.n)
}

// Close closes the descriptor once; further calls do nothing.
func (f *FD) Close() error {
	if f == nil || f.uses.Load() == 0 || f.closed.Swap(true) {
		return nil
	}
	return f.end()
}

// take ends the ownership without closing.
func (f *FD) take() int {
	if f.uses.Load() == 0 || f.closed.Swap(true) {
		return -1
	}
	return f.n
}

// Dup returns another descriptor of the same file, CLOEXEC.
func (f *FD) Dup() (*FD, error) {
	fd, err := f.Acquire()
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor: %w", err)
	}
	defer f.Release()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor: %w", err)
	}
	return NewFD(n), nil
}

// ReopenReadOnly opens the same file anew for reading, so that no mapping made
// of it can be writable, whatever its holder does.
func (f *FD) ReopenReadOnly() (*FD, error) { return f.reopen(unix.O_RDONLY) }

// ReopenWritable opens the same file for reading and writing; its mode must
// allow it. A broker that takes over needs it.
func (f *FD) ReopenWritable() (*FD, error) { return f.reopen(unix.O_RDWR) }

func (f *FD) reopen(flags int) (*FD, error) {
	fd, err := f.Acquire()
	if err != nil {
		return nil, fmt.Errorf("reopen shared file: %w", err)
	}
	defer f.Release()
	n, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reopen shared file: %w", err)
	}
	return NewFD(n), nil
}

// FileID identifies a file across descriptors and processes.
type FileID struct{ Dev, Ino uint64 }

// Stat returns the file's size and identity.
func (f *FD) Stat() (size int64, id FileID, err error) {
	fd, err := f.Acquire()
	if err != nil {
		return 0, FileID{}, fmt.Errorf("stat shared file: %w", err)
	}
	defer f.Release()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, FileID{}, fmt.Errorf("stat shared file: %w", err)
	}
	return st.Size, FileID{uint64(st.Dev), st.Ino}, nil
}

// CreateMemfd makes an empty memfd of size bytes: mode 0600 before anyone else
// can have it (it is born 0777), not executable, CLOEXEC, sealed against
// growing, shrinking and further seals. A hole takes no memory until reserved.
func CreateMemfd(name string, size int64) (*FD, error) { return createMemfd(name, size, 0) }

// CreateHugeMemfd is CreateMemfd of size bytes, a multiple of pageBytes, in huge
// pages of that size. They are taken from those that the machine has reserved when
// Reserve is called; a kernel without pages of that size says so here.
func CreateHugeMemfd(name string, size int64, pageBytes uint64) (*FD, error) {
	return createMemfd(name, size, unix.MFD_HUGETLB|bits.TrailingZeros64(pageBytes)<<unix.MFD_HUGE_SHIFT)
}

// CreateFilled makes a memfd with these bytes, which cannot change any more.
func CreateFilled(name string, b []byte) (*FD, error) {
	f, err := openMemfd(name, 0)
	if err != nil {
		return nil, err
	}
	if n, err := unix.Write(f.Int(), b); err != nil || n != len(b) {
		f.Close()
		return nil, fmt.Errorf("fill shared memory %q with %d bytes: %d were written: %w", name, len(b), n, err)
	}
	return f, f.seal(name, unix.F_SEAL_WRITE)
}

func createMemfd(name string, size int64, pages int) (*FD, error) {
	f, err := openMemfd(name, pages)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(f.Int(), size); err != nil {
		f.Close()
		return nil, fmt.Errorf("size shared memory %q to %d bytes: %w", name, size, err)
	}
	return f, f.seal(name, 0)
}

func openMemfd(name string, pages int) (*FD, error) {
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING | pages
	n, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		n, err = unix.MemfdCreate(name, flags)
	}
	if err != nil {
		return nil, fmt.Errorf("make shared memory %q: %w", name, err)
	}
	f := NewFD(n)
	if err := unix.Fchmod(n, 0o600); err != nil {
		f.Close()
		return nil, fmt.Errorf("protect shared memory %q: %w", name, err)
	}
	return f, nil
}

// seal keeps a fresh memfd as it is, beside what more forbids; on failure it is
// closed.
func (f *FD) seal(name string, more int) error {
	seals := unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL | more
	if _, err := unix.FcntlInt(uintptr(f.Int()), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return fmt.Errorf("seal shared memory %q: %w", name, err)
	}
	return nil
}

// ReadStart reads the first bytes of the file; false when it has fewer.
func (f *FD) ReadStart(to []byte) bool {
	fd, err := f.Acquire()
	if err != nil {
		return false
	}
	defer f.Release()
	n, err := unix.Pread(fd, to, 0)
	return err == nil && n == len(to)
}

// ReadAt fills to with the bytes at an offset. Holes are zeros, and take no memory.
// It fails where the file ends before.
func (f *FD) ReadAt(to []byte, offset int64) error {
	fd, err := f.Acquire()
	if err != nil {
		return fmt.Errorf("read %d bytes of shared memory: %w", len(to), err)
	}
	defer f.Release()
	for len(to) > 0 {
		n, err := unix.Pread(fd, to, offset)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("read %d bytes of shared memory: %w", len(to), err)
		case n == 0:
			return fmt.Errorf("read %d bytes of shared memory: %w", len(to), io.ErrUnexpectedEOF)
		}
		to, offset = to[n:], offset+int64(n)
	}
	return nil
}

// SealWrites forbids new writable mappings of a memfd; false while there is one.
func (f *FD) SealWrites() (bool, error) {
	fd, err := f.Acquire()
	if err != nil {
		return false, err
	}
	defer f.Release()
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	if err == unix.EBUSY {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("seal a memory file: %w", err)
	}
	return true, nil
}

// Sealed tells whether the file can no longer be resized. Only a memfd can say yes.
func (f *FD) Sealed() bool {
	fd, err := f.Acquire()
	if err != nil {
		return false
	}
	defer f.Release()
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	want := unix.F_SEAL_GROW | unix.F_SEAL_SHRINK
	return err == nil && got&want == want
}

// CreateFile makes a file of size bytes in a directory of ours, mode 0600.
func CreateFile(path string, size int64) (*FD, error) {
	n, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make shared file: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	f := NewFD(n)
	if err := unix.Ftruncate(n, size); err != nil {
		f.Close()
		return nil, fmt.Errorf("size shared file %s to %d bytes: %w", path, size, err)
	}
	return f, nil
}

// OpenFile opens an existing shared file for reading and writing.
func OpenFile(path string) (*FD, error) {
	n, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open shared file: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return NewFD(n), nil
}

// Reserve allocates the pages of a range, so that touching them can no longer
// fail. The calling process's container pays.
func (f *FD) Reserve(offset, bytes int64) error {
	fd, err := f.Acquire()
	if err != nil {
		return fmt.Errorf("reserve %d bytes of shared memory: %w", bytes, err)
	}
	defer f.Release()
	for {
		err := unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, offset, bytes)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			if path := pathOf(fd); path != "" {
				err = &os.PathError{Op: "fallocate", Path: path, Err: err}
			}
			return fmt.Errorf("reserve %d bytes of shared memory: %w", bytes, err)
		}
		return nil
	}
}

// pathOf is where an open file lies; "" for one without a name, such as a memfd.
func pathOf(fd int) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil || strings.HasSuffix(path, " (deleted)") {
		return ""
	}
	return path
}

// Punch gives the pages of a range back to the machine, also those that others
// have mapped: they read zeros afterwards.
func (f *FD) Punch(offset, bytes int64) error {
	fd, err := f.Acquire()
	if err != nil {
		return fmt.Errorf("release %d bytes of shared memory: %w", bytes, err)
	}
	defer f.Release()
	err = unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, bytes)
	if err != nil {
		return fmt.Errorf("release %d bytes of shared memory: %w", bytes, err)
	}
	return nil
}

// IsNoDescriptors tells that this process, or the machine, may have no more files
// open.
func IsNoDescriptors(err error) bool {
	return isErrno(err, unix.EMFILE) || isErrno(err, unix.ENFILE)
}

// IsClosed reports that other code of this program has closed a descriptor.
func IsClosed(err error) bool { return isErrno(err, unix.EBADF) }

// IsTooLarge tells that a file may not become as large (ulimit -f).
func IsTooLarge(err error) bool { return isErrno(err, unix.EFBIG) }

// IsNoSpace tells that a reservation failed for lack of memory.
func IsNoSpace(err error) bool {
	return isErrno(err, unix.ENOSPC) || isErrno(err, unix.ENOMEM) || isErrno(err, unix.EDQUOT)
}
