// Package fdstore keeps descriptors at the service manager while no broker runs:
// systemd's file descriptor store (FileDescriptorStoreMax= of the unit). A broker that
// leaves hands over the memory that only it has; the manager passes all of it to the
// next one.
//
// # Ownership
//
// A Store duplicates what it is given. Inherited gives the descriptors to the caller.
//
// # Concurrency
//
// One goroutine at a time.
//
// # Hostile input
//
// The manager is trusted. What it passes is compared with the records by the broker.
//
// # Death
//
// The manager keeps what it has taken whatever becomes of this process, and drops it
// when the unit is stopped without FileDescriptorStorePreserve=, or on request.
package fdstore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

// firstInherited is the first descriptor that a manager passes on.
const firstInherited = 3

// patience is how long the manager may take.
const patience = 5 * time.Second

// Store is the store of this process's unit.
type Store struct {
	conn    *net.UnixConn
	manager *net.UnixAddr
	room    int
}

// Open finds the store; nil where the manager has none for this process: the unit does
// not allow it, or there is no manager. A manager older than systemd 254 does not say so:
// FDSTORE=n in the unit's environment does it in its place.
func Open(getenv func(string) string) (*Store, error) {
	socket := getenv("NOTIFY_SOCKET")
	room, err := strconv.Atoi(getenv("FDSTORE"))
	if socket == "" || err != nil || room <= 0 {
		return nil, nil
	}
	// Not connected: a connected one of Go's sends no descriptors.
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("make a socket for the service manager: %w", err)
	}
	return &Store{conn, &net.UnixAddr{Name: socket, Net: "unixgram"}, room}, nil
}

// ErrFull says that the store takes no more.
var ErrFull = errors.New("the unit's FileDescriptorStoreMax is reached")

// Keep hands a descriptor over under a name, which Inherited gives back.
func (s *Store) Keep(name string, fd *sys.FD) error {
	if s.room == 0 {
		return ErrFull
	}
	s.room--
	n, err := fd.Acquire()
	if err != nil {
		return err
	}
	defer fd.Release()
	return s.tell("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, n)
}

// Forget drops what was kept under a name.
func (s *Store) Forget(name string) error { return s.tell("FDSTOREREMOVE=1\nFDNAME=" + name) }

// Flush waits until the manager has taken note of all that it was sent: it may not
// know whose a message was once its sender has ended.
func (s *Store) Flush() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = s.tell("BARRIER=1", int(w.Fd()))
	w.Close()
	if err != nil {
		return err
	}
	r.SetReadDeadline(time.Now().Add(patience))
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the service manager did not take note within %s", patience)
	}
	return nil
}

// Close ends the use of the store; what it keeps stays.
func (s *Store) Close() { s.conn.Close() }

func (s *Store) tell(state string, fds ...int) error {
	s.conn.SetWriteDeadline(time.Now().Add(patience))
	_, _, err := s.conn.WriteMsgUnix([]byte(state), sys.PassFDs(fds), s.manager)
	if err != nil {
		return fmt.Errorf("tell the service manager: %w", err)
	}
	return nil
}

// Inherited takes the descriptors that the manager passed to this process, by name.
// Those of a name that another one has, too, are closed. Call it once.
func Inherited(getenv func(string) string) map[string]*sys.FD {
	if pid, err := strconv.Atoi(getenv("LISTEN_PID")); err != nil || pid != os.Getpid() {
		return nil
	}
	n, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || n <= 0 {
		return nil
	}
	names := strings.Split(getenv("LISTEN_FDNAMES"), ":")
	all := map[string]*sys.FD{}
	for i := range n {
		fd, err := sys.InheritFD(firstInherited + i)
		if err != nil {
			continue
		}
		if i >= len(names) || all[names[i]] != nil {
			fd.Close()
			continue
		}
		all[names[i]] = fd
	}
	return all
}
