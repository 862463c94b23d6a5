package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// occupy makes the runtime directory ours: no other user can write it, and no other
// broker runs in it.
func (b *Broker) occupy() error {
	if err := b.makeDir(); err != nil {
		return b.noPlace(err)
	}
	lock, err := b.cfg.Lock, error(nil)
	b.cfg.Lock = nil
	if lock != nil && !b.stands(lock) { // the settings name another directory, or it was removed
		lock.Close()
		lock = nil
	}
	if lock == nil {
		lock, err = b.lockDir()
	}
	switch {
	case err == nil:
		b.lock = lock
		return b.signLock()
	case !sys.IsLocked(err):
		return err
	}
	data, _ := sys.ReadFile(b.lockPath())
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	if pid != 0 && pid == reach.Owner(b.cfg.Dir, b.cfg.Socket) && !reach.Listens(b.cfg.Socket) {
		return reach.CutOff(protocol.CodeConflict, pid, b.cfg.Socket)
	}
	return protocol.Errorf(protocol.CodeConflict, "use that broker, take over from it with --replace, stop it, or give this one a directory of its own",
		"another broker (pid %d) runs in %s", pid, b.cfg.Dir).With("pid", pid)
}

// dirSettings choose the runtime directory.
const dirSettings = "--runtime-dir, --address, XDG_RUNTIME_DIR"

// noPlace is the error for a runtime directory that cannot be made, or be this user's.
func (b *Broker) noPlace(err error) error {
	switch {
	case sys.IsNoSpace(err):
		return b.fileError(err)
	case errors.Is(err, syscall.ENOTDIR):
		return protocol.Errorf(protocol.CodePermission, "move away what is in the way, or choose another directory ("+dirSettings+")", "%w", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return protocol.Errorf(protocol.CodePermission, "choose a directory that you can write ("+dirSettings+")", "%w", err)
	}
	return protocol.Errorf(protocol.CodePermission, sys.DirRemedy(err, dirSettings), "%w", err)
}

// makeDir makes the runtime directory, or checks it, and that of a socket which other
// users are to reach.
func (b *Broker) makeDir() error {
	if !b.cfg.Shared {
		return sys.CheckPrivateDir(b.cfg.Dir)
	}
	if at := filepath.Dir(b.cfg.Socket); at != b.cfg.Dir {
		if err := sys.CheckPrivateDir(b.cfg.Dir); err != nil {
			return err
		}
		return sys.OpenDir(at)
	}
	return sys.OpenDir(b.cfg.Dir)
}

// listen binds the socket. What a dead broker left there is removed; one at which
// a process listens is not, whether it answers or is suspended.
func (b *Broker) listen() error {
	path := b.cfg.Socket
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	switch c, err := reach.Dial(ctx, path); {
	case err == nil:
		pid := 0
		if cred, err := sys.PeerCredentials(c); err == nil {
			pid = cred.PID
		}
		c.Close()
		return protocol.Errorf(protocol.CodeConflict, "use that broker, stop it, or choose another socket",
			"process %d listens at %s already", pid, path).With("pid", pid)
	case errors.Is(err, protocol.ErrTimeout):
		return protocol.Errorf(protocol.CodeConflict, "look whether its process is suspended, stop it, or choose another socket",
			"a process listens at %s already, and takes no connection", path)
	case errors.Is(err, syscall.ENOTDIR):
		return b.noSocket(err)
	case !reach.Absent(err):
		return err
	}
	if err := b.clearSocket(); err != nil {
		return err
	}
	return b.bind()
}

// clearSocket removes a socket at which no process listens.
func (b *Broker) clearSocket() error {
	path := b.cfg.Socket
	info, err := os.Lstat(path)
	if err != nil {
		return nil // bind reports what else may be wrong
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return protocol.Errorf(protocol.CodeConflict, "choose another path (--address), or move away what is there",
			"%s exists and is not a socket", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket of a dead broker: %w", err)
	}
	return nil
}

// bind makes the socket and listens at it.
func (b *Broker) bind() error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.cfg.Socket, Net: "unix"})
	if err != nil {
		return b.noSocket(err)
	}
	return b.useListener(l)
}

// noSocket is the error for a socket that cannot be made. What the error of net says of it is the
// socket and the system call: the cause is enough.
func (b *Broker) noSocket(err error) error {
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call.Err
	}
	code, remedy := protocol.CodePermission, ""
	switch {
	case errors.Is(err, syscall.EROFS):
		remedy = "name a socket in a file system that can be written (--address), or mount this one so"
	case errors.Is(err, fs.ErrPermission):
		remedy = "make its directory writable to the user of the broker, or name another socket (--address)"
	case errors.Is(err, fs.ErrNotExist):
		code, remedy = protocol.CodeInvalid, fmt.Sprintf("make its directory (mkdir -m 755 %s), or name another socket (--address)", filepath.Dir(b.cfg.Socket))
	case errors.Is(err, syscall.ENOTDIR):
		code, remedy = protocol.CodeInvalid, "name a socket in a directory (--address)"
	default:
		return b.fileError(fmt.Errorf("no socket can be made at %s: %w", b.cfg.Socket, err))
	}
	return protocol.Errorf(code, remedy, "no socket can be made at %s: %w", b.cfg.Socket, err)
}

