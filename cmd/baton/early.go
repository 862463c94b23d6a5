package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"log/slog"
	"net"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/logfile"
	"github.com/baton-ipc/baton/cmd/baton/internal/logqueue"
	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
)

// early stands for a broker from before it is there: the HTTP endpoint is the first to answer,
// so that probes see a takeover and not a process that does nothing.
type early struct {
	counted *observe.Requests
	broker  atomic.Pointer[broker.Broker] // it takes over, or serves
	daemon  atomic.Pointer[daemon]        // it serves
	log     *logfile.File                 // nil: the log is no file of this broker's
	lines   *logqueue.Queue               // of the log
	lock    *sys.FD                       // of the runtime directory; nil: the broker takes it
	late    *time.Timer                   // ends the process, unless it listens by then; nil: nothing does
}

// hasLock is the lock of the runtime directory that this process has already, nil for none.
func (e *early) hasLock() *sys.FD {
	if e == nil {
		return nil
	}
	return e.lock
}

// keepLog is what the broker calls to have its log's file.
func (e *early) keepLog() func() (bool, error) {
	if e == nil || e.log == nil {
		return nil
	}
	return e.log.Keep
}

func newEarly(lines *logqueue.Queue) *early {
	return &early{counted: observe.NewRequests(), lines: lines}
}

// requests counts requests, also those of a daemon without an early endpoint.
func (e *early) requests() *observe.Requests {
	if e == nil {
		return observe.NewRequests()
	}
	return e.counted
}

// begun is called with a broker that listens, before it accepts its first connection.
func (e *early) begun(b *broker.Broker) {
	if e == nil {
		return
	}
	if e.late != nil {
		e.late.Stop()
	}
	tellLog(b, e.lines)
	e.broker.Store(b)
}

func (e *early) status() broker.Status {
	if b := e.broker.Load(); b != nil {
		return b.Status()
	}
	return broker.Status{Version: version, PID: os.Getpid()}
}

func (e *early) traffic(each func(*broker.TopicRow)) (t broker.TrafficStatus, ok bool) {
	if b := e.broker.Load(); b != nil {
		t, ok = b.Traffic(each)
	}
	return t, ok
}

// calls is as traffic, of functions.
func (e *early) calls(each func(*broker.FunctionRow)) (t broker.CallStatus, ok bool) {
	if b := e.broker.Load(); b != nil {
		t, ok = b.Calls(each)
	}
	return t, ok
}

func (e *early) look() (l broker.Look, there bool) {
	b := e.broker.Load()
	if b == nil {
		return l, false
	}
	return b.Look(), true
}

func (e *early) alive() {
	if b := e.broker.Load(); b != nil {
		b.Alive()
	}
}

func (e *early) ready() error {
	if d := e.daemon.Load(); d != nil {
		return d.ready()
	}
	if b := e.broker.Load(); b != nil && b.Status().Taking {
		return errTakingOver
	}
	return errors.New("the broker is starting")
}

func (e *early) nats() *natsbridge.Status {
	if d := e.daemon.Load(); d != nil {
		return d.natsStatus()
	}
	return nil
}

func (e *early) hosts() *machines.Status {
	if d := e.daemon.Load(); d != nil && d.hosts != nil {
		s := d.hosts.Status()
		return &s
	}
	return nil
}

func (e *early) names() []names.Status {
	if d := e.daemon.Load(); d != nil && d.names != nil {
		return d.names.Status()
	}
	return nil
}

// errTakingOver is why clients should wait.
var errTakingOver = errors.New("the broker is taking over from the previous broker")

// startHTTP starts the endpoint that the settings ask for; nil: none.
func startHTTP(s *settings.Settings, e *early, log *slog.Logger) (*observe.Server, error) {
	if s.HTTP == "" {
		return nil, nil
	}
	guard := guardOf(s)
	if guard.Network == "unix" && filepath.Dir(guard.Address) == filepath.Clean(s.Dir) {
		// The broker, which comes later, checks it, and says why it cannot be made.
		if err := os.MkdirAll(s.Dir, 0o700); err != nil {
			log.Debug("the runtime directory cannot be made for the HTTP endpoint", "error", err)
		}
	}
	return observe.Start(observe.Options{Guard: guard, Version: version, Requests: e.counted, Broker: e.status, Ready: e.ready, NATS: e.nats, Hosts: e.hosts, Names: e.names, Log: log, LogStatus: e.lines.Status,
		Traffic: e.traffic, Calls: e.calls, Look: e.look, Alive: e.alive})
}

// guardOf is where the endpoint is, and what it asks for.
func guardOf(s *settings.Settings) observe.Guard {
	g := observe.Guard{PProf: s.PProf, Topics: int(s.MetricsTopics), Functions: int(s.MetricsFunctions), Token: s.Files.HTTPToken, Cert: s.Files.HTTPCert}
	g.Network, g.Address, _ = settings.ParseHTTP(s.HTTP, true) // checked by Load
	return g
}

// formerHas tells whether the broker that runs at the address of this one has the same HTTP
// endpoint, or its port, which is free once that one has handed over.
func formerHas(s *settings.Settings) bool {
	st, err := statefile.Read(s.Dir)
	if err != nil {
		return false
	}
	port := portOf(s.HTTP)
	return slices.ContainsFunc(st.Settings, func(setting string) bool {
		address, is := strings.CutPrefix(setting, "--http=")
		return is && (address == s.HTTP || port != "" && portOf(address) == port)
	})
}

// portOf is the port of an HTTP endpoint, "" of one at a Unix socket.
func portOf(http string) string {
	network, address, err := settings.ParseHTTP(http, true)
	if err != nil || !strings.HasPrefix(network, "tcp") {
		return ""
	}
	_, port, _ := net.SplitHostPort(address)
	return port
}

// startHTTPLate starts the endpoint after a broker that was replaced has ended, if that had the
// address. The broker has clients by now and goes on without the endpoint, which attend opens
// once it can: another process may have the address for a moment, such as a broker that waits to
// replace this one.
func (d *daemon) startHTTPLate(ctx context.Context, s *settings.Settings, e *early, why error) {
	if former := d.broker.Previous(); former != nil {
		select {
		case <-former:
		case <-ctx.Done():
		case <-time.After(d.drainTime()):
		}
		d.endpoint, why = startHTTP(s, e, d.log)
	}
	logHTTP(d.endpoint, d.log)
	if why != nil {
		d.log.Error("the HTTP endpoint cannot be opened: there are no probes, page and metrics until it is; the broker tries again every second", "error", why)
	}
}

// httpPause is between two attempts to open the endpoint.
const httpPause = time.Second

// openHTTP opens the endpoint that the settings ask for, if it is not open. It tells whether none is lacking.
func (d *daemon) openHTTP(s *settings.Settings) bool {
	if d.endpoint != nil || s.HTTP == "" || d.draining.Load() { // one that ends leaves the address to the next
		return true
	}
	endpoint, err := startHTTP(s, d.early, d.log)
	if err != nil {
		return false // as was logged at the start
	}
	d.endpoint = endpoint
	logHTTP(endpoint, d.log)
	return true
}

func logHTTP(endpoint *observe.Server, log *slog.Logger) {
	if endpoint != nil {
		log.Info("HTTP endpoint", "address", endpoint.Addr())
	}
}

// closeHTTP ends the endpoint.
func closeHTTP(endpoint *observe.Server) {
	if endpoint == nil {
		return
	}
	bounded, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	endpoint.Close(bounded)
}
