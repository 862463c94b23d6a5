package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// NamesState says how far the mirror of names is.
type NamesState string

// States of the mirror.
const (
	NamesUnused      NamesState = "unused"      // no name yet, so no bucket
	NamesDeferred    NamesState = "deferred"    // no client of the embedded server, so no bucket: the first one finds all names
	NamesMirrored    NamesState = "mirrored"    // the buckets hold what was set, all of it
	NamesPartly      NamesState = "partly"      // and some names are left out, or their keys are others'
	NamesBehind      NamesState = "behind"      // something is being written, or waits for the connection
	NamesUnavailable NamesState = "unavailable" // Error says why; tried again
)

// deferred is the state of names while no client of NATS can look at them.
const deferred = "deferred until a client of NATS connects"

// Status is a snapshot for diagnostics and metrics. It holds no secrets.
type Status struct {
	Mode       string      `json:"mode"` // ModeEmbedded or ModeJoined
	URL        string      `json:"url"`  // of the server connected to, else all that are tried
	Connected  bool        `json:"connected"`
	Since      time.Time   `json:"since"` // of the present state
	Reconnects uint64      `json:"reconnects"`
	Published  uint64      `json:"published"` // messages handed to the connection
	Dropped    uint64      `json:"dropped"`   // messages that the broker missed or refused, that were lost before the connection had them, or that the server refused
	Names      NamesStatus `json:"names"`
	// Functions are how many functions are called over NATS; nil: the broker has none called.
	Functions *int `json:"functions,omitempty"`
	// Service tells why the broker is not, or not wholly, among the services of NATS.
	Service string `json:"service,omitempty"`
	// Refused are the rights that the server does not grant the broker.
	Refused []Refusal `json:"refused,omitempty"`
	// LastError stays when it is over; it tells what happened last, and when.
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
}

// NamesStatus is the state of the mirror of names.
type NamesStatus struct {
	State      NamesState `json:"state"`
	Buckets    int        `json:"buckets"`    // namespaces with names, now or once
	Names      int        `json:"names"`      // names that are set
	Mirrored   int        `json:"mirrored"`   // of these, those that stand in their buckets
	References int        `json:"references"` // of these, those that are too large and stand there by reference
	Foreign    int        `json:"foreign"`    // names that are set and whose keys are other brokers'
	LeftOut    int        `json:"left_out"`   // names that are set and cannot stand there
	Pending    int        `json:"pending"`    // keys still to be written or removed
	// Owners are some of the brokers that have keys of Foreign.
	Owners []ForeignOwner `json:"owners,omitempty"`
	Error  string         `json:"error,omitempty"`
}

// String tells people how far the mirror is.
func (s *NamesStatus) String() string {
	text := string(s.State)
	switch s.State {
	case NamesDeferred:
		text = deferred
	case NamesPartly:
		text = fmt.Sprintf("%d of %d mirrored", s.Mirrored, s.Names)
	}
	for _, part := range []struct {
		n    int
		what string
	}{{s.References, "by reference"}, {s.Foreign, "with another broker's key"}, {s.LeftOut, "left out"}} {
		if part.n > 0 {
			text += fmt.Sprintf(", %d %s", part.n, part.what)
		}
	}
	return text
}

// Status tells how things are. It never waits for the network.
func (b *Bridge) Status() Status {
	s := Status{Mode: ModeEmbedded, Connected: b.link.connected.Load(),
		Published: b.published.Load(), Dropped: b.dropped.Load()}
	if b.server == nil {
		s.Mode = ModeJoined
	}
	l := b.link
	l.mu.Lock()
	s.Since, s.LastError = l.since, l.lastErr
	s.URL = l.target
	if s.Connected {
		s.URL = l.url
	}
	if l.ups > 1 {
		s.Reconnects = l.ups - 1
	}
	if !l.lastErrAt.IsZero() {
		at := l.lastErrAt
		s.LastErrorAt = &at
	}
	l.mu.Unlock()
	s.Names = b.names.status(s.Connected)
	s.Service, s.Refused = b.service.why(), l.refusals.list()
	if b.cfg.Call != nil {
		n := b.service.count()
		s.Functions = &n
	}
	if b.server != nil && b.server.noNames != "" {
		s.Names.State, s.Names.Error = NamesUnavailable, b.server.noNames
	}
	return s
}

func (n *names) status(connected bool) NamesStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := NamesStatus{State: NamesUnused, Buckets: len(n.spaces), Error: n.err}
	behind := false
	for _, s := range n.spaces {
		out.Names += s.live
		behind = behind || len(s.keys) > 0 && s.looked != s.asked
		for name, k := range s.keys {
			switch {
			case k.holder != nil:
				out.Foreign++
			case k.left != "" && !k.deleted:
				out.LeftOut++
			case k.wanted() && s.mirrored(name, k):
				out.Mirrored++
				if k.reference {
					out.References++
				}
			}
			if !n.resting && (k.holder == nil || k.holder.gone) && (s.isDirty(name) || k.unsure) {
				out.Pending++
			}
		}
	}
	out.Owners = n.foreignLocked()
	switch {
	case out.Buckets == 0:
	case n.resting:
		out.State = NamesDeferred
	case connected && n.err != "":
		out.State = NamesUnavailable
	case !connected || behind || out.Pending > 0:
		out.State = NamesBehind
	case out.Foreign > 0 || out.LeftOut > 0:
		out.State = NamesPartly
	default:
		out.State = NamesMirrored
	}
	return out
}

// broadcast wakes all that wait for a change.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func (c *broadcast) next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ch == nil {
		c.ch = make(chan struct{})
	}
	return c.ch
}

func (c *broadcast) send() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ch != nil {
		close(c.ch)
		c.ch = nil
	}
}

// Wait returns nil as soon as ok accepts the status. It looks whenever the
// connection or the mirror of names has changed, not at each message. The errors are
// the context's, with the status, and protocol.ErrClosed.
func (b *Bridge) Wait(ctx context.Context, ok func(Status) bool) error {
	for {
		next := b.change.next()
		s := b.Status()
		if ok(s) {
			return nil
		}
		select {
		case <-next:
		case <-b.ctx.Done():
			return fmt.Errorf("wait for NATS: %w", protocol.ErrClosed)
		case <-ctx.Done():
			why := errors.New("no error seen")
			if s.LastError != "" {
				why = errors.New(s.LastError)
			}
			return fmt.Errorf("wait for NATS (connected: %t, names: %s, %v): %w", s.Connected, s.Names.State, why, ctx.Err())
		}
	}
}
