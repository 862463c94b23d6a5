package natsbridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/baton-ipc/baton/protocol"
)

const (
	namesBatch   = 256 // keys written between two looks at everything else
	namesTimeout = 10 * time.Second
	namesFirst   = 50 * time.Millisecond // delay after the first failure
	namesLast    = 30 * time.Second

	// advisories tell which streams have been deleted.
	advisories = "$JS.EVENT.ADVISORY.STREAM.DELETED."
)

// names mirrors names in buckets. The callers change the wanted state; one
// goroutine, started by the first name, brings the buckets to it.
type names struct {
	config   NamesConfig
	owner    string
	embedded bool
	link     *link
	log      *slog.Logger
	changed  func()
	wake     chan struct{} // cap 1
	ended    chan struct{} // closed by the goroutine
	stop     context.CancelFunc
	ctx      context.Context

	mu       sync.Mutex
	started  bool
	closed   bool
	cutShort context.CancelFunc // ends the pass under way, if there is one
	spaces   map[string]*space
	err      string // of the last attempt, empty when it went well
	rejected uint64

	// The goroutine's own (after it has ended: Close's).
	nc *nats.Conn // that js belongs to
	js jetstream.JetStream
}

// space is what is wanted in one namespace and what is known of its bucket.
type space struct {
	ns      string
	keys    map[string]*key
	live    int                 // of keys, those not deleted
	dirty   map[string]struct{} // keys whose bucket entry differs or may differ
	asked   uint64              // grows when the bucket may have changed under us
	looked  uint64              // asked as of the last look at the bucket
	created time.Time           // of the bucket that the sequences belong to
	markers bool                // its purge markers may have a time to live
}

// key is one name as wanted.
type key struct {
	value    []byte
	revision uint64
	deleted  bool
	sequence uint64 // of our entry in the bucket, 0: none
	change   uint64 // grows with each change, so that the writer sees it was overtaken
}

func newNames(cfg Config, l *link, changed func()) *names {
	ctx, stop := context.WithCancel(context.Background())
	return &names{config: cfg.Names, owner: cfg.Owner, embedded: cfg.Join == nil, link: l, log: cfg.Logger,
		changed: changed, wake: make(chan struct{}, 1), ended: make(chan struct{}), ctx: ctx, stop: stop,
		spaces: map[string]*space{}}
}

// SetName mirrors a name's value, soon: of values set in quick succession only the
// last is written. A revision lower than the one known is ignored, so that calls may
// overtake each other. The error tells of a wrong namespace or name (code
// InvalidArgument) or a closed bridge (Closed), never of NATS: see Status.
func (b *Bridge) SetName(ns, name string, revision uint64, value []byte) error {
	if err := checkName(ns, name); err != nil {
		return err
	}
	return b.names.set(ns, name, revision, bytes.Clone(value))
}

// DeleteName removes a name from the mirror, soon. A name that was never set is no
// error. Errors as for SetName.
func (b *Bridge) DeleteName(ns, name string) error {
	if err := checkName(ns, name); err != nil {
		return err
	}
	return b.names.remove(ns, name)
}

func checkName(ns, name string) error {
	if err := protocol.CheckNamespace(ns); err != nil {
		return err
	}
	return protocol.CheckName(name)
}

func (n *names) set(ns, name string, revision uint64, value []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("mirror name %s: %w", name, protocol.ErrClosed)
	}
	s := n.spaces[ns]
	if s == nil {
		s = &space{ns: ns, keys: map[string]*key{}, dirty: map[string]struct{}{}, asked: 1}
		n.spaces[ns] = s
	}
	k := s.keys[name]
	if k == nil {
		k = &key{}
		s.keys[name] = k
		s.live++
	} else if k.deleted {
		s.live++
	} else if revision < k.revision {
		return nil
	}
	k.value, k.revision, k.deleted = value, revision, false
	k.change++
	s.dirty[name] = struct{}{}
	if !n.started {
		n.started = true
		go n.run()
	}
	n.kick()
	return nil
}

func (n *names) remove(ns, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("unmirror name %s: %w", name, protocol.ErrClosed)
	}
	if s := n.spaces[ns]; s != nil {
		if k := s.keys[name]; k != nil && !k.deleted {
			s.removeLocked(name, k)
			n.kick()
		}
	}
	return nil
}

// removeLocked wants a key gone that was wanted.
func (s *space) removeLocked(name string, k *key) {
	s.live--
	k.value, k.deleted = nil, true
	k.change++
	s.dirty[name] = struct{}{}
}

