package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// startWait bounds the start of the broker, endWait the wait for what is left.
const (
	startWait = 20 * time.Second
	endWait   = 10 * time.Second
	lookAgain = 20 * time.Millisecond
)

// private is a broker of our own: its directory, its process and our session.
type private struct {
	dir  string
	lock *sys.FD
	*children
	broker *child
	c      *client.Client
	nats   *nats.Conn
	tuples atomic.Uint64
}

// openPrivate starts a broker in a new directory, connects to it, and subscribes
// to its tuples. Close the private, also after an error.
func openPrivate(ctx context.Context, o Options) (*private, error) {
	p := &private{}
	var err error
	if p.dir, p.lock, err = makeDir(address.TempDir()); err != nil {
		return p, err
	}
	// A file, not a pipe: the broker ends in good order even when we are killed.
	log, err := os.Create(filepath.Join(p.dir, logFile))
	if err != nil {
		return p, fmt.Errorf("make the broker's log: %w", err)
	}
	defer log.Close()
	socket := filepath.Join(p.dir, "broker.sock")
	p.children = &children{env: environment(socket), events: make(chan event)}
	// No configuration file: the user's may join a NATS of his own.
	p.broker, err = p.start("broker", log, syscall.SIGINT, o.Binary, "serve", "--config", os.DevNull, "--address", socket,
		"--runtime-dir", p.dir, "--memory", o.BrokerMemory, "--log-level", "warn")
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	go func() { // no use in waiting for a broker that has ended
		select {
		case <-p.broker.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	p.c, err = client.Connect(ctx, client.WithAddress(socket), client.WithNamespace(namespace), client.WithName("demo"))
	if err == nil {
		err = p.subscribe(ctx)
	}
	if err != nil {
		select {
		case <-p.broker.ended:
			return p, p.brokerFailure()
		default:
			return p, err
		}
	}
	return p, nil
}

// brokerFailure tells what the broker that has ended said last.
func (p *private) brokerFailure() error {
	return fmt.Errorf("%w\n%s", p.broker.failure(), logTail(p.dir))
}

// subscribe counts tuples as any NATS client can.
func (p *private) subscribe(ctx context.Context) error {
	info, err := natsbridge.ReadInfo(p.dir)
	for err != nil {
		if !errors.Is(err, natsbridge.ErrNotRunning) {
			return err
		}
		select {
		case <-time.After(lookAgain):
			info, err = natsbridge.ReadInfo(p.dir)
		case <-ctx.Done():
			return err
		}
	}
	if p.nats, err = info.Connect(nats.Name("baton demo")); err != nil {
		return err
	}
	sub, err := p.nats.Subscribe("baton."+namespace+".topic.>", func(*nats.Msg) { p.tuples.Add(1) })
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = p.nats.FlushWithContext(ctx) // from here on the server knows of it
	}
	if err != nil {
		return fmt.Errorf("subscribe to tuples: %w", err)
	}
	return nil
}

// list counts the rows of one of the broker's listings.
func (p *private) list(ctx context.Context, what string) (int, error) {
	n, cursor := 0, ""
	for {
		var page struct {
			Rows   []json.RawMessage `json:"rows"`
			Cursor string            `json:"cursor"`
		}
		if err := p.c.Broker(ctx, protocol.OpList, map[string]any{"what": what, "cursor": cursor}, &page); err != nil {
			return 0, fmt.Errorf("list %s: %w", what, err)
		}
		n += len(page.Rows)
		if cursor = page.Cursor; cursor == "" {
			return n, nil
		}
	}
}

// left waits until no storage is held, and tells how many still are
// when that takes too long.
func (p *private) left(ctx context.Context) (int, error) {
	end := time.Now().Add(endWait)
	for {
		n, err := p.list(ctx, "storages")
		if err != nil || n == 0 || time.Now().After(end) {
			return n, err
		}
		select {
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
}

// close ends all processes, the broker in good order, and removes the directory.
func (p *private) close() {
	if p.nats != nil {
		p.nats.Close()
	}
	if p.c != nil {
		p.c.Close()
	}
	if p.children != nil {
		p.stopAll()
	}
	if p.dir != "" {
		os.RemoveAll(p.dir)
		p.lock.Close()
	}
}
