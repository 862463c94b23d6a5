package sessionfiles

import (
	"fmt"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Key names a shared file as restore does.
type Key struct {
	Role   string
	Serial uint64
}

// Fetch gives the descriptor of a file of the previous broker; nil when it is not
// here. The caller owns it.
type Fetch func(Key) *sys.FD

// RestoreBells takes the bell file of the previous broker, and tells whether it is there.
func (s *Store) RestoreBells(fetch Fetch) bool {
	m := s.FetchFile(fetch, Key{Role: protocol.RestoreBell}, protocol.RoleBell, protocol.BellBytes)
	if m.Region.Valid() {
		s.useBells(m)
	}
	return m.Region.Valid()
}

// Restore makes the session file of a session of the previous broker, with such files as
// there are. Those that are missing read as zeros meanwhile.
func (s *Store) Restore(fetch Fetch, slot uint32, serial uint64, name string, pid uint32) *SessionFile {
	p := &SessionFile{Slot: slot, Serial: serial, Name: Printable(name, protocol.SessionNameBytes), PID: int(pid)}
	p.File = s.FetchFile(fetch, Key{protocol.RestoreSession, serial}, protocol.RoleSession, protocol.SessionBytes)
	s.view(p)
	s.bySerial[serial] = p
	return p
}

// RestoreRemains makes the files of the sessions that were over before. A session
// that is still in its slot was not wholly ended: the plan ends it.
func (s *Store) RestoreRemains(fetch Fetch) {
	for i := range s.Record.UsedRemains() {
		v := s.Record.Remains(i).Load()
		if v.Serial == 0 {
			continue
		}
		if s.bySerial[v.Serial] != nil {
			s.Record.Remains(i).Free()
			continue
		}
		p := s.Restore(fetch, v.Slot, v.Serial, v.Name, v.PID)
		p.Dead, p.remains, p.Holder = true, i+1, v.Holder
		s.remains.Claim(i, record.Holder{})
	}
}

// Lost makes a stand-in for the owner of a segment that has ended and left no record.
func (s *Store) Lost(serial uint64) *SessionFile {
	p := &SessionFile{Serial: serial, Name: "an ended session", Dead: true}
	s.view(p)
	s.bySerial[serial] = p
	return p
}

// FetchFile maps a file of the previous broker, if it is here and is right. A file that
// is not here keeps its inode: its record names the inode until the file comes, for the next
// broker as well.
func (s *Store) FetchFile(fetch Fetch, k Key, role uint32, bytes uint64) File {
	none := File{Inode: s.Missing[k]}
	fd := fetch(k)
	if fd == nil {
		return none
	}
	m, err := s.MapRestored(k, fd, role, bytes)
	if err != nil {
		if sys.IsNoSpace(err) || sys.IsNoDescriptors(err) {
			s.Lack = err
		}
		s.log.Error("a file of the previous broker cannot be used", "role", k.Role, "serial", k.Serial, "error", err)
		return none
	}
	return m
}

// MapRestored maps a file of the previous broker if it is the one that is missing. It
// takes ownership of fd.
func (s *Store) MapRestored(k Key, fd *sys.FD, role uint32, bytes uint64) (File, error) {
	m, err := MapFile(fd, bytes)
	if err != nil {
		return m, err
	}
	if k.Role != protocol.RestoreBell { // every session can write that one: the inode must be proof enough
		err = s.CheckHead(m, role, k.Serial)
	}
	if err == nil && m.Inode != s.Missing[k] {
		err = fmt.Errorf("inode %d where %d belongs", m.Inode, s.Missing[k])
	}
	if err != nil {
		m.Close()
		return File{}, err
	}
	delete(s.Missing, k)
	return m, nil
}

// CheckHead refuses a file that is not what it should be.
func (s *Store) CheckHead(m File, role uint32, serial uint64) error {
	r := m.Region
	if r.Load64(protocol.HeadMagic) != protocol.Magic || r.Load32(protocol.HeadLayout) != protocol.Layout ||
		r.Load32(protocol.HeadRole) != role || r.Load64(protocol.HeadSerial) != serial ||
		string(r.Bytes(protocol.HeadInstance, 16)) != string(s.Instance[:]) {
		return protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md: a file of the previous broker is damaged",
			"a file with role %d and serial %d is not of this instance or layout", role, serial)
	}
	return nil
}

// Install uses a file of a session that was missing, and tells whether it could.
// It takes ownership of fd.
func (s *Store) Install(p *SessionFile, k Key, fd *sys.FD) bool {
	if p.There() {
		fd.Close()
		return false
	}
	m, err := s.MapRestored(k, fd, protocol.RoleSession, protocol.SessionBytes)
	if err != nil {
		s.log.Error("a file of the previous broker cannot be used", "role", k.Role, "serial", k.Serial, "error", err)
		return false
	}
	p.File = m
	s.view(p)
	return true
}
