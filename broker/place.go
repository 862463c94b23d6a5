package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// A broker's place is its runtime directory, with lock and state file, and its socket. All
// of it may go away under a broker that runs: a cleaner of /tmp removes it, or a service
// manager at the last logout. What was removed is made again, the lock first: the broker whose
// lock stands there has the place. If another broker began in a directory that was made anew,
// the two brokers would have clients that know nothing of each other, and new programs would
// come to the other one: the previous broker ends.

// lookAtPlace is how often the broker checks that all of the place is there.
const lookAtPlace = 5 * time.Second

// keepPlace makes again what is missing of the place, or ends a broker that has lost it. The
// mutex is held.
func (b *Broker) keepPlace() {
	has, err := b.keepLock()
	if has {
		b.noteStateTrouble(b.keepState())
		err = errors.Join(b.keepSocket(), b.keepFiles(), b.keepLog())
	}
	if errors.Is(err, errPlaceLost) {
		b.log.Error("ending: another broker has this one's place", "error", err)
		b.stop(endLeave, err)
		return
	}
	b.placeTrouble.Note(b.log, "something of this broker's place was removed and cannot be made again: clients do not find it, or the next broker not what it leaves", err, "dir", b.cfg.Dir)
	b.clock.After(lookAtPlace, b.keepPlace)
}

func (b *Broker) lockPath() string { return filepath.Join(b.cfg.Dir, reach.LockName) }

// lockDir gets the lock of the runtime directory. A file that was removed before it was
// locked keeps no broker out: then it is another one's turn to be made.
func (b *Broker) lockDir() (*sys.FD, error) {
	for {
		lock, err := sys.OpenLock(b.lockPath())
		if sys.IsNoSpace(err) || errors.Is(err, sys.ErrInTheWay) {
			return nil, b.fileError(err)
		}
		if err != nil {
			return nil, protocol.Errorf(protocol.CodePermission, "choose a directory that you can write",
				"runtime directory %s cannot be used: %w", b.cfg.Dir, err)
		}
		if err := lock.Lock(false); err != nil {
			lock.Close()
			return nil, fmt.Errorf("lock runtime directory: %w", err)
		}
		if b.stands(lock) {
			return lock, nil
		}
		lock.Close()
	}
}

// stands tells whether a lock is the one in the runtime directory.
func (b *Broker) stands(lock *sys.FD) bool {
	_, own, err := lock.Stat()
	return err == nil && own.IsAt(b.lockPath())
}

// hasDir tells whether the lock in the runtime directory is the one that this broker has.
func (b *Broker) hasDir() bool { return b.lock != nil && b.stands(b.lock) }

// signLock names this process in the lock of the runtime directory.
func (b *Broker) signLock() error { return b.fileError(b.lock.Sign(strconv.Itoa(processID) + "\n")) }

// errPlaceLost says that the place is another broker's.
var errPlaceLost = errors.New("the runtime directory was removed and made again")

// keepLock makes a lock that was removed again, and tells whether the runtime directory is
// this broker's now. One that is not may be another broker's, which is beginning.
func (b *Broker) keepLock() (bool, error) {
	if b.hasDir() {
		return true, nil
	}
	if err := b.makeDir(); err != nil {
		return false, err
	}
	lock, err := b.lockDir()
	if err != nil && !sys.IsLocked(err) {
		return false, err
	}
	if err := b.placeLost(err != nil); err != nil || lock == nil {
		lock.Close()
		return false, err
	}
	b.lock.Close()
	b.lock = lock
	b.log.Warn("the lock of the runtime directory was removed, and is made again", "dir", b.cfg.Dir)
	return true, b.signLock()
}

