package broker

import (
	"strings"

	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/sys"
)

// useActivated listens at a socket that a service manager has bound at this broker's address
// and passed on (a socket unit of systemd), and tells whether there is one. The file belongs
// to the manager: its mode stays as it is, and so does the file when the broker ends, so that
// the next connection starts the next broker.
func (b *Broker) useActivated() (bool, error) {
	for name, fd := range b.cfg.Kept {
		if strings.HasPrefix(name, keptPrefix) {
			continue // shared memory
		}
		delete(b.cfg.Kept, name)
		l, err := sys.ListenerOf(fd)
		if err != nil || l.Addr().String() != b.cfg.Socket || !reach.Listens(b.cfg.Socket) {
			// No client can connect to a socket whose file was removed: then the broker binds one.
			b.log.Warn("a descriptor that the service manager passed on is not used: it does not listen at this broker's socket",
				"name", name, "socket", b.cfg.Socket, "error", err)
			if err == nil {
				l.Close()
			}
			continue
		}
		l.SetUnlinkOnClose(false)
		b.listener, b.activated = l, true
		if b.ownSocket, err = sys.FileAt(b.cfg.Socket); err != nil {
			return true, err
		}
		return true, sys.ListenAgain(l)
	}
	return false, nil
}
