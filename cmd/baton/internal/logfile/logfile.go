// Package logfile bounds the log of a broker that a program has started: it lies in the runtime
// directory, which is memory, and makes it again where it was removed.
//
// What it trusts: the runtime directory, while that is this user's alone to write. Another broker
// there may write to the same file and rename it. Concurrency: any goroutine may call. Death:
// nothing is buffered here.
package logfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/baton-ipc/baton/internal/sys"
)

// File is a log at a path, behind a descriptor that others of the process write to as well, such
// as standard error. Where it has become longer than most, it is renamed to path.1, in the
// place of what was there, and the descriptor leads to a new file. Where another file stands at
// the path, or none, the descriptor leads to that.
type File struct {
	path string
	file *os.File
	most int64

	mu    sync.Mutex // over where the descriptor leads
	again bool       // it was made again, which Keep has not told yet
}

// New bounds the log behind an open file. It fails where that is no regular file.
func New(file *os.File, most int64) (*File, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", file.Name())
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return nil, fmt.Errorf("find the path of %s: %w", file.Name(), err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 0 {
		path = strings.TrimSuffix(path, " (deleted)")
	}
	return &File{path: path, file: file, most: most}, nil
}

// Cut tells whether what the file has ends within a line, as where its file system was full when the previous broker
// wrote. A file that cannot be read counts as one that does not.
func (f *File) Cut() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	own, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.file.Fd())) // which may be open to be written alone
	if err != nil {
		return false
	}
	defer own.Close()
	var last [1]byte
	if _, err := own.Seek(-1, io.SeekEnd); err != nil { // it is empty
		return false
	}
	n, _ := own.Read(last[:])
	return n == 1 && last[0] != '\n'
}

// Write appends p, to a new file where the present one is full or was removed. A file that cannot
// be renamed or made goes on growing: a line is worth more than the bound. No file begins with an empty line.
func (f *File) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keep()
	if info, err := f.file.Stat(); err == nil && info.Size()+int64(len(p)) > f.most && info.Size() > 0 {
		f.turn()
	}
	if info, err := f.file.Stat(); err == nil && info.Size() == 0 && len(p) > 1 && p[0] == '\n' {
		// It ends a line that a file before this one has.
		n, err := f.file.Write(p[1:])
		if n > 0 || err == nil {
			n++
		}
		return n, err
	}
	return f.file.Write(p)
}

// Keep makes a file that was removed again, also where nothing is written by way of this type, and
// tells whether it was made since the last call. It waits for no write, which has looked after the file
// itself and may take as long as a file system gives no answer.
func (f *File) Keep() (again bool, err error) {
	if !f.mu.TryLock() {
		return false, nil
	}
	defer f.mu.Unlock()
	err = f.keep()
	again, f.again = f.again, false
	return again, err
}

// keep leads the descriptor to the file at the path, which is made if there is none. A directory that
// others may write is no place for one.
func (f *File) keep() error {
	own, err := f.file.Stat()
	if err != nil {
		return err
	}
	if there, err := os.Lstat(f.path); err == nil && os.SameFile(own, there) {
		return nil
	}
	if err := sys.IsPrivateDir(filepath.Dir(f.path)); err != nil {
		return err
	}
	made, err := f.lead()
	f.again = f.again || made
	return err
}

// lead leads the descriptor to the file at the path, and tells whether it has made that.
func (f *File) lead() (made bool, err error) {
	next, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if made = err == nil; errors.Is(err, fs.ErrExist) {
		next, err = sys.OpenAppend(f.path)
	}
	if err != nil {
		return false, err
	}
	defer next.Close()
	return made, sys.LeadTo(f.file, next)
}

func (f *File) turn() {
	if os.Rename(f.path, f.path+".1") != nil {
		return
	}
	if _, err := f.lead(); err != nil {
		os.Rename(f.path+".1", f.path)
	}
}
