package sessionfiles

import (
	"strings"
	"unicode"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// SessionFile is the file of one session: refcounts, entries and lanes. It
// outlives the session while a lane of it is adopted or a chunk of it is held:
// then it is its remains, found by serial.
type SessionFile struct {
	Slot   uint32
	Serial uint64
	Name   string // of the session, for listings and errors
	PID    int
	Dead   bool
	// Holder is what the session counts with where a table is shared.
	Holder record.Holder

	File      File
	Refcounts handles.Refcounts
	Entries   handles.Entries
	bell      *shm.Bell
	remains   uint32              // its record's number + 1 when it is over
	reserved  map[int64]struct{}  // pages of the refcounts that were reserved here
	entries   map[uint32]struct{} // chunks whose entries were
	readers   uint32              // bit n: the page n of the file was reserved for readers' records
	counts    map[int64]struct{}  // places of providers' records that were reserved here
	uses      int                 // chunks granted to this session, and its lanes, live and adopted alike
}

// There tells whether this broker has the session file. After a takeover the file of a session
// that is not back yet may be missing.
func (p *SessionFile) There() bool { return p.File.Region.Valid() }

// Wake makes the session look again. If the session is over, its slot may be another session's,
// which then looks without a reason.
func (p *SessionFile) Wake() { p.bell.Wake() }

// Ring wakes the session if it sleeps. The caller has fenced.
func (p *SessionFile) Ring() { p.bell.Ring() }

// SetName names the session, for this broker's listings and for sessions that receive from it.
func (p *SessionFile) SetName(name string) {
	p.Name = Printable(name, protocol.SessionNameBytes)
	to := p.File.Region.Bytes(protocol.SessionSender, protocol.SessionNameBytes)
	clear(to[copy(to, p.Name):])
}

// Use keeps the file of an ended session for a chunk or lane in it, until
// Unuse.
func (p *SessionFile) Use() { p.uses++ }

// Unuse ends one Use. The caller calls DropRemains.
func (p *SessionFile) Unuse() { p.uses-- }

// InUse tells whether a chunk or lane needs the file.
func (p *SessionFile) InUse() bool { return p.uses > 0 }

// refcountsPart is where a chunk's words stand in a session file, and their bytes.
func refcountsPart(chunk uint32) (at, bytes int64) {
	const n = protocol.ChunkIndices * protocol.RefcountWordSize
	return protocol.SessionRefcounts + int64(chunk)*n, n
}

// entryPart is where a chunk's entries stand in a session file, and their bytes.
func entryPart(chunk uint32) (at, bytes int64) {
	const n = protocol.ChunkIndices * protocol.EntrySize
	return protocol.SessionEntries + int64(chunk)*n, n
}

// ReserveRefcounts makes sure that a reader of the refcounts meets no hole.
func (p *SessionFile) ReserveRefcounts(chunk uint32) error {
	at, _ := refcountsPart(chunk)
	at &^= protocol.PageBytes - 1 // the words of several chunks stand in one page
	if _, done := p.reserved[at]; done {
		return nil
	}
	if err := p.File.FD.Reserve(at, protocol.PageBytes); err != nil {
		return NoMemory(err, "refcounts")
	}
	if p.reserved == nil {
		p.reserved = map[int64]struct{}{}
	}
	p.reserved[at] = struct{}{}
	return nil
}

// Received is what a reader has counted.
type Received struct{ Taken, Lost uint64 }

// Add adds, up to what JSON can hold.
func (r *Received) Add(o Received) {
	r.Taken = min(r.Taken+min(o.Taken, protocol.MaxSafeInt), protocol.MaxSafeInt)
	r.Lost = min(r.Lost+min(o.Lost, protocol.MaxSafeInt), protocol.MaxSafeInt)
}

// ReserveReader makes sure that a look at the record of a reader meets no hole.
func (p *SessionFile) ReserveReader(number uint64) error {
	at := int64(protocol.ReaderRecordAt(number)) &^ (protocol.PageBytes - 1)
	if p.readers>>(at/protocol.PageBytes)&1 != 0 {
		return nil
	}
	if err := p.File.FD.Reserve(at, protocol.PageBytes); err != nil {
		return NoMemory(err, "what a reader counts")
	}
	p.readers |= 1 << (at / protocol.PageBytes)
	return nil
}

// Received returns the counts of a reader; zeros if its record cannot be reserved, or is another
// reader's.
func (p *SessionFile) Received(number uint64) (r Received) {
	at := protocol.ReaderRecordAt(number)
	if !p.There() || p.ReserveReader(number) != nil || p.File.Region.Load64(at+protocol.ReaderNumber) != number {
		return r
	}
	return Received{p.File.Region.Load64(at + protocol.ReaderTaken), p.File.Region.Load64(at + protocol.ReaderLost)}
}

// ReserveEntries makes sure that what writes the entries of a chunk meets no hole.
func (p *SessionFile) ReserveEntries(chunk uint32) error {
	if _, done := p.entries[chunk]; done {
		return nil
	}
	at, n := entryPart(chunk)
	if err := p.File.FD.Reserve(at, n); err != nil {
		return err
	}
	if p.entries == nil {
		p.entries = map[uint32]struct{}{}
	}
	p.entries[chunk] = struct{}{}
	return nil
}

// Poison releases the streams of others that wait for those of an ended session: it adds the poison, 2^62, to
// the words of its streams.
//
// SYNC stream-word: the process is gone, so nothing of its own follows; a waiter
// sees at least the value it waits for, and below the poison how far the stream came.
func (p *SessionFile) Poison() {
	for i := range uint64(protocol.MaxStreams) {
		at := protocol.SessionStreams + 8*i // 0 as well, for waits for a first value
		word := p.File.Region.Load64(at)
		if word/protocol.StreamPoison == 1 {
			continue // a previous broker died after it had done this
		}
		// A larger number than any stream has is false, and streams compare signed: left there, it
		// would keep waiters waiting.
		p.File.Region.Store64(at, min(word, protocol.StreamPoison-1)|protocol.StreamPoison)
	}
}

// NoteCleared notes for the session's process, if it lives, that its refcounts no longer show what
// the process holds.
//
// SYNC refcounts-cleared: stored before the first of the refcounts is cleared, so that a word which
// the client reads as zero, and then no flag, was lowered by the client itself.
func (p *SessionFile) NoteCleared() { p.File.Region.Store32(protocol.HeadFlags, protocol.HeadCleared) }

// IsLost tells whether the session's client has noted that the session is over: it allocates, recycles and counts up
// nothing in it any more.
//
// SYNC session-lost: read before the broker takes the session's memory for its own.
func (p *SessionFile) IsLost() bool {
	return p.There() && p.File.Region.Load32(protocol.HeadLost) != 0
}

// Trace returns where a storage was made, if its owner says so.
func (p *SessionFile) Trace(index uint32) string {
	if p.File.Region.Load32(protocol.SessionTraceOn) != 1 {
		return ""
	}
	var text [protocol.TraceSize]byte
	copy(text[:], p.File.Region.Bytes(protocol.SessionTraces+uint64(index)*protocol.TraceSize, protocol.TraceSize))
	s, _, _ := strings.Cut(string(text[:]), "\x00")
	return Printable(s, protocol.TraceSize+1)
}

func (p *SessionFile) close() { p.File.Close() }

// Printable makes a client's text fit for a terminal and a record.
func Printable(s string, bytes int) string {
	s = strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
	if len(s) > bytes-1 {
		s = strings.ToValidUTF8(s[:bytes-1], "")
	}
	return s
}

// Descriptors makes descriptors: all, or none if one of them fails.
func Descriptors(makers ...func() (*sys.FD, error)) ([]*sys.FD, error) {
	var fds []*sys.FD
	for _, m := range makers {
		fd, err := m()
		if err != nil {
			for _, f := range fds {
				f.Close()
			}
			return nil, err
		}
		fds = append(fds, fd)
	}
	return fds, nil
}
