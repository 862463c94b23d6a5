// Package logfile bounds the log of a broker that a program has started: it lies in the runtime
// directory, which is memory.
//
// What it trusts: that no other process renames the file at the same moment. Concurrency: one
// goroutine writes at a time, as handlers of log/slog do. Death: nothing is buffered here.
package logfile

import (
	"fmt"
	"os"

	"github.com/baton-ipc/baton/internal/sys"
)

// File is a log at a path, behind a descriptor that others of the process write to as well, such
// as standard error. Where it has become longer than most, it is renamed to path.1, in the
// place of what was there, and the descriptor leads to a new file.
type File struct {
	path string
	file *os.File
	most int64
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
	return &File{path, file, most}, nil
}

// Write appends p, to a new file where the present one is full. A file that cannot be renamed
// or made goes on growing: a line is worth more than the bound.
func (f *File) Write(p []byte) (int, error) {
	if info, err := f.file.Stat(); err == nil && info.Size()+int64(len(p)) > f.most && info.Size() > 0 {
		f.turn()
	}
	return f.file.Write(p)
}

func (f *File) turn() {
	if os.Rename(f.path, f.path+".1") != nil {
		return
	}
	next, err := os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		os.Rename(f.path+".1", f.path)
		return
	}
	defer next.Close()
	sys.LeadTo(f.file, next)
}
