package sessionfiles

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Store has the shared files of an instance: it makes them, finds those of a
// session by serial, and keeps what ended sessions leave.
type Store struct {
	Files    Maker
	Instance [16]byte
	Own      *SessionFile   // slot 0: the broker's refcounts and the lanes of names
	Missing  map[Key]uint64 // inodes of files of a previous broker that were not handed over yet
	AllBack  bool           // no session can hand over any other file
	Lack     error          // this process has too little memory or files to map one that is right
	Broker   File           // the broker file
	Record   record.File    // of it
	bellFile File
	Bells    shm.Bells // in the bell file
	// MayHave, if set, refuses to a holder so many sessions and files beyond those that there
	// are.
	MayHave func(h record.Holder, sessions, files int) error
	// MayKeep, if set, tells whether so many descriptors may be kept open to be lent.
	MayKeep func(n int) bool
	// Gone, if set, is called for each session file and segment that is over.
	Gone func(Key)

	log      *slog.Logger
	reserved [protocol.BrokerBytes / reserveStep]bool
	bySerial map[uint64]*SessionFile // the living, and the remains of the dead
	remains  record.Table
	lent     map[Key]*lentFile
	lentOpen int
	blank    []byte // stands for missing session files
}

// remainsSpare is how many records of remains rest when they are given back.
const remainsSpare = 16

// NewStore makes a store without files.
func NewStore(log *slog.Logger) *Store {
	return &Store{log: log, bySerial: map[uint64]*SessionFile{}, lent: map[Key]*lentFile{}, remains: record.NewTable(record.NewShares("remains", "", record.MaxRemains), remainsSpare)}
}

// UseBrokerFile takes the broker file that was made or taken over.
func (s *Store) UseBrokerFile(m File) {
	s.Broker, s.Record = m, record.Of(m.Region)
	clear(s.reserved[:])
}

// Allow refuses so many further sessions and files to a holder if MayHave does.
func (s *Store) Allow(h record.Holder, sessions, files int) error {
	if s.MayHave == nil {
		return nil
	}
	return s.MayHave(h, sessions, files)
}

// MakeBells makes the bell file of a new instance.
func (s *Store) MakeBells() error {
	m, err := s.NewFile(protocol.RoleBell, protocol.RestoreBell, 0, protocol.BrokerSlot, protocol.BellBytes)
	if err != nil {
		return err
	}
	s.useBells(m)
	s.Record.SetBellsFile(m.Inode)
	return nil
}

func (s *Store) useBells(m File) { s.bellFile, s.Bells = m, shm.NewBells(m.Region) }

// ReserveBell makes sure that the bell of a slot has its page.
func (s *Store) ReserveBell(slot uint32) error {
	return s.reserveBells(protocol.BellRecords+int64(slot)*protocol.BellRecordSize, protocol.BellRecordSize)
}

// ReserveWaits makes sure that the wait sets of a topic have their pages: set 0, and those
// of groups below a number.
func (s *Store) ReserveWaits(topic, groups uint32) error {
	return s.reserveBells(protocol.BellWaits+int64(topic)*protocol.WaitAreaSize,
		protocol.WaitMembers+int64(1+groups)*8*protocol.BitmapWords)
}

func (s *Store) reserveBells(at, bytes int64) error {
	if err := s.bellFile.FD.Reserve(at, bytes); err != nil {
		return NoMemory(err, "the bells")
	}
	return nil
}

// LendBells gives a descriptor of the bell file.
func (s *Store) LendBells() (*sys.FD, error) { return s.bellFile.FD.Dup() }

// Make makes the file of a session.
func (s *Store) Make(slot uint32, serial uint64, h record.Holder) (*SessionFile, error) {
	if err := s.Allow(h, 1, 1); err != nil {
		return nil, err
	}
	p := &SessionFile{Slot: slot, Serial: serial, Holder: h}
	var err error
	p.File, err = s.NewFile(protocol.RoleSession, protocol.RestoreSession, serial, slot, protocol.SessionBytes)
	if err != nil {
		return nil, err
	}
	s.view(p)
	s.bySerial[serial] = p
	return p, nil
}

// view makes the views of a session's file.
func (s *Store) view(p *SessionFile) {
	file := s.Region(p)
	p.Refcounts, p.Entries = handles.NewRefcounts(file), handles.NewEntries(file)
	p.bell = s.Bells.Bell(p.Slot)
}

// Region is the session file, or zeros while it is missing.
func (s *Store) Region(p *SessionFile) shm.Region {
	if p.There() {
		return p.File.Region
	}
	return s.blankFile()
}

