package natsbridge

import (
	"net"
	"sync/atomic"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// pipes connects to the embedded server through memory. It knows the pipe of the
// connection that is up, so that a batch of messages goes into it as it is: nats.go
// would copy each of them twice, and the pipe has no buffer of its own.
//
// A pipe takes one write after the other, each whole, and nats.go writes whole
// commands only; so do we, and commands of both may follow each other in any order.
type pipes struct {
	srv  *server.Server
	last atomic.Pointer[net.Conn]
}

// InProcessConn makes nats.go use the pipe.
func (p *pipes) InProcessConn() (net.Conn, error) {
	c, err := p.srv.InProcessConn()
	if err != nil {
		return nil, err
	}
	p.last.Store(&c)
	return c, nil
}

// of gives the pipe of a connection; nil when that is not up. A new pipe is made only
// while it is not, and greeted before it is: the last one is the one that is up if
// there is none later afterwards. Once lost it is closed, and refuses what is written.
func (p *pipes) of(nc *nats.Conn) *net.Conn {
	c := p.last.Load()
	if c == nil || !nc.IsConnected() || p.last.Load() != c {
		return nil
	}
	return c
}
