// Package custody chooses the sessions that keep descriptors of other sessions' files.
//
// A broker that takes over gets the files of the previous broker from the clients
// (docs/protocol.md, Broker death). A file that no living process has open is lost with
// the broker, though others have it mapped. So the owner of a file keeps its descriptor,
// and so do all sessions that map it, as long as they are few. Where more have it mapped,
// [Enough] processes have custody of it, and all others close it: else each of n sessions
// that exchange messages would have n files open, and a takeover would pass n².
//
// A file whose descriptor some session has closed *lacks* custodians when it has fewer:
// one has ended, or the sessions that asked for it first had custody of many already.
// [Files.Assign] then assigns it to others, first to those that have it mapped. A session counts
// as a custodian once it has said that it keeps the descriptor: its process may be suspended, or
// at its limit of open files.
//
// Concurrency: all of it is called with the broker's mutex held.
//
// Death: nothing here is recorded. A broker that takes over learns from what is handed to
// it which sessions have custody of which files, and from the sessions what else they have mapped.
package custody

import (
	"cmp"
	"math/bits"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// Enough is how many processes besides the owner's keep a file: it is lost when all of
	// them, the owner and the broker end before others were asked.
	Enough = 3
	// few is how many files a session has custody of at least, before others are asked: the
	// processes of a small system keep all that they have mapped.
	few = 64
	// AtOnce is how many files a session is given with one answer, and endedAtOnce how many it
	// is told to close.
	AtOnce      = 64
	endedAtOnce = 1024
	// AnswerTime is how long a session that is asked to keep a file may take to say that it keeps
	// it, before others are asked as well: it may be suspended, or have too many files open.
	AnswerTime = time.Second
)

// Client is notified when it is to take custody of files, or to end it: it asks with Take.
type Client interface {
	Custody()
}

// Session is a session that may have custody of files.
type Session struct {
	Process int // whose sessions count as one: they end together
	Slot    uint32

	client Client
	ready  bool // it has a connection
	closed bool // it may close its files at any time, and is no custodian
	kept   map[sessionfiles.Key]struct{}
	given  []sessionfiles.Key // assigned: to be taken
	ended  []sessionfiles.Key // to be closed
}

// file is a file that was handed out.
type file struct {
	owner      int // the process
	custodians []*Session
	closers    []*Session             // closed sessions, which may have it still
	asked      map[*Session]time.Time // when; they have not said that they keep it
	closed     []uint64               // bits of the slots that have it mapped and closed; nil: none
}

// Files records which sessions have custody of which file.
type Files struct {
	files    map[sessionfiles.Key]*file
	sessions map[*Session]struct{}
	lacking  map[sessionfiles.Key]struct{}
}

// New makes an empty table.
func New() *Files {
	return &Files{files: map[sessionfiles.Key]*file{}, sessions: map[*Session]struct{}{}, lacking: map[sessionfiles.Key]struct{}{}}
}

// Open adds a session. It is given nothing before Resume.
func (f *Files) Open(process int, slot uint32, c Client) *Session {
	s := &Session{Process: process, Slot: slot, client: c, kept: map[sessionfiles.Key]struct{}{}}
	f.sessions[s] = struct{}{}
	return s
}

// Resume says that a session has a connection, maybe a new one. What it was given may have
// been lost with the previous connection, so it is given again: a client that has it closes the second.
func (f *Files) Resume(s *Session) {
	s.ready = !s.closed
	for k := range s.kept {
		if s.ready && !slices.Contains(s.given, k) {
			s.given = append(s.given, k)
		}
	}
	if len(s.given)+len(s.ended) > 0 {
		s.client.Custody()
	}
}

// Away says that a session has no connection.
func (f *Files) Away(s *Session) { s.ready = false }

// Close says that a session is closed. Its process keeps open the files of what it holds, and
// closes them without notice when it drops that. So the session has custody of nothing.
func (f *Files) Close(s *Session) {
	if s.closed {
		return
	}
	s.ready, s.closed = false, true
	for k := range s.kept {
		at := f.files[k]
		at.remove(s)
		at.leave(s)
		f.look(k, at)
	}
	for _, k := range s.given {
		if at := f.files[k]; at != nil {
			delete(at.asked, s)
		}
	}
	s.given = nil
}

