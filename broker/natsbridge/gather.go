package natsbridge

import (
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// gathering connects to the embedded server. The server's own pipe has no buffer:
// it hands each write over by itself, and nats.go writes whenever its flusher comes
// by. Here writes are gathered while the server is at work, as a socket does, so
// that it gets them in few large pieces and nobody waits for it.
type gathering struct{ srv *server.Server }

// InProcessConn makes nats.go use the connection.
func (g gathering) InProcessConn() (net.Conn, error) {
	pipe, err := g.srv.InProcessConn()
	if err != nil {
		return nil, err
	}
	return gather(pipe), nil
}

// gatherBytes may wait before a write waits too.
const gatherBytes = 256 << 10

// gathered is a connection with a buffer in the direction of the server.
type gathered struct {
	net.Conn
	ended chan struct{} // run has ended

	mu      sync.Mutex
	changed sync.Cond
	waiting []byte // to be handed over
	closed  bool
	err     error
}

func gather(to net.Conn) *gathered {
	c := &gathered{Conn: to, ended: make(chan struct{})}
	c.changed.L = &c.mu
	go c.run()
	return c
}

// Write takes a copy of p. It waits only while much is waiting already.
func (c *gathered) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.waiting) >= gatherBytes && c.err == nil && !c.closed {
		c.changed.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	if c.closed {
		return 0, net.ErrClosed
	}
	if c.waiting = append(c.waiting, p...); len(c.waiting) == len(p) {
		c.changed.Broadcast()
	}
	return len(p), nil
}

// run hands over what is waiting until the connection is closed and nothing is left.
func (c *gathered) run() {
	defer close(c.ended)
	var own []byte
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for len(c.waiting) == 0 && !c.closed {
			c.changed.Wait()
		}
		if len(c.waiting) == 0 {
			return
		}
		full := len(c.waiting) >= gatherBytes
		own, c.waiting = c.waiting, own[:0]
		if full {
			c.changed.Broadcast()
		}
		c.mu.Unlock()
		_, err := c.Conn.Write(own)
		c.mu.Lock()
		if err != nil {
			c.err = err
			c.changed.Broadcast()
			return
		}
	}
}

// SetWriteDeadline and SetDeadline leave writes alone: the server that they wait for
// is this process.
func (c *gathered) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline bounds reads.
func (c *gathered) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// Close hands over what was written before, unless the server has stopped to read.
func (c *gathered) Close() error {
	c.mu.Lock()
	c.closed = true
	c.changed.Broadcast()
	c.mu.Unlock()
	c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	<-c.ended
	return c.Conn.Close()
}
