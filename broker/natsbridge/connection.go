package natsbridge

import (
	"context"
	"log/slog"
	"strings"

	"github.com/nats-io/nats.go"
)

// Connection is one more connection to an operator's NATS than the bridge's: what moves on it holds up no tuple. It
// comes back by itself until it is closed.
type Connection struct {
	link   *link
	cancel context.CancelFunc
	done   chan struct{}
}

// Connect begins to connect. up is called with each new connection before it is used, and once more each time that it
// has come back; it subscribes to what a connection has not subscribed to yet.
func (j *JoinConfig) Connect(log *slog.Logger, up func(*nats.Conn)) (*Connection, error) {
	options, err := j.options()
	if err != nil {
		return nil, err
	}
	c := &Connection{done: make(chan struct{})}
	c.link = newLink(options, displayURLs(options.Servers), log, func() {})
	c.link.onUp = func() { up(c.link.nc.Load()) }
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.done)
		c.link.run(ctx)
	}()
	return c, nil
}

// Current gives the connection, nil while there is none.
func (c *Connection) Current() *nats.Conn {
	nc, _ := c.link.current()
	return nc
}

// LastError is what went wrong last, "" where nothing has.
func (c *Connection) LastError() string {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return c.link.lastErr
}

// Close ends it.
func (c *Connection) Close() {
	c.cancel()
	<-c.done
}

// Encrypts tells whether the settings ask for TLS: an address that wants it, or files for it.
func (j *JoinConfig) Encrypts() bool {
	return j.CA != "" || j.Cert != "" || j.TLSFirst || strings.Contains(strings.Join(j.URLs, ","), "tls://")
}

// Refused are the rights that the server does not grant it, and what that means.
func (c *Connection) Refused() (all []string) {
	for _, r := range c.link.refusals.list() {
		all = append(all, r.String())
	}
	return all
}
