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
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// occupy makes the runtime directory ours: no other user can write it, and no other
// broker runs in it.
func (b *Broker) occupy() error {
	if err := sys.CheckPrivateDir(b.cfg.Dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return protocol.Errorf(protocol.CodePermission, "choose a directory that you can write", "%w", err)
		}
		return protocol.Errorf(protocol.CodePermission, "remove it, or make it yours alone (chmod 700)", "%w", err)
	}
	path := filepath.Join(b.cfg.Dir, reach.LockName)
	lock, err := sys.OpenLock(path)
	if err != nil {
		return protocol.Errorf(protocol.CodePermission, "choose a directory that you can write",
			"runtime directory %s cannot be used: %w", b.cfg.Dir, err)
	}
	if err := lock.Lock(false); err != nil {
		lock.Close()
		if !sys.IsLocked(err) {
			return fmt.Errorf("lock runtime directory: %w", err)
		}
		data, _ := os.ReadFile(path)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
		if pid != 0 && pid == reach.Owner(b.cfg.Dir, b.cfg.Socket) && !reach.Listens(b.cfg.Socket) {
			return reach.CutOff(protocol.CodeConflict, pid, b.cfg.Socket)
		}
		return protocol.Errorf(protocol.CodeConflict, "use that broker, take over from it with --replace, stop it, or give this one a directory of its own",
			"another broker (process %d) runs in %s", pid, b.cfg.Dir).With("pid", pid)
	}
	b.lock = lock
	return b.signLock()
}

// signLock names this process in the lock of the runtime directory.
func (b *Broker) signLock() error {
	return os.WriteFile(filepath.Join(b.cfg.Dir, reach.LockName), []byte(strconv.Itoa(processID)+"\n"), 0o600)
}

// listen binds the socket. What a dead broker left there is removed; one at which
// somebody listens is not, whether he answers or stands still.
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
		return protocol.Errorf(protocol.CodeConflict, "look whether its process stands still, stop it, or choose another socket",
			"somebody listens at %s already, and takes no connection", path)
	case !reach.Absent(err):
		return err
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return protocol.Errorf(protocol.CodeConflict, "remove it or choose another path",
				"%s exists and is not a socket", path)
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the socket of a dead broker: %w", err)
		}
	}
	return b.bind()
}

// bind makes the socket and listens at it.
func (b *Broker) bind() error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.cfg.Socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return b.useListener(l)
}

// useListener takes the listener of the socket.
func (b *Broker) useListener(l *net.UnixListener) error {
	l.SetUnlinkOnClose(false)
	b.listener = l
	if err := os.Chmod(b.cfg.Socket, b.cfg.SocketMode); err != nil {
		return fmt.Errorf("protect socket: %w", err)
	}
	return nil
}

// lookAtSocket is how often it is looked whether the socket is there.
const lookAtSocket = 5 * time.Second

// keepSocket binds the socket again where somebody has removed its file: clients could not
// come back, and the lock would keep any other broker from being started for them. It does
// so only where nothing stands there and the lock in the runtime directory is this broker's
// own: in a directory that was made anew another one may begin. The mutex is held.
func (b *Broker) keepSocket() {
	if _, err := os.Lstat(b.cfg.Socket); errors.Is(err, fs.ErrNotExist) && b.hasDir() {
		former := b.listener
		if err := b.bind(); err != nil {
			b.log.Error("the socket was removed and cannot be made again", "socket", b.cfg.Socket, "error", err)
		} else {
			b.log.Warn("the socket was removed, and is made again", "socket", b.cfg.Socket)
		}
		if b.listener != former {
			former.Close()
		}
	}
	b.clock.After(lookAtSocket, b.keepSocket)
}

// hasDir tells whether the lock in the runtime directory is the one that this broker has.
func (b *Broker) hasDir() bool {
	there, err := sys.FileAt(filepath.Join(b.cfg.Dir, reach.LockName))
	if err != nil {
		return false
	}
	_, own, err := b.lock.Stat()
	return err == nil && own == there
}

func (b *Broker) removeSocket() { os.Remove(b.cfg.Socket) }

const (
	// maxConns bounds sockets: a session each, and those that come and go.
	maxConns = protocol.MaxSessions + 128
	// maxRefused bounds those that are being told why they are refused. Others are closed
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

// accept takes connections until the listener is closed.
func (b *Broker) accept() {
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
				b.log.Error("cannot accept: no descriptors left; raise the limit of open files", "error", err)
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
	c := newConn(b, wire.NewStranger(u), cred)
	b.mu.Lock()
	full := b.connShares.Check(c.holder, 1)
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
	case !b.allowed(cred.UID):
		b.sparing.Warn("refused: user may not connect", "uid", cred.UID, "pid", cred.PID)
		go c.refuse(protocol.Errorf(protocol.CodePermission, "connect as the broker's user, or start the broker with --allow-uid",
			"user %d may not use this broker", cred.UID))
	case full != nil:
		go c.refuse(full)
	default:
		go c.readLoop()
	}
}

func (b *Broker) allowed(uid uint32) bool {
	return uid == uint32(os.Geteuid()) || slices.Contains(b.cfg.AllowUIDs, uid)
}
