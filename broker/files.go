package broker

import (
	"fmt"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// filesBeside are open beside those of sessions and their memory: the socket, locks,
	// NATS, and descriptors that are on their way.
	filesBeside = 96
	// filesEach are open for each session beside its memory: the connection, the pidfd, the
	// file that shows the end of the program, and one that is on its way.
	filesEach = 4
	// filesForUse are those of a session that allocates and has a queue, and one to spare.
	filesForUse = filesEach + 1 + 3
	// filesOfBroker are those of a broker without sessions that are shared: the broker file,
	// the bells and its own refcounts.
	filesOfBroker = 2 + filesEach + 1
	// fewSessions is the number of sessions in the advice when the limit of open files is too small
	// for a broker.
	fewSessions = 16
	// filesSpare is beyond the need in an advice, and in what a broker takes in: what a
	// process has open when it begins is not the same each time.
	filesSpare = 16
)

// fileLimit is what a broker knows about its limit of open files. It is counted before the
// broker makes files or takes them over.
type fileLimit struct {
	own, limit uint64
	refused    bool // something was, and there were not plenty of files when something was asked for since
}

// lookAtFiles counts the files that are open beside those which a descriptor store passed on.
func (b *Broker) lookAtFiles() (err error) {
	open, limit, err := sys.OpenFiles()
	b.files = fileLimit{own: open - min(open, uint64(len(b.cfg.Kept))), limit: limit}
	return err
}

// LeastFiles is how many files a process that has own files open must be allowed to have open, to
// begin as a broker.
func LeastFiles(own uint64) uint64 { return beginFiles(own) + filesForUse }

// beginFiles are those of a broker without sessions.
func beginFiles(own uint64) uint64 { return own + filesBeside + filesSpare + filesOfBroker }

// checkBegin checks that a new broker may have enough open files for a session.
func (f fileLimit) checkBegin() error {
	beside := beginFiles(f.own)
	if LeastFiles(f.own) <= f.limit {
		return nil
	}
	return protocol.Errorf(protocol.CodeTooMany,
		fmt.Sprintf("raise this broker's limit of open files to %d or more, for %d sessions and some of their memory (ulimit -n, LimitNOFILE= of a unit)", beside+fewSessions*filesForUse*8/7, fewSessions),
		"the %d open files that are allowed are too few for a broker", f.limit)
}

// check refuses a takeover of so many sessions that cannot have open all files that it needs.
// There are needed shared files at least; the advice counts with atMost of them.
func (f fileLimit) check(sessions, needed, atMost int) error {
	beside := f.own + uint64(filesEach*sessions) + filesBeside
	if beside+uint64(needed) <= f.limit {
		return nil
	}
	return protocol.Errorf(protocol.CodeTooMany,
		fmt.Sprintf("raise this broker's limit of open files to %d or more (ulimit -n, LimitNOFILE= of a unit)", beside+uint64(max(needed, atMost))+filesSpare),
		"the takeover of %d sessions needs more open files than the %d that are allowed; what the previous broker left is as it was", sessions, f.limit)
}

// beyond is how many files may be open beside those of a takeover of so many sessions
// and shared files.
func (f fileLimit) beyond(sessions, files int) int {
	return max(0, int(f.limit)-int(f.own)-filesEach*sessions-files-filesBeside)
}

// mayHave refuses further sessions and shared files to a holder if a broker with the same limit
// could not take all of them over any more, or if the rest is kept for other holders. The mutex
// is held.
func (b *Broker) mayHave(h record.Holder, sessions, files int) error {
	all, taken := b.filesTaken()
	more := filesEach*sessions + files
	if taken+more+b.store.LentOpen() > all/4*3 {
		b.store.CloseLent()
	}
	reserve := record.Reserve(all, filesForUse)
	b.files.refused = b.files.refused && all-taken < 2*reserve
	if all-taken-more < reserve {
		// So many that what is asked for is not in what is kept for others.
		advice := max(int(b.files.limit)-all+(taken+more)*8/7+1, int(b.files.limit)+more)
		shares := b.fileShares(all, taken, advice)
		if err := shares.Check(h, more); err != nil {
			if !b.files.refused { // once, until there is plenty again
				b.log.Warn("the limit of open files is near: sessions and memory are refused", events.Of(events.Refused), "limit", b.files.limit, "sessions", b.liveSessions(), "error", err)
			}
			b.files.refused = true
			return err
		}
	}
	return nil
}

// filesTaken counts the files that a successor would have open beside its own, of all that it may. The mutex is held.
func (b *Broker) filesTaken() (all, taken int) {
	all = max(0, int(b.files.limit)-int(b.files.own)-filesBeside-filesSpare)
	return all, filesEach*b.liveSessions() + b.sharedFiles()
}

// filesShort tells whether something was refused for want of files, and one more session that uses them may be refused
// now. The mutex is held.
func (b *Broker) filesShort() bool {
	all, taken := b.filesTaken()
	return b.files.refused && all-taken-filesForUse < record.Reserve(all, filesForUse)
}

// mayKeep tells whether so many descriptors, which no takeover needs, may be kept open to be
// lent: as long as there are plenty. The mutex is held.
func (b *Broker) mayKeep(n int) bool {
	all, taken := b.filesTaken()
	return taken+n <= all/2
}

// fileShares counts for each holder the files that a successor must open, of all that it may
// open beside its own. What is counted to no holder is the broker's.
func (b *Broker) fileShares(all, taken, advice int) record.Shares {
	shares := record.NewShares("open files", fmt.Sprintf("close queues, readers and sessions, or raise the broker's limit of open files to %d or more (ulimit -n, LimitNOFILE= of a unit; it is %d)", advice, b.files.limit), all).ForUse(filesForUse)
	one := func(h record.Holder) { shares.Add(h, 1) }
	for _, p := range b.store.All() {
		shares.Add(p.Holder, 1)
	}
	for _, s := range b.used() {
		if s != nil {
			shares.Add(s.Holder, filesEach)
		}
	}
	b.memory.EachHolder(one)
	b.topics.EachHolder(one)
	shares.Add(record.Holder{}, taken-shares.Taken())
	return shares
}

// checkRecorded is check for what is in the broker file.
func (b *Broker) checkRecorded() error {
	files := len(b.store.Missing)
	return b.files.check(b.recordedSessions(), files, files)
}

// sharedFiles counts the files that a successor has to open.
func (b *Broker) sharedFiles() int {
	return b.store.Open() + b.memory.Segments() + b.topics.Groups()
}

// noteFiles keeps the state file's bound of the shared files true. The mutex is held.
func (b *Broker) noteFiles() {
	if n := b.sharedFiles(); n > b.state.files {
		b.state.files = boundOf(n)
		b.noteState(stateChange{Files: b.state.files})
	}
}

// boundOf leaves room, so that few changes are noted.
func boundOf(files int) int { return files + files/8 + 16 }
