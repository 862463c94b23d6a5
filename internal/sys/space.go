package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Allocated returns how many bytes of a file have pages: what was reserved or
// touched, and not punched out since.
func (f *FD) Allocated() (uint64, error) {
	fd, err := f.Acquire()
	if err != nil {
		return 0, fmt.Errorf("stat shared file: %w", err)
	}
	defer f.Release()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("stat shared file: %w", err)
	}
	return uint64(st.Blocks) * 512, nil
}

// OpenFiles returns how many descriptors this process has open, and how many it may
// have.
func OpenFiles() (open, limit uint64, err error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, r.Cur, fmt.Errorf("count open files: %w", err)
	}
	return uint64(len(names)), r.Cur, nil
}

// MostOpenFiles returns how many descriptors this process may have open.
func MostOpenFiles() uint64 {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 1024 // what processes have by default
	}
	return r.Cur
}

// FreeSpace returns how many bytes a file system has left for this user.
func FreeSpace(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look at free space: %w", &os.PathError{Op: "statfs", Path: dir, Err: err})
	}
	return st.Bavail * uint64(st.Bsize), nil
}
