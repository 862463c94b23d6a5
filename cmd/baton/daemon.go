package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/logqueue"
	"github.com/baton-ipc/baton/cmd/baton/internal/natscalls"
	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

// daemon is a broker with its link to NATS: what `serve` and `run` hold.
type daemon struct {
	requests *observe.Requests
	broker   *broker.Broker
	bridge   *natsbridge.Bridge // nil: without NATS
	calls    *natscalls.Calls   // nil: no functions over NATS
	hosts    *machines.Machines // nil: no other hosts
	names    *names.Names       // as hosts
	dir      string
	drain    atomic.Int64      // how long the end may take
	force    map[string]string // the settings in force, by key, but the limits, which the broker has
	endpoint *observe.Server   // nil: without HTTP
	early    *early            // nil: it never has HTTP
	log      *slog.Logger
	draining atomic.Bool
}

// natsStatus is the part "nats" of a broker's status.
type natsStatus struct {
	Mode string `json:"mode"` // embedded, joined, off
	// Dir is where nats.json is: it tells a client how to connect.
	Dir   string `json:"dir,omitempty"`
	Error string `json:"error,omitempty"` // why there is none
	*natsbridge.Status
}

// natsOff is the mode of a broker without NATS.
const natsOff = "off"

// newLog makes the log that the settings ask for. Its level may be changed.
func newLog(q *logqueue.Queue, s *settings.Settings) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(s.LogLevel)
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // in JSON, too, as events have it
			a.Value = slog.StringValue(a.Value.Duration().Round(time.Microsecond).String())
		}
		return a
	}}
	handler := func(w io.Writer) slog.Handler {
		if s.LogFormat == "json" {
			return slog.NewJSONHandler(w, options)
		}
		return slog.NewTextHandler(w, options)
	}
	q.OnLoss(func(to io.Writer, lines uint64) error { // at any level: the log has a gap
		r := slog.NewRecord(time.Now(), slog.LevelWarn, "lines of the log were lost here: what reads it was too slow, or it could not be written", 0)
		r.AddAttrs(slog.Uint64("lines", lines))
		return handler(to).Handle(context.Background(), r)
	})
	return slog.New(handler(q)), level
}

// queueLog has what this command says go through a queue: a broker waits for no reader of its log.
// A reader that has gone costs it lines and not its life. SIGPIPE is caught and not ignored, which what it starts would
// inherit.
func (a *app) queueLog() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	a.log = logqueue.New(a.err)
	a.err = a.log
}

// tellLog has a broker's status tell how its log is.
func tellLog(b *broker.Broker, q *logqueue.Queue) {
	b.AddStatus("log", func() any { return q.Status() })
}

// logServing says that the broker serves, and what it is.
func (d *daemon) logServing() {
	d.log.Info("serving", "socket", d.broker.Socket(), "pid", os.Getpid(), "version", version,
		"memory", termtext.Size(d.broker.Status().Memory.Limit), "instance", d.broker.ID())
}

// logEnded says that the broker has ended, and why where that is an error.
func (d *daemon) logEnded(began time.Time, err error) {
	why := "none"
	if err != nil {
		why = protocol.Plain(err)
	}
	d.log.Info("ended", "after", time.Since(began).Round(time.Millisecond), "error", why)
}

// lastLines is how long the last lines of a log may take until they are written, at the end of a process.
const lastLines = time.Second

// flushLog is called before the process ends.
func (a *app) flushLog() {
	if a.log != nil {
		a.log.Flush(lastLines)
	}
}

