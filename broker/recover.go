package broker

import (
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// takeover is the time in which a new broker waits for a dead one's clients.
type takeover struct{}

func (b *Broker) findPredecessor() (*state, error) { return nil, nil }

func (b *Broker) startTakeover(*state) error { return nil }

func (b *Broker) helloTaking(*conn, *protocol.Hello, *sys.FD) (*protocol.HelloReply, []*sys.FD, error) {
	return nil, nil, errEnding
}

func (c *conn) restore(h head, _ []byte, _ []*sys.FD) bool {
	c.reply(h.ID, nil, nil, protocol.Errorf(protocol.CodeProtocol, "say hello first", "no broker is being replaced"))
	return false
}

func (b *Broker) openFiles() error { b.files = memfds{}; return nil }

func (b *Broker) endAll() {}

func (b *Broker) keepsNames() bool { return false }