// End takes a session away, with all that it had.
func (f *Files) End(s *Session) {
	delete(f.sessions, s)
	for k, at := range f.files {
		_, kept := s.kept[k]
		_, asked := at.asked[s]
		if !kept && !asked && len(at.closers) == 0 && !at.hasClosed(s.Slot) {
			continue
		}
		if kept || len(at.closers) > 0 {
			at.remove(s)
		}
		delete(at.asked, s)
		at.setClosed(s.Slot, false)
		f.look(k, at)
	}
	clear(s.kept)
}

// Lend notes that the descriptor of a file goes to a session, and tells whether that has
// custody of it. Otherwise it closes the descriptor once the file is mapped. The owner is
// the process whose session made the file.
func (f *Files) Lend(s *Session, k sessionfiles.Key, owner int) bool {
	at := f.at(k, owner)
	if _, has := s.kept[k]; has {
		return true
	}
	if !s.closed && at.wants(s) && len(s.kept) < f.share() {
		at.give(s, k)
		f.look(k, at)
		return true
	}
	at.setClosed(s.Slot, true)
	f.look(k, at)
	return false
}

// Handed notes that a session has handed over a file, so that it has custody of it, unless
// it is closed.
func (f *Files) Handed(s *Session, k sessionfiles.Key, owner int) {
	at := f.at(k, owner)
	if _, has := s.kept[k]; has {
		return
	}
	if s.closed {
		s.kept[k] = struct{}{}
		at.leave(s)
	} else {
		at.give(s, k)
	}
	f.look(k, at)
}

// Mapped notes that a session has a file mapped, and closed.
func (f *Files) Mapped(s *Session, k sessionfiles.Key, owner int) {
	at := f.at(k, owner)
	at.setClosed(s.Slot, true)
	f.look(k, at)
}

// Unknown makes a session close a file that it has handed over and that is no file of this
// instance any more.
func (f *Files) Unknown(s *Session, k sessionfiles.Key) {
	s.ended = append(s.ended, k)
	s.client.Custody()
}

// Gone says that a file is over: its custodians close it.
func (f *Files) Gone(k sessionfiles.Key) {
	at := f.files[k]
	if at == nil {
		return
	}
	delete(f.files, k)
	delete(f.lacking, k)
	end := func(s *Session) {
		delete(s.kept, k)
		s.given = without(s.given, k)
		s.ended = append(s.ended, k) // it may have the descriptor already
		s.client.Custody()
	}
	for _, s := range slices.Concat(at.custodians, at.closers) {
		end(s)
	}
	for s := range at.asked {
		end(s)
	}
}

// Take returns what a session is to keep from now on, and what it is to close, again until the
// session has said Done.
func (s *Session) Take() (given, ended []sessionfiles.Key) {
	return slices.Clone(s.given[:min(len(s.given), AtOnce)]), slices.Clone(s.ended[:min(len(s.ended), endedAtOnce)])
}

// Done notes that a session keeps the descriptors of some files and has closed others. It may
// have closed them on request, or had no descriptor free when they came.
func (f *Files) Done(s *Session, kept, closed []sessionfiles.Key) {
	for _, k := range closed {
		s.ended, s.given = without(s.ended, k), without(s.given, k)
		if at := f.files[k]; at != nil {
			at.remove(s)
			delete(s.kept, k)
			at.setClosed(s.Slot, true)
			f.look(k, at)
		}
	}
	for _, k := range kept {
		s.given = without(s.given, k)
		at := f.files[k]
		if at == nil {
			continue
		}
		if _, asked := at.asked[s]; asked {
			at.give(s, k)
			f.look(k, at)
		}
	}
}

func without(keys []sessionfiles.Key, k sessionfiles.Key) []sessionfiles.Key {
	return slices.DeleteFunc(keys, func(one sessionfiles.Key) bool { return one == k })
}

// Lacking tells whether Assign may have something to do.
func (f *Files) Lacking() bool { return len(f.lacking) > 0 }

