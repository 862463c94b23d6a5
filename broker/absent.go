package broker

import (
	"errors"
	"fmt"
	"strings"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// After a takeover some sessions may still be absent: suspended processes, say.
// They keep all they have. Files that only they can hand over are missing until
// they are back; what depends on them waits, and counts as held.

// absentees counts the sessions that are not back yet.
func (b *Broker) absentees() (n int) {
	for _, s := range b.used() {
		if s.isAbsentee() {
			n++
		}
	}
	return n
}

// isAbsentee tells whether a session is not back yet, and may have files that are missing. A
// session that has said nothing since its hello has no file but its own, and may never come
// back: its client may have given the hello up. For one that was evicted no client comes back. Of a
// session whose files were read from its suspended process (read) none is missing.
func (s *session) isAbsentee() bool {
	return s != nil && s.absent && s.answered && s.heard && !s.read && !s.returnless && !s.denied && s.state != protocol.SessionDead
}

// maxNamed is how many absent sessions an error names.
const maxNamed = 3

// nameAbsentees adds to an error about a missing file the sessions that may have it, and what
// can be done about their processes. The mutex is not held.
func (b *Broker) nameAbsentees(err error) error {
	if !errors.Is(err, sessionfiles.ErrAwaited) {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.withAbsentees(err)
}

// withAbsentees is nameAbsentees while the mutex is held.
func (b *Broker) withAbsentees(err error) error {
	if !errors.Is(err, sessionfiles.ErrAwaited) {
		return err
	}
	var who, remedy []string
	for _, s := range b.used() {
		if !s.isAbsentee() {
			continue
		}
		if len(who) == maxNamed {
			who = append(who, "others")
			break
		}
		who = append(who, fmt.Sprintf("session %d (%s, pid %d)", s.Serial, s.Name, s.PID))
		if s.unknown {
			remedy = append(remedy, fmt.Sprintf("end session %d with baton evict %d when its process is gone", s.Serial, s.Serial))
		} else {
			remedy = append(remedy, s.goOnOrEnd())
		}
	}
	if who == nil {
		return protocol.Errorf(protocol.CodeBusy, "try again: the session that has it is there, and hands it over", "%w", err)
	}
	return protocol.Errorf(protocol.CodeBusy, strings.Join(remedy, "; ")+"; then try again", "%w, and waits for %s", err, strings.Join(who, ", "))
}

// goOnOrEnd is what to do about a process that lives and does not answer.
func (s *session) goOnOrEnd() string {
	return fmt.Sprintf("let process %d go on if it is suspended (kill -CONT %d), or end it", s.PID, s.PID)
}

// endWaits reports whether the end of a dead session waits: its file is missing and may
// still come. The file holds what the session sent. Until then its refcounts, which the broker cannot read,
// counts everything that it is attached to. So do the refcounts of one that has sent memory of
// others whose files may still come: the broker could not count it now.
func (b *Broker) endWaits(s *session) bool {
	k := sessionfiles.Key{Role: protocol.RestoreSession, Serial: s.Serial}
	_, missing := b.store.Missing[k]
	switch {
	case s.givenUp:
		return false
	case missing && !s.There() && s.answered:
		b.setState(s, protocol.SessionDead)
		return b.absentees() > 0
	case b.topics.Awaited(s.party):
		b.setState(s, protocol.SessionDead)
		return true
	}
	return false
}

// endWaiting ends the dead sessions whose end need no longer wait.
func (b *Broker) endWaiting() {
	for _, s := range b.used() {
		if s != nil && s.state == protocol.SessionDead && !s.ended {
			b.endSession(s)
		}
	}
}

// filesToCome are the missing files that a session may still hand over, though all sessions are
// back or dead. The answer that brings the file was under way when the session listed what it
// has, or lay in a socket that nothing has read. They may come as long as the session is there.
func (b *Broker) filesToCome() map[sessionfiles.Key]uint64 {
	var files map[sessionfiles.Key]uint64
	for k, inode := range b.store.Missing {
		if !b.mayCome(k) {
			continue
		}
		if files == nil {
			files = map[sessionfiles.Key]uint64{}
		}
		files[k] = inode
	}
	return files
}

// mayCome tells whether the session lives that a file was first given to.
func (b *Broker) mayCome(k sessionfiles.Key) bool {
	switch k.Role {
	case protocol.RestoreSession:
		return b.lives(b.store.BySerial(k.Serial))
	case protocol.RestoreSegment:
		return b.lives(b.memory.Owner(k.Serial))
	case protocol.RestoreGroup:
		return b.topics.HasMembers(k.Serial)
	}
	return false
}

// lives tells whether the session of a file may still have its process.
func (b *Broker) lives(p *sessionfiles.SessionFile) bool {
	if p == nil || p.Dead || p.Slot >= uint32(len(b.slots)) {
		return false
	}
	s := b.slots[p.Slot]
	return s != nil && s.SessionFile == p && !s.ended && s.state != protocol.SessionDead
}

// install uses a file that was missing. It takes ownership of fd.
func (b *Broker) install(k sessionfiles.Key, fd *sys.FD) {
	switch k.Role {
	case protocol.RestoreSession:
		if p := b.store.BySerial(k.Serial); p != nil {
			b.installSessionFile(p, k, fd)
			return
		}
	case protocol.RestoreSegment:
		if b.memory.Install(k, fd) {
			b.reread()
			b.endWaiting()
			return
		}
	case protocol.RestoreGroup:
		if b.topics.Install(k, fd) {
			return
		}
	}
	fd.Close()
}

func (b *Broker) installSessionFile(p *sessionfiles.SessionFile, k sessionfiles.Key, fd *sys.FD) {
	if !b.store.Install(p, k, fd) {
		return
	}
	b.topics.Returned(p)
	b.reread()
	b.endWaiting()
	b.reapSoon()
}

// finishRecovery goes on without the files that no session can bring any more, once every
// session is back or dead: dead sessions without refcounts are ended, and groups are made anew.
// Segments without a file, or without their owner's, are the reaper's: they stay while any
// holder counts anything of them.
func (b *Broker) finishRecovery() {
	if b.store.Missing == nil || b.absentees() > 0 {
		return
	}
	b.store.Missing, b.store.AllBack = b.filesToCome(), true
	b.endWaiting()
	b.topics.GiveUpUnread()
	b.reread() // what can no longer come is lost, and no count stands for it
	b.topics.RemakeGroups()
	for _, p := range b.store.All() {
		b.store.DropRemains(p)
	}
}
