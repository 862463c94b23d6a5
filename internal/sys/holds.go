package sys

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MapsForWriting tells whether a process has any of a file mapped so that it may write
// there. An error says that this could not be found out. The kernel names a file there as Stat does in most file
// systems, not in all: before it asks for another process, a caller asks for a mapping
// of its own.
func MapsForWriting(pid int, id FileID) (bool, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return false, fmt.Errorf("look at a process's mappings: %w", err)
	}
	defer f.Close()
	list, err := io.ReadAll(f)
	if err != nil {
		return false, fmt.Errorf("look at a process's mappings: %w", err)
	}
	for _, line := range bytes.Split(list, []byte{'\n'}) {
		if isWritableMapping(string(line), id) {
			return true, nil
		}
	}
	// The list ends early, without an error, where exec or the process's end took its
	// memory away meanwhile. Then nothing of it can be read any more.
	if n, err := f.ReadAt(make([]byte, 1), 0); n != 1 {
		return false, fmt.Errorf("look at a process's mappings: they are those of a program that has ended (%w)", err)
	}
	return false, nil
}

// isWritableMapping reads a line "address rights offset major:minor inode path". A private
// mapping changes nothing of its file.
func isWritableMapping(line string, id FileID) bool {
	f := strings.Fields(line)
	if len(f) < 5 || !strings.HasPrefix(f[1][1:], "w") || !strings.HasSuffix(f[1], "s") || f[4] != strconv.FormatUint(id.Ino, 10) {
		return false
	}
	return f[3] == fmt.Sprintf("%02x:%02x", unix.Major(id.Dev), unix.Minor(id.Dev))
}

// FileAt identifies the file at a path.
func FileAt(path string) (FileID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return FileID{}, fmt.Errorf("look at a file: %w", &os.PathError{Op: "stat", Path: path, Err: err})
	}
	return FileID{uint64(st.Dev), st.Ino}, nil
}

// IsAt tells whether the file is the one at a path.
func (id FileID) IsAt(path string) bool {
	there, err := FileAt(path)
	return err == nil && there == id
}

// OpenFilesOf opens those files, for reading, that another process has open and that are
// wanted, and hands each over. It needs the right to look at the process, which one of the
// same user has.
func OpenFilesOf(pid int, wanted func(FileID) bool, take func(FileID, *FD) error) error {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at a process's files: %w", err)
	}
	for _, e := range open {
		path := dir + "/" + e.Name()
		there, err := FileAt(path)
		if err != nil || !wanted(there) {
			continue
		}
		// Should the descriptor be another file's by now, opening that must not wait.
		n, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // closed meanwhile
		}
		if err != nil {
			return fmt.Errorf("open a process's file: %w", &os.PathError{Op: "open", Path: path, Err: err})
		}
		if err := take(there, NewFD(n)); err != nil {
			return err
		}
	}
	return nil
}

// OpensFile tells whether a process has a descriptor of a file. An error says that
// this could not be found out.
func OpensFile(pid int, id FileID) (bool, error) { return hasOpen(pid, id, false) }

// WritesFile is as OpensFile, of descriptors by which the file may be written.
func WritesFile(pid int, id FileID) (bool, error) { return hasOpen(pid, id, true) }

func hasOpen(pid int, id FileID, writable bool) (bool, error) {
	return anyOpen(pid, func(dir, number string) (bool, error) {
		var st unix.Stat_t
		err := unix.Stat(dir+"/"+number, &st)
		is := err == nil && FileID{uint64(st.Dev), st.Ino} == id
		if is && writable {
			is, err = isWritable(pid, number)
		}
		return is, err
	})
}

// HasSocket tells whether a process has any socket open. An error says that this could not
// be found out.
func HasSocket(pid int) (bool, error) {
	return anyOpen(pid, func(dir, number string) (bool, error) {
		name, err := os.Readlink(dir + "/" + number)
		return strings.HasPrefix(name, "socket:"), err
	})
}

// anyOpen tells whether a process has a descriptor that is one looked for. One that is closed
// meanwhile is none.
func anyOpen(pid int, is func(dir, number string) (bool, error)) (bool, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(dir)
	if err != nil {
		return false, fmt.Errorf("look at a process's files: %w", err)
	}
	if len(open) == 0 { // none of a program: it is about to end
		return false, fmt.Errorf("look at a process's files: %s is empty", dir)
	}
	for _, e := range open {
		it, err := is(dir, e.Name())
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return false, fmt.Errorf("look at a process's files: %w", err)
		case it:
			return true, nil
		}
	}
	return false, nil
}

// isWritable tells whether a descriptor of a process may be written by.
func isWritable(pid int, number string) (bool, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, number))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(info)) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(flags), 8, 64)
			return n&unix.O_ACCMODE != unix.O_RDONLY, err
		}
	}
	return false, fmt.Errorf("/proc/%d/fdinfo/%s does not tell how it is open", pid, number)
}

// ProcessesMapping finds the processes that have any of a file mapped so that they may write there, among those that
// this one sees in /proc. unseen counts those whose mappings it may not look at.
func ProcessesMapping(id FileID) (pids []int, unseen int, err error) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return nil, 0, fmt.Errorf("look for processes: %w", err)
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		has, err := MapsForWriting(pid, id)
		switch {
		case has:
			pids = append(pids, pid)
		case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
			unseen++
		}
	}
	return pids, unseen, nil
}
