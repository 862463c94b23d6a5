package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"log/slog"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
)

// early stands for a broker from before it is there: the HTTP endpoint is the first to answer,
// so that probes hear of a take-over and not of a process that does nothing.
type early struct {
	counted *observe.Requests
	broker  atomic.Pointer[broker.Broker] // it takes over, or serves
	daemon  atomic.Pointer[daemon]        // it serves
}

func newEarly() *early { return &early{counted: observe.NewRequests()} }

// requests are where requests are counted, also those of a daemon that nothing stands for.
func (e *early) requests() *observe.Requests {
	if e == nil {
		return observe.NewRequests()
	}
	return e.counted
}

func (e *early) begun(b *broker.Broker) {
	if e != nil {
		e.broker.Store(b)
	}
}

func (e *early) status() broker.Status {
	if b := e.broker.Load(); b != nil {
		return b.Status()
	}
	return broker.Status{Version: version, PID: os.Getpid()}
}

func (e *early) traffic(each func(*broker.TopicRow)) (t broker.TrafficStatus) {
	if b := e.broker.Load(); b != nil {
		t = b.Traffic(each)
	}
	return t
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

// errTakingOver is why clients should wait.
var errTakingOver = errors.New("the broker is taking over from its predecessor")

// startHTTP starts the endpoint that the settings ask for; nil: none.
func startHTTP(s *settings.Settings, e *early, log *slog.Logger) (*observe.Server, error) {
	if s.HTTP == "" {
		return nil, nil
	}
	o := observe.Options{PProf: s.PProf, Version: version, Requests: e.counted, Broker: e.status, Ready: e.ready, NATS: e.nats, Log: log,
		Traffic: e.traffic, Topics: int(s.MetricsTopics), Look: e.look, Alive: e.alive,
		Cert: s.HTTPCert, Key: s.HTTPKey}
	o.Network, o.Address, _ = settings.ParseHTTP(s.HTTP, true) // checked by Load
	var err error
	if o.Token, err = readToken(s.HTTPToken); err != nil {
		return nil, err
	}
	endpoint, err := observe.Start(o)
	if err != nil {
		return nil, err
	}
	log.Info("HTTP endpoint", "address", endpoint.Addr())
	return endpoint, nil
}

// startHTTPLate starts it where it could not be started before: a broker that was replaced had
// the address until it ended.
func (d *daemon) startHTTPLate(ctx context.Context, s *settings.Settings, e *early, why error) error {
	former := d.broker.Predecessor()
	if former == nil {
		return why
	}
	select {
	case <-former:
	case <-ctx.Done():
	case <-time.After(d.drainTime()):
	}
	var err error
	d.endpoint, err = startHTTP(s, e, d.log)
	return err
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

// readToken reads the only line of a file; "" names none.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("the token of the HTTP endpoint: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, unicode.IsSpace) {
		return "", fmt.Errorf("%s has no token: write one word into it", file)
	}
	return token, nil
}
