// Package reach connects to a broker's socket, and tells apart what may be found
// there: nothing listens, a process listens and takes no connection, or the way is barred.
// The broker, its clients and the command line all ask here. It keeps no state.
package reach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// LockName is the file in a runtime directory that its broker keeps locked as long as
// it lives, and that holds the number of its process.
const LockName = "broker.lock"

// Pauses between attempts at a listener whose queue is full.
const (
	soon = 5 * time.Millisecond
	late = 100 * time.Millisecond
)

// Dial connects to the broker at a socket. A listener whose queue of connections is full
// is tried again until ctx ends: it may only be slow. Errors: one that Absent tells,
// Timeout for a listener that took no connection in that time, PermissionDenied,
// TooMany, and NoBroker for what else the system said.
func Dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	for pause := soon; ; pause = min(2*pause, late) {
		c, err := try(socket)
		switch {
		case err == nil || Absent(err):
			return c, err
		case errors.Is(err, os.ErrPermission):
			return nil, protocol.Errorf(protocol.CodePermission, "run this as the broker's user or as root, or ask its owner for --shared with --allow-uid or --allow-group: a socket that admits its user alone keeps others out whatever else is set",
				"the broker's socket %s may not be used: %w", socket, err)
		case sys.IsNoDescriptors(err):
			return nil, protocol.Errorf(protocol.CodeTooMany, "raise the limit of open files (ulimit -n), or close some", "connect to the broker: %w", err)
		case !errors.Is(err, syscall.EAGAIN):
			return nil, protocol.Errorf(protocol.CodeNoBroker, "see what stands in the way of the socket", "no broker answers at %s: %w", socket, err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, Silent(socket)
			}
			return nil, fmt.Errorf("connect to the broker at %s: %w", socket, ctx.Err())
		}
	}
}

// Listens tells, at once, whether a process listens at a socket, or something else than
// that is wrong, which Dial tells. It connects a datagram socket: the kernel finds the listener,
// and refuses since that takes streams (EPROTOTYPE). So the broker sees no connection, and
// counts none where this user is refused.
func Listens(socket string) bool {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err == nil {
		c.Close()
	}
	return !Absent(err)
}

// try connects without waiting: the queue of a listener has room, or it fails (EAGAIN).
func try(socket string) (*net.UnixConn, error) {
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
}

// Absent tells that nothing listened at the socket.
func Absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// None is the error of a socket where nothing listens. It says remedy, unless a broker
// lives that cannot be reached there: the next one would be refused.
func None(socket, remedy string) error {
	if pid := Owner(filepath.Dir(socket), socket); pid != 0 {
		return CutOff(protocol.CodeNoBroker, pid, socket)
	}
	return protocol.Errorf(protocol.CodeNoBroker, remedy, "no broker answers at %s: nothing listens", socket)
}

// CutOff is the error of a broker that lives while nothing listens at its socket.
func CutOff(code protocol.Code, pid int, socket string) error {
	return protocol.Errorf(code, fmt.Sprintf("let it go on if it is suspended (kill -CONT %d): it binds its socket again within seconds; else end it (kill -TERM %d): the next broker takes over what clients have mapped, and with --memory-dir everything", pid, pid),
		"no broker answers at %s, and the one of that place, process %d, lives: it is starting or ending, or its socket was removed", socket, pid).With("pid", pid)
}

// Silent is the error of a broker that listens and does not answer.
func Silent(socket string) error {
	process, pid := "", Owner(filepath.Dir(socket), socket)
	if isSuspended(pid) {
		return protocol.Errorf(protocol.CodeTimeout, fmt.Sprintf("let it go on (kill -CONT %d)", pid), "the broker at %s (pid %d) does not answer: it is suspended", socket, pid)
	}
	if pid != 0 {
		process = fmt.Sprintf(" (pid %d)", pid)
	}
	return protocol.Errorf(protocol.CodeTimeout, "wait longer, or look whether its process is suspended", "the broker at %s%s does not answer", socket, process)
}

// Suspended tells whether the broker of a socket is suspended, as far as can be seen.
func Suspended(socket string) bool { return isSuspended(Owner(filepath.Dir(socket), socket)) }

func isSuspended(pid int) bool {
	if pid == 0 {
		return false
	}
	start, err := sys.StartTime(pid)
	return err == nil && sys.Stopped(pid, start)
}

// Owner returns the process of the broker that has the lock of a runtime directory, 0
// where none has, it serves at another socket, or this cannot be found out. It looks
// whether the process that the lock names has it open, and does not try the lock: a
// broker that begins at that moment would be refused.
func Owner(dir, socket string) int {
	path := filepath.Join(dir, LockName)
	data, err := sys.ReadFile(path)
	if err != nil {
		return 0
	}
	file, err := sys.FileAt(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 0 {
		return 0
	}
	if has, err := sys.OpensFile(pid, file); err != nil || !has {
		return 0
	}
	if st, err := statefile.Read(dir); err == nil && st.Socket != socket {
		return 0
	}
	return pid
}
