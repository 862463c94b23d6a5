package link

import (
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/typed"
	"github.com/baton-ipc/baton/protocol"
)

// Typed writes a command of baton that is to be typed, as remedies have them: it reaches the broker and the namespace of
// the session. Flags are left out for this user's own broker and for the namespace default.
func (l *Link) Typed(sub string, args ...string) string {
	socket, space := l.via.Socket, l.hello.Namespace
	if socket == address.Usual() {
		socket = ""
	}
	if space == protocol.DefaultNamespace {
		space = ""
	}
	return typed.Command(socket, space, sub, args...)
}
