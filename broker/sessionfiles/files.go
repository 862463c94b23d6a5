package sessionfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Maker makes the shared files of one instance, and forgets those that have a
// name. Memfds have none: they live as long as a process has them open or mapped.
type Maker interface {
	Create(role string, serial uint64, bytes uint64) (*sys.FD, error)
	Remove(role string, serial uint64)
	// Kind is the segments' kind in the broker file.
	Kind() uint32
	// Free tells how much more the place of the files can take, beyond what the
	// machine's memory allows.
	Free() (uint64, bool)
	// Leave ends the use of the place; with keep the files stay.
	Leave(keep bool)
}

// InstancePrefix begins the name of an instance's folder in a memory directory.
const InstancePrefix = "baton-"

// Memfds makes memfds.
type Memfds struct{}

func (Memfds) Create(role string, serial, bytes uint64) (*sys.FD, error) {
	return sys.CreateMemfd(fmt.Sprintf("baton-%s-%d", role, serial), int64(bytes))
}
func (Memfds) Remove(string, uint64) {}
func (Memfds) Kind() uint32          { return protocol.KindMemfd }
func (Memfds) Free() (uint64, bool)  { return 0, false }
func (Memfds) Leave(bool)            {}

// HugePages makes memfds in huge pages of a size.
type HugePages struct {
	Memfds
	PageBytes uint64 // of one
}

func (p HugePages) Create(role string, serial, bytes uint64) (*sys.FD, error) {
	return sys.CreateHugeMemfd(fmt.Sprintf("baton-%s-%d", role, serial), int64(bytes), p.PageBytes)
}
func (HugePages) Kind() uint32 { return protocol.KindHugePages }

// Directory makes files <role>-<serial> in a folder of the instance.
type Directory struct{ Path string }

func (d Directory) file(role string, serial uint64) string {
	return filepath.Join(d.Path, fmt.Sprintf("%s-%d", role, serial))
}

// Make makes the folder, unless it is there.
func (d Directory) Make() error {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return protocol.Errorf(protocol.CodeInvalid, "name a --memory-dir that this user can make and write to",
			"cannot make the folder of this broker's memory: %w", err)
	}
	return nil
}

// Create makes a file, and the folder anew where that was removed.
func (d Directory) Create(role string, serial, bytes uint64) (*sys.FD, error) {
	fd, err := sys.CreateFile(d.file(role, serial), int64(bytes))
	if !errors.Is(err, fs.ErrNotExist) {
		return fd, err
	}
	if err := d.Make(); err != nil {
		return nil, err
	}
	return sys.CreateFile(d.file(role, serial), int64(bytes))
}

// Has tells whether a file of the folder is a given one.
func (d Directory) Has(role string, serial uint64, id sys.FileID) bool {
	return id.IsAt(d.file(role, serial))
}

func (d Directory) Open(role string, serial uint64) (*sys.FD, error) {
	return sys.OpenFile(d.file(role, serial))
}

func (d Directory) Remove(role string, serial uint64) { os.Remove(d.file(role, serial)) }
func (d Directory) Kind() uint32                      { return protocol.KindFile }
func (d Directory) Free() (uint64, bool) {
	n, err := sys.FreeSpace(d.Path)
	return n, err == nil
}

// Sweep removes files that no record names: a broker died between making or freeing one and
// noting it.
func (d Directory) Sweep(wanted map[Key]uint64) {
	names, err := os.ReadDir(d.Path)
	if err != nil {
		return
	}
	keep := map[string]bool{filepath.Base(d.file(protocol.RestoreBroker, 0)): true}
	for k := range wanted {
		keep[filepath.Base(d.file(k.Role, k.Serial))] = true
	}
	for _, e := range names {
		if !keep[e.Name()] {
			os.Remove(filepath.Join(d.Path, e.Name()))
		}
	}
}

func (d Directory) Leave(keep bool) {
	if !keep {
		os.RemoveAll(d.Path)
	}
}