// placeLost tells whether another broker serves in the runtime directory, or has left
// sessions there for a next one. One that merely tries to begin, and finds this one's
// socket, ends and leaves nothing.
func (b *Broker) placeLost(locked bool) error {
	other, err := statefile.Read(b.cfg.Dir)
	if err != nil || other.Instance == b.id || b.ownsSocket() {
		return nil
	}
	if !locked && (other.BootID != sys.BootID() || len(other.Survivors()) == 0) {
		return nil
	}
	return protocol.Errorf(protocol.CodeConflict,
		"programs open a new session at SessionLost; keep what removes old files away from the directory",
		"%w, and another broker (pid %d) has begun in %s: the clients of this one find that one, and their sessions are over", errPlaceLost, other.PID, b.cfg.Dir).With("pid", other.PID)
}

// keepState writes a state file that was removed, or could not be written, again.
func (b *Broker) keepState() error {
	if b.state.file != nil && b.ownsState() {
		return nil
	}
	if b.state.file != nil {
		b.log.Warn("the state file was removed, and is written again", "file", b.statePath())
	}
	return b.writeState()
}

// leaveState sees to it that the next broker finds this one's clients. The mutex is held.
func (b *Broker) leaveState() {
	has, err := b.keepLock()
	if has {
		b.keepLog() // which has what is said next
		err = b.keepState()
	}
	if !errors.Is(err, errPlaceLost) {
		b.noteStateTrouble(err)
	}
}

// keepLog makes the file of the log again where it was removed.
func (b *Broker) keepLog() error {
	if b.cfg.KeepLog == nil {
		return nil
	}
	again, err := b.cfg.KeepLog()
	if again {
		b.log.Warn("the log was removed, and is made again", "dir", b.cfg.Dir)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeNotFound, "keep what removes old files away from the directory", "the log of this broker was removed, and its lines are lost: %w", err)
	}
	return nil
}

// ownsSocket tells whether the socket is the one that this broker has bound.
func (b *Broker) ownsSocket() bool { return b.ownSocket.IsAt(b.cfg.Socket) }

// keepSocket binds a socket that was removed again: clients could not come back, and the
// lock would keep any other broker from being started for them.
func (b *Broker) keepSocket() error {
	if b.ownsSocket() {
		return nil
	}
	if _, err := os.Lstat(b.cfg.Socket); err == nil && reach.Listens(b.cfg.Socket) {
		return protocol.Errorf(protocol.CodeConflict, "stop that one, whose runtime directory is another",
			"another process listens at %s, the socket of this broker", b.cfg.Socket)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := b.clearSocket(); err != nil {
		return err
	}
	former := b.listener
	err := b.bind()
	if b.listener != former {
		former.Close()
	}
	if err == nil {
		b.log.Warn("the socket was removed, and is made again", "socket", b.cfg.Socket)
	}
	return err
}

// keepFiles finds out that what is in the memory directory was removed. Nothing can give a
// file its name back: it lives as long as a process has it open.
func (b *Broker) keepFiles() error {
	d, ok := b.store.Files.(sessionfiles.Directory)
	if !ok || d.Has(protocol.RestoreBroker, 0, sys.FileID{Dev: b.store.Broker.Device, Ino: b.store.Broker.Inode}) {
		return nil
	}
	return protocol.Errorf(protocol.CodeNotFound, "keep what removes old files away from it; end the programs and start the broker anew when that suits",
		"files of this broker in %s were removed: it goes on, and the next broker gets what living programs have mapped and nothing else, as without --memory-dir", d.Path)
}

// removeSocket removes the socket that this broker has bound.
func (b *Broker) removeSocket() {
	if b.ownsSocket() && !b.activated {
		os.Remove(b.cfg.Socket)
	}
	b.ownSocket = sys.FileID{}
}

// fileError adds what to do to the error of a file in the place: where its file system is full, or something else stands
// there.
func (b *Broker) fileError(err error) error {
	if errors.Is(err, sys.ErrInTheWay) {
		return protocol.Errorf(protocol.CodePermission, "move it away, or choose another runtime directory (--runtime-dir)", "%w", err)
	}
	if !sys.IsNoSpace(err) {
		return err
	}
	return protocol.Errorf(protocol.CodeOutOfMemory, "make room in its file system (df), or choose another runtime directory (--runtime-dir)",
		"the runtime directory %s has no room for this broker's files: %w", b.cfg.Dir, err)
}