// startDaemon makes a broker that listens at socket, with dir as its runtime
// directory, and starts NATS. ctx bounds the start only. descriptors, if not nil, keeps
// memory for the next broker, and kept is what it kept of the last one. early, if not nil,
// stands for the broker until it is there.
func startDaemon(ctx context.Context, s *settings.Settings, socket, dir string, log *slog.Logger, descriptors broker.DescriptorStore, kept map[string]*sys.FD, early *early) (*daemon, error) {
	requests, ring := early.requests(), events.New()
	log = slog.New(ring.Handler(log.Handler()))
	b, err := broker.New(ctx, broker.Config{
		Observe: requests.Observe,
		Dir:     dir, Socket: socket, SocketMode: s.SocketMode, Access: accessOf(s), Shared: s.Shared,
		Memory: s.Memory, SessionMemory: s.SessionMemory, MemoryDir: s.MemoryDir,
		NoRemoteTraces: s.NoRemoteTraces,
		DeviceMemory:   s.DeviceMemory, SessionDeviceMemory: s.SessionDeviceMemory,
		UnreadLimit: max(s.UnreadPickles, 1), // 0 of the flag: however young
		IdleExit:    s.IdleExit, Version: version, Log: log, Events: ring, KeepLog: early.keepLog(),
		Supervised: !s.StandIn, Settings: s.Recorded(), Descriptors: descriptors, Kept: kept, Replace: s.Replace, Early: early.begun, Lock: early.hasLock(),
		Hosts:       len(s.Span) > 0,
		Span:        spanOf(s),
		EndsProcess: early != nil, // baton serve: it serves nothing else
	})
	if err != nil {
		return nil, err
	}
	d := &daemon{broker: b, requests: requests, dir: dir, log: log, force: s.Values()}
	d.drain.Store(int64(s.DrainTimeout))
	status := natsStatus{Mode: natsOff}
	if !s.NoNATS {
		if former := b.Previous(); former != nil { // it has the port, and the lock
			select {
			case <-former:
			case <-ctx.Done():
			case <-time.After(s.DrainTimeout):
				log.Warn("the broker that was replaced takes long to end: NATS may find its port taken")
			}
		}
		nats := log.With(events.Of(events.NATS))
		if s.NATSFunctions {
			d.calls = natscalls.New("unix:"+socket, nats)
		}
		d.bridge, err = startBridgeAfter(ctx, s, dir, b, d.calls, nats)
		// A broker that has taken over has what no other broker has: it goes on without NATS.
		fatal := b.Status().Takeover == nil && !errors.Is(err, natsbridge.ErrServer)
		if err != nil && (ctx.Err() != nil || fatal) {
			return nil, errors.Join(err, withdraw(b))
		}
		if err != nil {
			// Hand-overs need no NATS: the broker goes on without.
			log.Error("NATS does not run: tuples and names stay on this machine", events.Of(events.NATS), "error", err)
			status.Error = protocol.Plain(err)
		}
	}
	b.AddStatus("nats", func() any {
		if d.bridge == nil {
			return status
		}
		now := d.bridge.Status()
		return natsStatus{Mode: now.Mode, Dir: dir, Status: &now}
	})
	if err := d.span(s, socket); err != nil {
		if d.bridge != nil {
			err = errors.Join(err, d.bridge.Close(ctx))
		}
		return nil, errors.Join(err, withdraw(b))
	}
	return d, nil
}

// withdraw ends a broker that cannot serve.
func withdraw(b *broker.Broker) error {
	b.Withdraw()
	return b.Serve(context.Background())
}

// startBridgeAfter starts NATS once a broker that ends has left it: that one has handed over or
// left its place, and still writes to NATS what it has to.
func startBridgeAfter(ctx context.Context, s *settings.Settings, dir string, b *broker.Broker, calls *natscalls.Calls, log *slog.Logger) (*natsbridge.Bridge, error) {
	late := time.After(s.DrainTimeout)
	for waits := false; ; waits = true {
		bridge, err := startBridge(ctx, s, dir, b, calls, log)
		if !errors.Is(err, natsbridge.ErrLocked) {
			return bridge, err
		}
		if !waits {
			log.Info("waiting for a broker that ends to leave NATS", "error", protocol.Plain(err))
		}
		select {
		case <-late:
			return nil, err
		case <-ctx.Done():
			return nil, err
		case <-time.After(natsAgain):
		}
	}
}

// natsAgain is the pause between looks whether NATS is free.
const natsAgain = 50 * time.Millisecond

func startBridge(ctx context.Context, s *settings.Settings, dir string, b *broker.Broker, calls *natscalls.Calls, log *slog.Logger) (*natsbridge.Bridge, error) {
	cfg := natsbridge.Config{RuntimeDir: dir, Owner: b.ID(), Logger: log, Tell: b.TellNames, Port: int(s.NATSPort), Version: version,
		Namespace: os.Getenv(address.EnvNamespace),
		Names:     natsbridge.NamesConfig{Keep: s.MemoryDir != ""}}
	if s.NATS != "" {
		cfg.Join = joinConfig(s)
	}
	if calls != nil {
		cfg.Call = calls.Answer
	}
	return natsbridge.Start(ctx, cfg)
}

