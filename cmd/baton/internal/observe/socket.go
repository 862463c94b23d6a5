package observe

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/baton-ipc/baton/internal/lasting"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// lookAtSocket is how often it is looked whether the endpoint's socket is there.
const lookAtSocket = time.Second

// socket is the Unix socket of an endpoint. Its file may be removed while the endpoint serves,
// and another broker's be bound there: only this broker's own is ever removed.
type socket struct {
	path    string
	own     sys.FileID
	log     *slog.Logger
	trouble lasting.Trouble // why it cannot be made again
	waited  int             // looks in a row that found no directory
}

// waitsForDir is how many looks may find no directory: the broker makes its runtime directory again, and looks for it
// every five seconds.
const waitsForDir = 8

// bind makes the socket, with mode 0600. A file at which no process listens is that of a broker that has ended and is
// removed.
func (s *socket) bind() (net.Listener, error) {
	switch info, err := os.Lstat(s.path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSocket == 0:
		return nil, protocol.Errorf(protocol.CodeConflict, "choose another path (--http), or move away what is there", "%s exists and is not a socket", s.path)
	case reach.Listens(s.path):
		return nil, protocol.Errorf(protocol.CodeConflict, "end that process, or choose another path (--http)", "another process serves at %s already", s.path)
	default:
		if err := os.Remove(s.path); err != nil {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if s.own, err = sys.FileAt(s.path); err == nil {
		err = os.Chmod(s.path, 0o600)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // one that was removed is made again
		l.Close()
		return nil, err
	}
	return l, nil
}

func (s *socket) stands() bool { return s.own.IsAt(s.path) }

// again makes a socket that was removed anew; nil: it stands, or cannot be made, which is said
// once.
func (s *socket) again() net.Listener {
	var l net.Listener
	var err error
	if !s.stands() {
		l, err = s.bind()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		s.waited = 0
	} else if s.waited < waitsForDir {
		s.waited++
		return nil
	}
	s.trouble.Note(s.log, "the socket of the HTTP endpoint was removed and cannot be made again", err)
	if l == nil || err != nil {
		return nil
	}
	s.log.Warn("the socket of the HTTP endpoint was removed, and is made again", "address", s.path)
	return l
}

// remove removes the socket, unless another one has its place.
func (s *socket) remove() {
	if s.stands() {
		os.Remove(s.path)
	}
}
