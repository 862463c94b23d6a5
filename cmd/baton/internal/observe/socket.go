package observe

import (
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
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
// removed. A directory in which another user may replace the socket is refused: what asks there would take that user's
// answers for the broker's, and give the token away.
func (s *socket) bind() (net.Listener, error) {
	if err := sys.CheckSocketDir(filepath.Dir(s.path), nil, nil); errors.Is(err, fs.ErrNotExist) {
		return nil, err
	} else if err != nil {
		return nil, protocol.Errorf(protocol.CodeConflict, "name a path in another one (--http), give this one the sticky bit (chmod +t), or, if it is for the broker alone, make it the broker's own (chmod 755)",
			"other users may put a socket in this one's place: the directory %w", err)
	}
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
