package observe

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
)

// Bounds of connections: any process that reaches the address opens them, and each takes a descriptor
// of those that sessions need.
const (
	leastConns = 8
	mostConns  = 64
	// filesForConn is how many of the files that this process may have open there are for each
	// connection: the broker counts on the rest.
	filesForConn = 32
)

// connLimit is how many connections a door keeps.
func connLimit() int {
	_, limit, err := sys.OpenFiles()
	if err != nil {
		return mostConns
	}
	return int(min(mostConns, max(leastConns, limit/filesForConn)))
}

// acceptAgain is the pause after a connection that could not be taken.
const acceptAgain = 100 * time.Millisecond

// door takes connections at an address, and gives them to the server of the settings in force.
// When there are too many, the one that has been without a request for longest makes room: a
// probe gets through whatever others open and leave.
type door struct {
	network, address string
	socket           *socket // nil: it is no Unix socket
	limit            int
	log              *slog.Logger

	conns chan net.Conn
	done  chan struct{} // closed: no more are taken
	going sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // where connections come in now
	open     map[*conn]struct{}
	closed   bool
}

// conn is a connection of a door.
type conn struct {
	net.Conn
	of *door
	// Under the door's mutex.
	busy  bool // a request is being answered
	since time.Time
}

// openDoor binds an address. beside is the door in whose place this one comes; it may be nil.
func openDoor(network, address string, beside *door, log *slog.Logger) (*door, error) {
	d := &door{network: network, address: address, limit: connLimit(), log: log,
		conns: make(chan net.Conn), done: make(chan struct{}), open: map[*conn]struct{}{}}
	var err error
	if network == "unix" {
		d.socket = &socket{path: address, log: log}
		d.listener, err = d.socket.bind()
	} else {
		d.listener, err = listen(network, address, beside)
	}
	if err != nil {
		return nil, err
	}
	l := d.listener
	d.going.Go(func() { d.accept(l) })
	if d.socket != nil {
		d.going.Go(d.keep)
	}
	return d, nil
}

// listen binds an address of TCP. It may share the port with that of the door which it replaces: 0.0.0.0 has that of
// 127.0.0.1. Another process shares it at no time but while both are bound, and then one of the same user that asks for it.
func listen(network, address string, beside *door) (net.Listener, error) {
	if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().Is4() {
		network = "tcp4" // else 0.0.0.0 were every address of IPv6 as well
	}
	l, err := net.Listen(network, address)
	if !errors.Is(err, syscall.EADDRINUSE) || beside == nil || !beside.sharePort(true) {
		return l, err
	}
	share := net.ListenConfig{Control: func(_, _ string, s syscall.RawConn) error { return sys.SharePort(s, true) }}
	l, err = share.Listen(context.Background(), network, address)
	if err != nil {
		beside.sharePort(false)
		return nil, err
	}
	sharePort(l, false)
	return l, nil
}

// sharePort has the door allow others at its port, or not. Whether that could be done.
func (d *door) sharePort(yes bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return sharePort(d.listener, yes)
}

func sharePort(l net.Listener, yes bool) bool {
	at, is := l.(*net.TCPListener)
	if !is {
		return false
	}
	s, err := at.SyscallConn()
	return err == nil && sys.SharePort(s, yes) == nil
}

// addr is where the door is.
func (d *door) addr() net.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listener.Addr()
}

// accept takes connections of a listener until that is closed.
func (d *door) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			d.log.Error("the HTTP endpoint cannot take a connection", "error", err)
			select {
			case <-d.done:
				return
			case <-time.After(acceptAgain):
			}
			continue
		}
		in := d.admit(c)
		if in == nil {
			continue
		}
		select {
		case d.conns <- in:
		case <-d.done:
			in.Close()
			return
		}
	}
}

// admit counts a connection. Where there are too many it closes the one that has been without a
// request for longest, or this one where all have a request.
func (d *door) admit(c net.Conn) net.Conn {
	in := &conn{Conn: c, of: d, since: time.Now()}
	d.mu.Lock()
	var oldest *conn
	if len(d.open) >= d.limit {
		for o := range d.open {
			if !o.busy && (oldest == nil || o.since.Before(oldest.since)) {
				oldest = o
			}
		}
		if oldest == nil {
			d.mu.Unlock()
			c.Close()
			return nil
		}
		delete(d.open, oldest)
	}
	d.open[in] = struct{}{}
	d.mu.Unlock()
	if oldest != nil {
		oldest.Conn.Close()
	}
	return in
}

// Close closes the connection, which counts no more.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// noteState notes whether a connection has a request: the ConnState of a server.
func noteState(nc net.Conn, state http.ConnState) {
	if t, is := nc.(*tls.Conn); is {
		nc = t.NetConn()
	}
	c, is := nc.(*conn)
	if !is {
		return
	}
	c.of.mu.Lock()
	c.busy, c.since = state == http.StateActive, time.Now()
	c.of.mu.Unlock()
}

// keep makes a socket that was removed again until the door is closed.
func (d *door) keep() {
	tick := time.NewTicker(lookAtSocket)
	defer tick.Stop()
	for {
		select {
		case <-d.done:
			return
		case <-tick.C:
		}
		next := d.socket.again()
		if next == nil {
			continue
		}
		d.mu.Lock()
		closed := d.closed
		if !closed {
			d.listener, next = next, d.listener
		}
		l := d.listener
		d.mu.Unlock()
		next.Close()
		if !closed {
			d.going.Go(func() { d.accept(l) })
		}
	}
}

// close takes no more connections, and removes the socket, where it is this door's. Those that
// were taken stay.
func (d *door) close() {
	if d.socket != nil {
		d.socket.remove() // as long as it is listened at, no other file is taken for it
	}
	d.mu.Lock()
	d.closed = true
	l := d.listener
	d.mu.Unlock()
	close(d.done)
	l.Close()
	d.going.Wait()
}

// lease is a listener that gets the connections of a door until it is closed, which leaves the
// door to the next.
type lease struct {
	of   *door
	ctx  context.Context
	over context.CancelFunc
}

func (d *door) lease() *lease {
	l := &lease{of: d}
	l.ctx, l.over = context.WithCancel(context.Background())
	return l
}

// Accept gives the next connection.
func (l *lease) Accept() (net.Conn, error) {
	if l.ctx.Err() != nil { // whichever is chosen below
		return nil, net.ErrClosed
	}
	select {
	case c := <-l.of.conns:
		return c, nil
	case <-l.ctx.Done():
	case <-l.of.done:
	}
	return nil, net.ErrClosed
}

// Close ends the lease.
func (l *lease) Close() error {
	l.over()
	return nil
}

// Addr is that of the door.
func (l *lease) Addr() net.Addr { return l.of.addr() }
