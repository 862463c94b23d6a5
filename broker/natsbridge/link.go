package natsbridge

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	dialTimeout  = 2 * time.Second
	writeTimeout = 5 * time.Second
	pingEvery    = 5 * time.Second // longer than quietAtEnd: a ping that is written is a sign of life
	firstDelay   = 100 * time.Millisecond
	lastDelay    = 5 * time.Second
	// quietAtEnd is how long a server may give no sign of life while the bridge closes.
	quietAtEnd = 2 * time.Second
)

// link keeps one connection to NATS up until it is closed. nats.go reconnects by itself;
// where it gives a connection up, the link makes another.
type link struct {
	options nats.Options // checked; run adds the handlers
	target  string       // addresses without secrets
	log     *slog.Logger
	onUp    func() // after each connect
	onDown  func() // after each loss
	changed func()
	// refusals are the rights that the server does not grant.
	refusals *refusals

	connected  atomic.Bool
	moved      atomic.Uint64 // reads and writes of the connections to a server of others
	maxPayload atomic.Int64
	nc         atomic.Pointer[nats.Conn]
	pipe       atomic.Pointer[net.Conn] // of the connection, to the embedded server; nil: there is none

	mu         sync.Mutex
	url        string // of the server connected to, or the target
	since      time.Time
	ups        uint64
	lastErr    string
	lastErrAt  time.Time
	logged     map[string]struct{} // failures that were logged since the link was up
	lastLogged time.Time           // of those beyond mostLogged
}

// current gives the connection, nil while there is none, and its pipe, if it has
// one. A connection may be lost at any time; its calls then fail.
func (l *link) current() (nc *nats.Conn, pipe net.Conn) {
	if !l.connected.Load() {
		return nil, nil
	}
	if p := l.pipe.Load(); p != nil {
		pipe = *p
	}
	return l.nc.Load(), pipe
}

// newLink makes one that has connected to nothing yet.
func newLink(options nats.Options, target string, log *slog.Logger, changed func()) *link {
	l := &link{options: options, target: target, log: log, changed: changed, onUp: func() {}, onDown: func() {}, since: time.Now()}
	l.refusals = newRefusals(log, func() *nats.Conn {
		nc, _ := l.current()
		return nc
	}, changed)
	return l
}

// run connects and stays until ctx ends. Then the connection is closed.
func (l *link) run(ctx context.Context) {
	defer l.refusals.close()
	for attempt := 1; ; attempt++ {
		closed := make(chan struct{})
		nc, err := l.connect(ctx, closed)
		if err == nil {
			l.nc.Store(nc)
			before := l.upCount()
			select {
			case <-closed:
			case <-ctx.Done():
				nc.Close()
				<-closed
			}
			if err = nc.LastError(); err == nil {
				err = nats.ErrConnectionClosed
			}
			if l.upCount() != before {
				attempt = 1
			}
		}
		if ctx.Err() != nil {
			l.down(nil)
			return
		}
		l.down(err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay(attempt)):
		}
	}
}

// connect starts a connection that comes up when it can. It returns an error if settings have
// become wrong since they were checked.
func (l *link) connect(ctx context.Context, closed chan struct{}) (*nats.Conn, error) {
	o := l.options
	o.Name = "baton broker"
	o.Timeout = dialTimeout
	o.FlusherTimeout = writeTimeout
	o.ReconnectOnFlusherError = true
	o.PingInterval, o.MaxPingsOut = pingEvery, 2 // one that hangs is lost after 15 s
	o.MaxReconnect = -1
	o.RetryOnFailedConnect = true
	o.IgnoreAuthErrorAbort = true     // credentials are changed under us, some day
	o.ReconnectBufSize = -1           // nothing old is sent after a reconnect
	o.PermissionErrOnSubscribe = true // a subscription that is waited on tells that it was refused
	note := func(err error) {
		if ctx.Err() == nil { // else it is our doing
			l.note(err)
		}
	}
	o.CustomDialer = &dialer{ctx: ctx, failed: note, moved: &l.moved}
	o.SkipHostLookup = true // the dialer does that, and can be stopped
	o.CustomReconnectDelayCB = func(attempts int) time.Duration {
		// The handlers report failed dials only, this error refused greetings.
		if nc := l.nc.Load(); nc != nil {
			note(nc.LastError())
		}
		return delay(attempts)
	}
	o.ConnectedCB = l.up
	o.ReconnectedCB = l.up
	o.DisconnectedErrCB = func(_ *nats.Conn, err error) {
		if ctx.Err() != nil {
			err = nil // we did it
		}
		l.down(err)
	}
	o.ReconnectErrCB = func(_ *nats.Conn, err error) { note(err) }
	o.ClosedCB = func(*nats.Conn) { close(closed) }
	o.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) {
		if !l.refusals.note(err) {
			note(err)
		}
	}
	return o.Connect()
}