// useListener takes the listener of the socket.
func (b *Broker) useListener(l *net.UnixListener) error {
	l.SetUnlinkOnClose(false)
	b.listener, b.activated = l, false
	var err error
	if b.ownSocket, err = sys.FileAt(b.cfg.Socket); errors.Is(err, fs.ErrNotExist) {
		return nil // it was removed: keepSocket makes it again
	}
	if err == nil {
		err = os.Chmod(b.cfg.Socket, b.cfg.SocketMode)
	}
	if err != nil {
		return fmt.Errorf("protect socket: %w", err)
	}
	return nil
}

const (
	// maxConns bounds sockets: a session each, and those that come and go.
	maxConns = protocol.MaxSessions + 128
	// maxRefused bounds the connections that are being sent why they are refused. Others are closed
	// without a word.
	maxRefused = 64
	// manyConns is from how many on the broker gives back what it needed for them.
	manyConns = 64
)

// connLimit bounds connections by the open files that a process of this limit may have, so
// that those which say nothing leave room for sessions, each of which costs more files than
// its connection.
func connLimit() int {
	_, limit, err := sys.OpenFiles()
	if err != nil {
		return maxConns
	}
	return min(maxConns, max(manyConns, int(min(limit, 3*maxConns)/3)))
}

// forgetConn ends the count of a connection. After many at once the memory for them goes
// back to the machine: Go's runtime keeps for a long time what it needed once.
func (b *Broker) forgetConn(c *conn) {
	if b.conns[c] {
		b.connShares.Add(c.holder, -1)
	}
	b.taking.forget(c)
	delete(b.conns, c)
	if b.mostConns >= manyConns && len(b.conns) < b.mostConns/4 {
		few := make(map[*conn]bool, len(b.conns)) // a map keeps the size that it had once
		maps.Copy(few, b.conns)
		b.conns, b.mostConns = few, len(few)
		b.clock.After(restAfterMany, func() { go debug.FreeOSMemory() })
	}
}

// restAfterMany is how long after many connections the memory for them is given back.
const restAfterMany = time.Second

// sayAgain is how often the log says that descriptors are still missing.
const sayAgain = time.Minute

// accept takes connections until the listener is closed.
func (b *Broker) accept() {
	var short time.Time // when the log last said that descriptors are missing
	for {
		l := b.listening()
		u, err := l.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				if b.listening() == l { // else another one has followed it
					return
				}
				continue
			}
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				if time.Since(short) >= sayAgain {
					short = time.Now()
					b.log.Error("cannot accept: no descriptors left; raise the limit of open files", "error", err)
				}
				select {
				case <-b.quit:
					return
				case <-time.After(100 * time.Millisecond):
				}
				continue
			}
			if errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EINTR) {
				continue
			}
			b.stop(endLeave, fmt.Errorf("accept: %w", err))
			return
		}
		b.welcome(u)
	}
}

func (b *Broker) listening() *net.UnixListener {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listener
}

// welcome checks the user that connects and starts the connection's goroutines.
func (b *Broker) welcome(u *net.UnixConn) {
	cred, err := sys.PeerCredentials(u)
	if err != nil {
		u.Close()
		return
	}
	access := b.access.Load()
	may, err := access.roleOf(u, cred)
	if err != nil {
		b.sparing.Warn(causer{cred.UID, cred.PID}, "refused: it cannot be found out which groups a process is in", events.Of(events.Refused), "uid", cred.UID, "pid", cred.PID, "error", err)
	}
	c := newConn(b, wire.NewStranger(u), cred)
	b.mu.Lock()
	if now := b.access.Load(); now != access { // which has looked at the connections that were here
		may, _ = now.roleOf(u, cred)
	}
	c.observes, c.stranger = may == observer, may == stranger
	full := b.connShares.Check(c.holder, 1)
	if full == nil {
		full = b.taking.connect(c)
	}
	if full != nil && len(b.conns)-b.connShares.Taken() >= maxRefused || b.closing {
		b.mu.Unlock()
		u.Close()
		return
	}
	b.conns[c] = full == nil
	if full == nil {
		b.connShares.Add(c.holder, 1)
	}
	b.mostConns = max(b.mostConns, len(b.conns))
	b.mu.Unlock()
	switch {
	case may == stranger:
		go func() {
			b.fetchOfRefused(cred)
			c.refuse(errStranger(cred.UID))
			b.refused(cred)
		}()
	case full != nil:
		go c.refuse(full)
	default:
		go c.readLoop()
	}
}
