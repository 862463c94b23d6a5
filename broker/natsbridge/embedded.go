package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/baton-ipc/baton/protocol"
)

const loopback = "127.0.0.1"

// embedded is the server inside this process.
type embedded struct {
	srv  *server.Server
	key  nkeys.KeyPair
	auth *authenticator
	// noNames says why there is no JetStream, empty if there is.
	noNames string
	log     *serverLog
}

// startEmbedded starts the server; the caller holds the directory's lock. last is
// the port of an earlier life, 0 if there was none. A client is admitted when ready
// returns.
func startEmbedded(cfg Config, key nkeys.KeyPair, last int, ready func(context.Context)) (*embedded, error) {
	public, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("use the NATS key: %w", err)
	}
	port := cfg.Port
	if port != 0 {
		if err := checkPort(port); err != nil {
			return nil, err
		}
	} else if port = last; port == 0 || checkPort(port) != nil {
		port = server.RANDOM_PORT
	}
	e, err := runServer(cfg, public, port, true, ready)
	if err != nil && cfg.Port == 0 && port != server.RANDOM_PORT {
		// Another process may have taken the former port since it was looked at.
		port = server.RANDOM_PORT
		e, err = runServer(cfg, public, port, true, ready)
	}
	if err != nil {
		// Names are a copy: better to go on without JetStream than not at all.
		why := err
		e, err = runServer(cfg, public, port, false, ready)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInternal, "see the log, or join another NATS", "%v: %w", err, ErrServer)
		}
		cfg.Logger.Warn("NATS runs without JetStream: names are not mirrored", "error", why)
		e.noNames = why.Error()
	}
	e.key = key
	return e, nil
}

// checkPort tells whether the port is free now.
func checkPort(port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
	if err == nil {
		return l.Close()
	}
	cause := ErrServer
	if errors.Is(err, syscall.EADDRINUSE) {
		cause = ErrPortTaken
	}
	return protocol.Errorf(protocol.CodeBusy, "choose another port for NATS, or 0 for any",
		"NATS cannot listen on port %d (%v): %w", port, err, cause)
}

func runServer(cfg Config, public string, port int, jetStream bool, ready func(context.Context)) (*embedded, error) {
	auth, err := newAuthenticator(public, ready)
	if err != nil {
		return nil, err
	}
	srv, err := server.NewServer(&server.Options{
		ServerName: "baton",
		Host:       loopback, // an empty one would mean all addresses
		Port:       port,
		NoSigs:     true,
		JetStream:  jetStream,
		// In place of Nkeys, which report a client only when it is in.
		CustomClientAuthentication: auth,
		AlwaysEnableNonce:          true,
		// A client that waits to be admitted takes a PING for a wrong answer.
		DisableShortFirstPing: true,
		StoreDir:              filepath.Join(cfg.RuntimeDir, "nats"),
		// Unset they would mean 75 % of the memory and of the disk.
		JetStreamMaxMemory:     cfg.MaxMemory,
		JetStreamMaxStore:      cfg.MaxStore,
		DisableJetStreamBanner: true,
		// Each client has a cache of its own. Without this one InterestVersion
		// costs the same however many subjects there are.
		NoSublistCache: true,
	})
	if err != nil {
		return nil, err
	}
	log := &serverLog{log: cfg.Logger}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start() // returns when it listens, or after Fatalf
	if why := log.failure(); why != "" {
		auth.end()
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, errors.New(why)
	}
	return &embedded{srv: srv, auth: auth, log: log}, nil
}

// url is where clients of other processes connect.
func (e *embedded) url() string { return e.srv.ClientURL() }

// options of the bridge's own connection, which needs no socket.
func (e *embedded) options() (nats.Options, error) {
	o := nats.GetDefaultOptions()
	for _, opt := range []nats.Option{nats.InProcessServer(&pipes{srv: e.srv}), nats.Nkey(e.auth.own, e.auth.key.Sign)} {
		if err := opt(&o); err != nil {
			return o, fmt.Errorf("connect to the embedded NATS server: %w", err)
		}
	}
	return o, nil
}

// stop ends the server and then calls ended. When ctx ends first, both happen later.
func (e *embedded) stop(ctx context.Context, ended func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.auth.end() // the server waits for clients that wait there
		e.srv.Shutdown()
		e.srv.WaitForShutdown()
		e.key.Wipe()
		e.auth.key.Wipe()
		ended()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the embedded NATS server: %w", ctx.Err())
	}
}

// interest tells whether the subject has a subscriber.
func (e *embedded) interest(subject string) bool {
	return e.srv.GlobalAccount().SubscriptionInterest(subject)
}

// version counts the changes of all subscriptions.
func (e *embedded) version() uint64 {
	subs, err := e.srv.Subsz(&server.SubszOptions{Account: e.srv.GlobalAccount().GetName()})
	if err != nil {
		return 0
	}
	return subs.NumInserts + subs.NumRemoves
}