// kick wakes the goroutine, which then looks at everything.
func (n *names) kick() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// look makes the goroutine compare the buckets with what is wanted: all of them, or
// the one of a stream that has gone.
func (n *names) look(stream string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.spaces {
		if stream == "" || stream == streamName(s.ns) {
			s.asked++
		}
	}
	n.kick()
}

// interrupt ends the pass under way: what it waits for was lost with the connection.
func (n *names) interrupt() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cutShort != nil {
		n.cutShort()
	}
}

// run brings the buckets to the wanted state until the bridge closes.
func (n *names) run() {
	defer close(n.ended)
	failures := 0
	var retry <-chan time.Time
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.wake:
		case <-retry:
		}
		retry = nil
		ctx, cancel := context.WithCancel(n.ctx)
		n.mu.Lock()
		n.cutShort = cancel
		n.mu.Unlock()
		more, err := n.pass(ctx)
		cancel()
		switch {
		case n.ctx.Err() != nil:
			return
		case errors.Is(err, ErrDisconnected), errors.Is(err, context.Canceled):
			// The link looks again when it is up.
		case err != nil:
			failures++
			retry = time.After(min(namesLast, namesFirst<<min(failures-1, 12)))
		default:
			failures = 0
			if more {
				n.kick()
			}
		}
		n.changed()
	}
}

// pass visits each namespace with something to do once. more: something is left.
func (n *names) pass(ctx context.Context) (more bool, err error) {
	nc, _ := n.link.current()
	if nc == nil {
		return false, ErrDisconnected
	}
	if nc != n.nc {
		js, err := jetstream.New(nc)
		if err != nil {
			return false, n.failed(fmt.Errorf("use JetStream: %w", err))
		}
		n.nc, n.js = nc, js
		// Who may not subscribe to these learns of a lost bucket when he next writes.
		_, err = nc.Subscribe(advisories+"*", func(m *nats.Msg) { n.look(m.Subject[len(advisories):]) })
		if err != nil {
			n.log.Debug("no word of deleted buckets", "error", err)
		}
	}
	var errs []error
	for _, s := range n.busy() {
		ctx, cancel := context.WithTimeout(ctx, namesTimeout)
		left, err := n.visit(ctx, s)
		cancel()
		more = more || left
		if err != nil {
			errs = append(errs, fmt.Errorf("bucket %s: %w", bucketName(s.ns), err))
		}
	}
	return more, n.failed(errors.Join(errs...))
}

// busy lists the namespaces whose bucket may differ from what is wanted.
func (n *names) busy() []*space {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*space
	for _, s := range n.spaces {
		if s.behind() {
			out = append(out, s)
		}
	}
	return out
}

// behind tells whether the bucket differs or may differ from what is wanted. One
// that holds nothing of ours need not be looked at.
func (s *space) behind() bool {
	return len(s.keys) > 0 && (len(s.dirty) > 0 || s.looked != s.asked)
}

// visit brings one bucket nearer to what is wanted.
func (n *names) visit(ctx context.Context, s *space) (more bool, err error) {
	n.mu.Lock()
	asked := s.asked
	look := s.looked != asked
	n.mu.Unlock()
	if look {
		if err := n.compare(ctx, s, asked); err != nil {
			return false, err
		}
	}
	more, err = n.write(ctx, s)
	if err != nil && lostBucket(err) {
		n.mu.Lock()
		s.asked++
		n.mu.Unlock()
	}
	return more, err
}

// failed records what an attempt came to, and logs news.
func (n *names) failed(err error) error {
	if errors.Is(err, context.Canceled) {
		return err // by Close, or with the connection
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	n.mu.Lock()
	news := text != n.err
	n.err = text
	n.mu.Unlock()
	if news && err != nil {
		n.log.Warn("names are not mirrored", "error", text)
	} else if news {
		n.log.Info("names are mirrored again")
	}
	return err
}

// close ends the goroutine and, if ctx allows, writes what is left: all names are
// removed from a joined server unless they are kept.
func (n *names) close(ctx context.Context) error {
	n.mu.Lock()
	n.closed = true
	started := n.started
	if !n.embedded && !n.config.Keep {
		for _, s := range n.spaces {
			for name, k := range s.keys {
				if !k.deleted {
					s.removeLocked(name, k)
				}
			}
		}
	}
	n.mu.Unlock()
	n.stop()
	if !started {
		return nil
	}
	<-n.ended
	if n.embedded {
		return nil // the buckets end with the server
	}
	for {
		more, err := n.pass(ctx)
		if err != nil {
			return fmt.Errorf("write the last names to NATS: %w", err)
		}
		if !more {
			return nil
		}
	}
}