func (l *link) up(nc *nats.Conn) {
	l.mu.Lock()
	l.url = l.target
	if s := nc.ConnectedUrl(); s != "" && l.options.InProcessServer == nil {
		l.url = displayURL(s)
	}
	l.since = time.Now()
	l.ups++
	l.logged = nil
	url := l.url
	l.mu.Unlock()
	l.nc.Store(nc)
	if p, ok := l.options.InProcessServer.(*pipes); ok {
		l.pipe.Store(p.of(nc))
	}
	l.maxPayload.Store(nc.MaxPayload())
	l.connected.Store(true)
	l.onUp()
	l.refusals.up()
	l.log.Info("NATS connected", "url", url)
	l.changed()
}

// down records that there is no connection; err is nil where that is intended.
func (l *link) down(err error) {
	if l.connected.Swap(false) {
		l.mu.Lock()
		l.since = time.Now()
		if err != nil {
			l.sparesLocked(err.Error())
		}
		l.mu.Unlock()
		l.onDown()
		if err != nil {
			l.log.Warn("NATS connection lost, connecting again", "url", l.target, "error", err)
		}
	}
	l.note(err)
	l.changed()
}

// mostLogged bounds how many different errors are logged at once: a server that refuses a right names the subject in each.
const mostLogged = 64

// sparesLocked tells whether an error is logged no more: it was since the link was up, or so many were that there is one
// line a minute. Callers hold l.mu.
func (l *link) sparesLocked(text string) bool {
	if _, was := l.logged[text]; was {
		return true
	}
	if len(l.logged) >= mostLogged {
		if time.Since(l.lastLogged) < time.Minute {
			return true
		}
		l.lastLogged = time.Now()
		return false
	}
	if l.logged == nil {
		l.logged = map[string]struct{}{}
	}
	l.logged[text] = struct{}{}
	return false
}

// note records an error, and logs it once.
func (l *link) note(err error) {
	// The dialer has reported more than that no server could be dialled.
	if err == nil || errors.Is(err, nats.ErrNoServers) {
		return
	}
	text := err.Error()
	l.mu.Lock()
	l.lastErr, l.lastErrAt = text, time.Now()
	news := !l.sparesLocked(text)
	l.mu.Unlock()
	if news {
		l.log.Warn("NATS error", "url", l.target, "error", text)
	}
	l.changed()
}

// whileAnswering calls cut once nothing has moved on the connection for quietAtEnd, until the
// result is called. A server that is idle is asked for a sign of life: one ping at a time, whose
// answer is after all that was sent before.
func (l *link) whileAnswering(cut func()) (stop func()) {
	nc, _ := l.current()
	if nc == nil {
		return func() {}
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		limited, cancel := context.WithTimeout(ctx, time.Hour) // nats.go insists on a deadline
		defer cancel()
		for nc.FlushWithContext(limited) == nil {
			select {
			case <-time.After(quietAtEnd / 8):
			case <-ctx.Done():
			}
		}
	}()
	go func() {
		tick := time.NewTicker(quietAtEnd / 8)
		defer tick.Stop()
		for last, since := l.moved.Load(), time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now := l.moved.Load(); now != last {
				last, since = now, time.Now()
			} else if time.Since(since) >= quietAtEnd {
				cut()
				return
			}
		}
	}()
	return stop
}

func (l *link) upCount() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ups
}

// delay before the next attempt, longer each time and never twice the same, so that
// the clients of a restarted server do not all come at once.
func delay(attempt int) time.Duration {
	d := lastDelay
	if attempt < 6 {
		d = firstDelay << max(attempt-1, 0)
	}
	return d/2 + rand.N(d)
}

// dialer makes nats.go's dials end with the bridge, and records why they fail: nats.go does not
// report a refused connection.
type dialer struct {
	ctx    context.Context
	failed func(error)
	moved  *atomic.Uint64
}

// Dial connects, and closes the connection when the bridge ends.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	n := net.Dialer{Timeout: dialTimeout}
	c, err := n.DialContext(d.ctx, network, address)
	if err != nil {
		d.failed(err)
		return nil, err
	}
	return &dialed{c, context.AfterFunc(d.ctx, func() { c.Close() }), d.moved}, nil
}

// dialed forgets its part in the context when it is closed, and counts what moves.
type dialed struct {
	net.Conn
	forget func() bool
	moved  *atomic.Uint64
}

// Read counts a read.
func (d *dialed) Read(b []byte) (int, error) {
	n, err := d.Conn.Read(b)
	if n > 0 {
		d.moved.Add(1)
	}
	return n, err
}

// Write counts a write.
func (d *dialed) Write(b []byte) (int, error) {
	n, err := d.Conn.Write(b)
	if n > 0 {
		d.moved.Add(1)
	}
	return n, err
}

// Close closes the connection.
func (d *dialed) Close() error {
	d.forget()
	return d.Conn.Close()
}
