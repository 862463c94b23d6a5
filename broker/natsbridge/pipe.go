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

// of gives the pipe of a connection; nil when the connection is not up. nats.go makes a new pipe
// only while the connection is down, and greets over it before the connection is up. So the last
// pipe is that of the connection, if no later one has been made afterwards. A pipe whose
// connection was lost is closed, and refuses what is written.
func (p *pipes) of(nc *nats.Conn) *net.Conn {
	c := p.last.Load()
	if c == nil || !nc.IsConnected() || p.last.Load() != c {
		return nil
	}
	return c
}
