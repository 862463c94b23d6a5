package broker

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// maker makes the shared files of one instance, and forgets those that have a
// name. Memfds have none: they live as long as anybody has them.
type maker interface {
	create(role string, serial uint64, bytes uint64) (*sys.FD, error)
	remove(role string, serial uint64)
	// kind is the segments' kind in the broker file.
	kind() uint32
	// free tells how much more the place of the files can take, beyond what the
	// machine's memory allows.
	free() (uint64, bool)
	// leave ends the use of the place; with keep the files stay.
	leave(keep bool)
}

// instancePrefix begins the name of an instance's folder in a memory directory.
const instancePrefix = "baton-"

type memfds struct{}

func (memfds) create(role string, serial, bytes uint64) (*sys.FD, error) {
	return sys.CreateMemfd(fmt.Sprintf("baton-%s-%d", role, serial), int64(bytes))
}
func (memfds) remove(string, uint64) {}
func (memfds) kind() uint32          { return protocol.KindMemfd }
func (memfds) free() (uint64, bool)  { return 0, false }
func (memfds) leave(bool)            {}

// hugePages makes memfds in huge pages of a size.
type hugePages struct {
	memfds
	bytes uint64 // of one
}

func (p hugePages) create(role string, serial, bytes uint64) (*sys.FD, error) {
	return sys.CreateHugeMemfd(fmt.Sprintf("baton-%s-%d", role, serial), int64(bytes), p.bytes)
}
func (hugePages) kind() uint32 { return protocol.KindHugePages }

// directory makes files <role>-<serial> in a folder of the instance.
type directory struct{ path string }

func (d directory) file(role string, serial uint64) string {
	return filepath.Join(d.path, fmt.Sprintf("%s-%d", role, serial))
}

func (d directory) create(role string, serial, bytes uint64) (*sys.FD, error) {
	return sys.CreateFile(d.file(role, serial), int64(bytes))
}

func (d directory) open(role string, serial uint64) (*sys.FD, error) {
	return sys.OpenFile(d.file(role, serial))
}

func (d directory) remove(role string, serial uint64) { os.Remove(d.file(role, serial)) }
func (d directory) kind() uint32                      { return protocol.KindFile }
func (d directory) free() (uint64, bool) {
	n, err := sys.FreeSpace(d.path)
	return n, err == nil
}

// sweep removes what no record speaks of: files of a broker that died between
// making or freeing one and noting it.
func (d directory) sweep(wanted map[fileKey]uint64) {
	names, err := os.ReadDir(d.path)
	if err != nil {
		return
	}
	keep := map[string]bool{filepath.Base(d.file(protocol.RestoreBroker, 0)): true}
	for k := range wanted {
		keep[filepath.Base(d.file(k.role, k.serial))] = true
	}
	for _, e := range names {
		if !keep[e.Name()] {
			os.Remove(filepath.Join(d.path, e.Name()))
		}
	}
}

func (d directory) leave(keep bool) {
	if !keep {
		os.RemoveAll(d.path)
	}
}

// mapped is a shared file and the broker's mapping of it, writable.
type mapped struct {
	fd     *sys.FD
	memory []byte
	region shm.Region
	inode  uint64
	device uint64
}

// mapFile takes ownership of fd and maps all of the file.
func mapFile(fd *sys.FD, bytes uint64) (mapped, error) {
	size, id, err := fd.Stat()
	if err == nil && uint64(size) < bytes {
		err = fmt.Errorf("shared file of %d bytes where %d belong", size, bytes)
	}
	if err != nil {
		fd.Close()
		return mapped{}, err
	}
	b, err := sys.Map(fd, int(bytes), true)
	if err != nil {
		fd.Close()
		return mapped{}, err
	}
	return mapped{fd, b, shm.NewRegion(b), id.Ino, id.Dev}, nil
}

func (m *mapped) close() {
	if m.memory != nil {
		sys.Unmap(m.memory)
	}
	m.fd.Close()
	*m = mapped{}
}

// newFile makes and maps a shared file with its head. The head's pages are
// reserved, so that nobody who reads it meets a hole.
func (b *Broker) newFile(role uint32, roleName string, serial uint64, slot uint32, bytes uint64) (mapped, error) {
	fd, err := b.files.create(roleName, serial, bytes)
	if err != nil {
		return mapped{}, noMemory(err, roleName+" file")
	}
	m, err := b.headFile(fd, role, serial, slot, bytes)
	if err != nil {
		b.files.remove(roleName, serial)
	}
	return m, err
}

func (b *Broker) headFile(fd *sys.FD, role uint32, serial uint64, slot uint32, bytes uint64) (mapped, error) {
	if err := fd.Reserve(0, int64(min(bytes, 2*protocol.PageBytes))); err != nil {
		fd.Close()
		return mapped{}, noMemory(err, "pages of a shared file")
	}
	m, err := mapFile(fd, bytes)
	if err != nil {
		return m, noMemory(err, "a mapping")
	}
	r := m.region
	r.Store32(protocol.HeadLayout, protocol.Layout)
	r.Store32(protocol.HeadRole, role)
	copy(r.Bytes(protocol.HeadInstance, 16), b.instance[:])
	r.Store64(protocol.HeadSerial, serial)
	r.Store32(protocol.HeadSlot, slot)
	r.Store64(protocol.HeadBytes, bytes)
	r.Store64(protocol.HeadMagic, protocol.Magic)
	return m, nil
}

// noMemory turns a failed file or mapping into what a client can act on.
func noMemory(err error, what string) error {
	if sys.IsNoSpace(err) {
		return protocol.Errorf(protocol.CodeOutOfMemory, "free memory on this machine, or raise the broker's container limit",
			"no memory for %s: %w", what, err)
	}
	if sys.IsTooLarge(err) {
		return protocol.Errorf(protocol.CodeOutOfMemory, "raise the broker's limit of the size of files, which binds memory files too (ulimit -f)",
			"cannot make %s: %w", what, err)
	}
	return asError(fmt.Errorf("cannot make %s: %w", what, err))
}
