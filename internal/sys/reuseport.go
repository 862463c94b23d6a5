package sys

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// SharePort allows other sockets of this user that allow it too to be bound to the socket's port, or forbids it again:
// those that are bound already stay.
func SharePort(s syscall.RawConn, yes bool) error {
	value := 0
	if yes {
		value = 1
	}
	var failed error
	if err := s.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, value) }); err != nil {
		return err
	}
	return failed
}
