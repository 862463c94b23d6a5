package sys

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// CheckPrivateDir makes a directory of mode 0700, or checks that the one that
// is there belongs to this user and is writable by no other user.
func CheckPrivateDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make runtime directory %s: %w", path, err)
	}
	_, err := privateDir(path)
	return err
}

// IsPrivateDir is CheckPrivateDir without making the directory.
func IsPrivateDir(path string) error {
	_, err := privateDir(path)
	return err
}

// privateDir refuses a directory that is not this user's alone to write, and returns its mode.
func privateDir(path string) (mode uint32, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, fmt.Errorf("look at runtime directory: %w", &os.PathError{Op: "lstat", Path: path, Err: err})
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return 0, fmt.Errorf("runtime directory %s is not a directory", path)
	case st.Uid != uint32(os.Geteuid()):
		return 0, fmt.Errorf("runtime directory %s belongs to user %d, not to us (%d)", path, st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		err := fmt.Errorf("runtime directory %s can be written by others (mode %04o)", path, st.Mode&0o7777)
		if st.Mode&unix.S_ISVTX == 0 {
			err = ownDirError{err}
		}
		return 0, err
	}
	return st.Mode & 0o7777, nil
}

// ownDirError is about a directory of this user's that may be meant for a broker alone. One with the sticky bit is not:
// it is there to be shared.
type ownDirError struct{ error }

// DirRemedy is what to do about an error of CheckPrivateDir, IsPrivateDir and OpenDir. elsewhere names what chooses
// another directory. What a directory of others, or one for all, lacks is never to be changed there.
func DirRemedy(err error, elsewhere string) string {
	remedy := "choose another directory (" + elsewhere + ")"
	var own ownDirError
	if errors.As(err, &own) {
		remedy += ", or, if nothing else uses this one, make it yours alone (chmod 700)"
	}
	return remedy
}

// CheckSocketDir tells which others than this user, root and those of the lists may put a socket
// of theirs in the place of ours in a directory. The sticky bit keeps them from it: a file can
// then be removed by its owner and the directory's alone.
func CheckSocketDir(path string, users, groups []uint32) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch mode := st.Mode & 0o7777; {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &os.PathError{Op: "stat", Path: path, Err: unix.ENOTDIR}
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()) && !slices.Contains(users, st.Uid):
		return fmt.Errorf("%s belongs to user %d", path, st.Uid)
	case mode&unix.S_ISVTX != 0:
		return nil
	case mode&0o002 != 0:
		return fmt.Errorf("%s can be written by every user (mode %04o)", path, mode)
	case mode&0o020 != 0 && st.Gid != 0 && !slices.Contains(groups, st.Gid):
		return fmt.Errorf("%s can be written by group %d (mode %04o)", path, st.Gid, mode)
	}
	return nil
}

// OpenDir is CheckPrivateDir for the directory of a socket that other users are to reach:
// they may enter it, and neither list nor write it. A directory above that is closed to
// them is an error, which names it.
func OpenDir(path string) error {
	if err := os.MkdirAll(path, 0o711); err != nil {
		return fmt.Errorf("make runtime directory %s: %w", path, err)
	}
	mode, err := privateDir(path)
	if err == nil && mode&0o011 != 0o011 {
		err = os.Chmod(path, os.FileMode(mode&0o777|0o011))
	}
	if err != nil {
		return err
	}
	for above := filepath.Dir(path); ; above = filepath.Dir(above) {
		info, err := os.Stat(above)
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o011 == 0 {
			return fmt.Errorf("other users cannot enter %s (mode %04o), above %s", above, info.Mode().Perm(), path)
		}
		if above == filepath.Dir(above) {
			return nil
		}
	}
}

// CheckWritable refuses a directory of ours in which we can make no file: one without
// its owner's right to write, which binds all but root, or in a read-only file system.
func CheckWritable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case info.Mode().Perm()&0o300 != 0o300:
		return fmt.Errorf("%s cannot be written by its owner (mode %04o)", path, info.Mode().Perm())
	}
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("no file can be made in %s: %w", path, err)
	}
	return nil
}