// Assign assigns the files that lack custodians to the sessions that have the fewest: first to
// those that have them mapped. A file that no session can take stays lacking until a session
// comes. again tells whether to look in AnswerTime if the sessions that were asked keep the files.
// more tells whether the time was over before it had looked at all: the next call goes on.
func (f *Files) Assign(now time.Time, most time.Duration) (again, more bool) {
	var all []*Session
	for s := range f.sessions {
		if s.ready {
			all = append(all, s)
		}
	}
	load := func(s *Session) int { return len(s.kept) + len(s.given) }
	slices.SortFunc(all, func(x, y *Session) int { return cmp.Or(cmp.Compare(load(x), load(y)), cmp.Compare(x.Slot, y.Slot)) })
	share, told, next := f.share(), map[*Session]struct{}{}, 0
	give := func(k sessionfiles.Key, at *file, mappedOnly bool) {
		for i := 0; i < len(all) && at.expected(now) < Enough; i++ {
			s := all[(next+i)%len(all)]
			if (!mappedOnly || at.hasClosed(s.Slot)) && load(s) < share && at.wants(s) && !at.wasAsked(s) {
				if at.asked == nil {
					at.asked = map[*Session]time.Time{}
				}
				at.asked[s] = now
				s.given = append(s.given, k)
				told[s] = struct{}{}
			}
		}
		next++
	}
	began := time.Now()
	for k := range f.lacking {
		if more = time.Since(began) > most; more {
			break
		}
		at := f.files[k]
		give(k, at, true)
		give(k, at, false)
		again = again || len(at.asked) > 0
	}
	for s := range told {
		s.client.Custody()
	}
	return again, more
}

// share is how many files a session has custody of at most: a fair part and some more, so that
// all files find custodians.
func (f *Files) share() int {
	return max(few, (len(f.files)*Enough*5/4+len(f.sessions)-1)/max(1, len(f.sessions)))
}

func (f *Files) at(k sessionfiles.Key, owner int) *file {
	at := f.files[k]
	if at == nil {
		at = &file{owner: owner}
		f.files[k] = at
	}
	return at
}

// look notes whether a file lacks custodians.
func (f *Files) look(k sessionfiles.Key, at *file) {
	if at.closed != nil && len(at.custodians) < Enough {
		f.lacking[k] = struct{}{}
	} else {
		delete(f.lacking, k)
	}
}

// wants tells whether a session would be one custodian more, in a process of its own.
func (at *file) wants(s *Session) bool {
	same := func(c *Session) bool { return c.Process == s.Process }
	return len(at.custodians) < Enough && s.Process != at.owner && !slices.ContainsFunc(at.custodians, same)
}

// expected counts the custodians, with the sessions that may soon answer.
func (at *file) expected(now time.Time) int {
	n := len(at.custodians)
	for _, when := range at.asked {
		if now.Sub(when) < AnswerTime {
			n++
		}
	}
	return n
}

// wasAsked tells whether a session was asked to keep the file, or to another of its process.
func (at *file) wasAsked(s *Session) bool {
	for o := range at.asked {
		if o.Process == s.Process {
			return true
		}
	}
	return false
}

func (at *file) remove(s *Session) {
	is := func(c *Session) bool { return c == s }
	at.custodians, at.closers = slices.DeleteFunc(at.custodians, is), slices.DeleteFunc(at.closers, is)
}

// leave notes a closed session that has the file, and may close it at any time.
func (at *file) leave(s *Session) {
	at.closers = append(at.closers, s)
	at.setClosed(s.Slot, true)
}

func (at *file) give(s *Session, k sessionfiles.Key) {
	delete(at.asked, s)
	at.custodians = append(at.custodians, s)
	s.kept[k] = struct{}{}
	at.setClosed(s.Slot, false)
}

func (at *file) hasClosed(slot uint32) bool {
	return at.closed != nil && at.closed[slot/64]>>(slot%64)&1 != 0
}

func (at *file) setClosed(slot uint32, closed bool) {
	switch {
	case closed && at.closed == nil:
		at.closed = make([]uint64, protocol.MaxSessions/64)
	case at.closed == nil:
		return
	}
	word := &at.closed[slot/64]
	*word &^= 1 << (slot % 64)
	if closed {
		*word |= 1 << (slot % 64)
	} else if *word == 0 && !slices.ContainsFunc(at.closed, func(w uint64) bool { return bits.OnesCount64(w) != 0 }) {
		at.closed = nil
	}
}
