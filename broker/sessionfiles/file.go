package sessionfiles

import (
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// File is a shared file and the broker's writable mapping of it. The zero File is none. A File
// with only an inode is a previous broker's file that is not here.
type File struct {
	FD     *sys.FD
	Region shm.Region
	Inode  uint64
	Device uint64
	memory []byte
}

// MapFile takes ownership of fd and maps all of the file.
func MapFile(fd *sys.FD, bytes uint64) (File, error) {
	size, id, err := fd.Stat()
	if err == nil && uint64(size) < bytes {
		err = protocol.Errorf(protocol.CodeVersion, "start the program that made it and have it forget all (baton stop --discard), or remove the instance's folder under --memory-dir",
			"a shared file of the previous broker has %d bytes where %d belong: it is of another layout than %d", size, bytes, protocol.Layout)
	}
	if err != nil {
		fd.Close()
		return File{}, err
	}
	b, err := sys.Map(fd, int(bytes), true)
	if err != nil {
		fd.Close()
		return File{}, err
	}
	return File{fd, shm.NewRegion(b), id.Ino, id.Dev, b}, nil
}

// Close unmaps and closes the file.
func (m *File) Close() {
	if m.memory != nil {
		sys.Unmap(m.memory)
	}
	m.FD.Close()
	*m = File{}
}

// NewFile makes and maps a shared file with its head. The head's pages are
// reserved, so that no reader meets a hole.
func (s *Store) NewFile(role uint32, roleName string, serial uint64, slot uint32, bytes uint64) (File, error) {
	fd, err := s.Files.Create(roleName, serial, bytes)
	if err != nil {
		return File{}, NoMemory(err, roleName+" file")
	}
	m, err := s.headFile(fd, role, serial, slot, bytes)
	if err != nil {
		s.Files.Remove(roleName, serial)
	}
	return m, err
}

func (s *Store) headFile(fd *sys.FD, role uint32, serial uint64, slot uint32, bytes uint64) (File, error) {
	if err := fd.Reserve(0, int64(min(bytes, 2*protocol.PageBytes))); err != nil {
		fd.Close()
		return File{}, NoMemory(err, "a shared file")
	}
	m, err := MapFile(fd, bytes)
	if err != nil {
		return m, NoMemory(err, "a mapping")
	}
	r := m.Region
	r.Store32(protocol.HeadLayout, protocol.Layout)
	r.Store32(protocol.HeadRole, role)
	copy(r.Bytes(protocol.HeadInstance, 16), s.Instance[:])
	r.Store64(protocol.HeadSerial, serial)
	r.Store32(protocol.HeadSlot, slot)
	r.Store64(protocol.HeadBytes, bytes)
	r.Store64(protocol.HeadMagic, protocol.Magic)
	return m, nil
}