func joinConfig(s *settings.Settings) *natsbridge.JoinConfig {
	return &natsbridge.JoinConfig{URLs: strings.Split(s.NATS, ","), Creds: s.NATSCreds, Seed: s.NATSNkey,
		User: s.NATSUser, Password: s.NATSPassword, CA: s.NATSCA, Cert: s.NATSCert, Key: s.NATSKey}
}

// errDiscard is the cause of a context with which a broker ends that leaves nothing.
var errDiscard = errors.New("what it was for has ended")

// serve runs the broker until ctx ends, it was stopped, has been idle for long enough,
// or cannot go on. At the end of ctx it leaves everything to the next broker, unless
// the cause is errInterrupted or errDiscard: these stop it. The orderly end takes at
// most the drain timeout. Call it once.
func (d *daemon) serve(ctx context.Context) error {
	mirrorCtx, stopMirror := context.WithCancel(context.Background())
	mirrored := make(chan struct{})
	mirror := func(context.Context) {}
	if d.bridge != nil {
		mirror = d.broker.Mirror(d.bridge) // before the first client sends
	}
	go func() {
		defer close(mirrored)
		mirror(mirrorCtx)
	}()
	called := make(chan struct{})
	go func() {
		defer close(called)
		d.listFunctions(mirrorCtx)
	}()
	served := make(chan error, 1)
	left, leave := context.WithCancel(context.Background())
	defer leave()
	go func() { served <- d.broker.Serve(left) }()

	var err error
	select {
	case err = <-served:
		served <- nil
		d.closeCalls()
		d.closeHosts()
	case <-ctx.Done():
		d.closeCalls()
		d.closeHosts()
		switch context.Cause(ctx) {
		case errInterrupted:
			d.broker.Stop(false)
		case errDiscard:
			d.broker.Stop(true)
		default:
			leave()
		}
	}
	d.draining.Store(true)
	bounded, cancel := context.WithTimeout(context.Background(), d.drainTime())
	defer cancel()
	select {
	case e := <-served:
		err = errors.Join(err, e)
	case <-bounded.Done():
		err = d.late("clients")
	}
	stopMirror()
	select {
	case <-mirrored:
	case <-bounded.Done():
		return errors.Join(err, d.late("tuples"))
	}
	<-called
	if d.bridge != nil {
		if d.broker.HandedOver() {
			d.bridge.KeepNames() // the other broker is the same instance, and goes on with them
		}
		if e := d.bridge.Close(bounded); e != nil {
			// An error of NATS at the end is no failure of the broker.
			d.log.Warn("NATS did not end in order", "error", e)
		}
	}
	return err
}

// listFunctions keeps the list of those that are called over NATS until ctx ends.
func (d *daemon) listFunctions(ctx context.Context) {
	if d.bridge == nil || d.calls == nil {
		return
	}
	for {
		var all []natsbridge.Function
		for _, f := range d.broker.OverNATS() {
			all = append(all, natsbridge.Function(f))
		}
		d.bridge.Functions(all)
		if !d.broker.AwaitOverNATS(ctx) {
			return
		}
	}
}

// closeCalls ends the calls for requests over NATS, before the sessions of clients end.
func (d *daemon) closeCalls() {
	if d.calls != nil {
		d.calls.Close()
	}
}

func (d *daemon) drainTime() time.Duration { return time.Duration(d.drain.Load()) }

func (d *daemon) late(what string) error {
	return protocol.Errorf(protocol.CodeTimeout, "give it longer with --drain-timeout",
		"the broker has not finished with its %s within %s", what, d.drainTime())
}

// ready is the reason why clients should wait, or nil.
func (d *daemon) ready() error {
	switch st := d.broker.Status(); {
	case d.draining.Load() || st.Ending:
		return errors.New("the broker is ending")
	case st.Taking:
		return errTakingOver
	}
	return nil
}

func (d *daemon) natsStatus() *natsbridge.Status {
	if d.bridge == nil {
		return nil
	}
	s := d.bridge.Status()
	return &s
}

// accessOf is which users may connect by the settings.
func accessOf(s *settings.Settings) broker.Access {
	return broker.Access{UIDs: s.AllowUIDs, GIDs: s.AllowGIDs, ObserveUIDs: s.ObserveUIDs, ObserveGIDs: s.ObserveGIDs}
}