// blankFile stands for a session file that is missing: nothing is ever written
// there, and untouched zeros take no memory.
func (s *Store) blankFile() shm.Region {
	if s.blank == nil {
		m, err := sys.MapAnonymous(protocol.SessionBytes)
		if err != nil {
			m = make([]byte, protocol.SessionBytes)
		}
		s.blank = m
	}
	return shm.NewRegion(s.blank)
}

// BySerial returns the file of a session, also of one that is over; nil when
// there is none.
func (s *Store) BySerial(serial uint64) *SessionFile { return s.bySerial[serial] }

// Open counts the files: the broker's, the bells, and those of all sessions.
func (s *Store) Open() int { return 2 + len(s.bySerial) }

// All lists the files of all sessions, also those that are left of ended ones.
func (s *Store) All() []*SessionFile { return slices.Collect(maps.Values(s.bySerial)) }

// Lend gives descriptors of session files to another session, for reading only. name adds to an
// error about an awaited file which sessions may have it. custody tells whether the session keeps
// the descriptor.
func (s *Store) Lend(r *protocol.Peer, name func(error) error, custody func(*SessionFile) bool) (reply protocol.PeerReply, fds []*sys.FD, err error) {
	if len(r.Sessions) > protocol.MaxPeers {
		return reply, nil, protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("ask for %d at most", protocol.MaxPeers), "the files of %d sessions are asked for at once", len(r.Sessions))
	}
	var lend []func() (*sys.FD, error)
	for _, q := range r.Sessions {
		var a protocol.PeerAnswer
		switch p := s.bySerial[q.Serial]; {
		case p == nil || p.Slot != q.Slot:
			a.Error = protocol.Errorf(protocol.CodeExpired, "look at the topic's members again",
				"session %d of slot %d is over and nothing of it is left", q.Serial, q.Slot)
		case !p.There():
			errors.As(name(s.Awaited(Key{protocol.RestoreSession, p.Serial}, "session file of "+p.Name)), &a.Error)
		default:
			lend = append(lend, func() (*sys.FD, error) {
				return s.LendForReading(Key{protocol.RestoreSession, p.Serial}, p.File.FD)
			})
			a.Custody = custody(p)
		}
		reply.Sessions = append(reply.Sessions, a)
	}
	fds, err = Descriptors(lend...)
	return reply, fds, err
}

// KeepRemains notes what a successor must know of the file of a dead session.
// In the rare case of a full table it will know nothing of it.
func (s *Store) KeepRemains(p *SessionFile) {
	n, err := s.remains.Take(record.Holder{})
	if err != nil {
		s.log.Warn("too many ended sessions whose messages or memory are still held: a broker after this one would lose them", "session", p.Serial)
		return
	}
	p.remains = n + 1
	s.Record.Remains(n).Store(record.Remains{Serial: p.Serial, File: p.File.Inode,
		Slot: p.Slot, PID: uint32(p.PID), Name: p.Name, Holder: p.Holder})
}

// DropRemains frees the file of a dead session of which nothing is left.
func (s *Store) DropRemains(p *SessionFile) {
	if !p.Dead || p.InUse() {
		return
	}
	if p.remains != 0 {
		s.Record.Remains(p.remains - 1).Free()
		s.remains.Give(p.remains-1, record.Holder{})
	}
	delete(s.bySerial, p.Serial)
	p.close()
	s.Over(Key{protocol.RestoreSession, p.Serial})
}

// Over removes a file that nothing needs any more.
func (s *Store) Over(k Key) {
	delete(s.Missing, k)
	s.forgetLent(k)
	s.Files.Remove(k.Role, k.Serial)
	if s.Gone != nil {
		s.Gone(k)
	}
}

// EachFile lists the files, the broker's first. needed marks those without which the next broker
// cannot serve, and those that are not a living session's own.
func (s *Store) EachFile(f func(k Key, fd *sys.FD, needed bool)) {
	each := func(p *SessionFile) {
		if p.File.FD != nil {
			f(Key{protocol.RestoreSession, p.Serial}, p.File.FD, p == s.Own || p.Dead)
		}
	}
	f(Key{Role: protocol.RestoreBroker}, s.Broker.FD, true)
	f(Key{Role: protocol.RestoreBell}, s.bellFile.FD, true)
	each(s.Own)
	for _, p := range s.bySerial {
		if p != s.Own {
			each(p)
		}
	}
}

// Close closes all files.
func (s *Store) Close() {
	s.CloseLent()
	for _, p := range s.bySerial {
		p.close()
	}
	if s.blank != nil {
		sys.Unmap(s.blank)
	}
	s.bellFile.Close()
	s.CloseBrokerFile()
}

// CloseBrokerFile ends the use of the broker file.
func (s *Store) CloseBrokerFile() {
	s.Broker.Close()
	s.Record = record.File{}
}
