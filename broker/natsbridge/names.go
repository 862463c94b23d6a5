package natsbridge

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/baton-ipc/baton/protocol"
)

const (
	namesBatch   = 256 // keys written between two looks at everything else
	namesTimeout = 10 * time.Second
	ackTimeout   = 5 * time.Second       // of one write
	namesFirst   = 50 * time.Millisecond // delay after the first failure
	namesLast    = 30 * time.Second
)

// names mirrors names in buckets. The callers change the wanted state; one
// goroutine, started by the first name, brings the buckets to it. In the embedded server
// there is neither before a client comes that could look at them (show). Other goroutines
// report changes to it: one for each bucket that is used, and one that asks for the brokers which
// have keys that are wanted here.
type names struct {
	config   NamesConfig
	self     identity
	life     string // of this bridge: tells its entries from those of the same broker's earlier lives
	embedded bool
	link     *link
	log      *slog.Logger
	changed  func()
	enter    func()        // has the service answer for a namespace, before its first key is written
	wake     chan struct{} // cap 1
	ended    chan struct{} // closed by the goroutine
	stop     context.CancelFunc
	ctx      context.Context

	mu       sync.Mutex
	resting  bool   // no client can look: there is no bucket, and none is made
	leaving  bool   // no client has looked for long: the buckets are to be removed
	visits   uint64 // clients that have come
	started  bool
	closed   bool
	told     bool               // the names of earlier lives have been set again
	former   *entry             // the broker that had the directory and did not close; nil: there was none
	searched bool               // its keys were looked for
	cutShort context.CancelFunc // ends the pass under way, if there is one
	spaces   map[string]*space
	owners   map[ownerKey]*owner // other brokers that have keys which are wanted here
	asking   bool                // whether they are there
	muted    map[string]bool     // namespaces in which the server does not let the broker answer
	changes  uint64
	err      string                  // of the last attempt, empty when it went well
	cutVisit context.CancelCauseFunc // ends the visit under way
	news     []ownerNews
	waiting  []showing // clients that are admitted when they find what was set before
	say      []func()  // lines for the log, written without the mutex: a log may be waited for

	// Only for the goroutine, and for Close after it has ended.
	nc *nats.Conn // that js belongs to
	js jetstream.JetStream
}

// showing is a client that waits for changes up to a number.
type showing struct {
	changes uint64
	done    chan struct{}
}

// space is what is wanted in one namespace and what is known of its bucket.
type space struct {
	ns      string
	keys    map[string]*key
	live    int                 // of keys, the names that are set
	dirty   map[string]struct{} // keys whose bucket entry differs or may differ
	asked   uint64              // grows when the bucket may have changed under us
	looked  uint64              // asked as of the last look at the bucket
	created time.Time           // of the bucket that the sequences belong to
	markers bool                // its purge markers may have a time to live
	most    int                 // bytes of a message that the bucket takes, 0: no limit but the server's
	later   bool                // keys that are unsure are looked at when others are

	// Only for the goroutine.
	stream jetstream.Stream
	unlook context.CancelFunc // ends the watch of the bucket
}

func newSpace(ns string) *space {
	return &space{ns: ns, keys: map[string]*key{}, dirty: map[string]struct{}{}, asked: 1}
}

func newNames(cfg Config, self identity, l *link, changed func()) *names {
	ctx, stop := context.WithCancel(context.Background())
	return &names{config: cfg.Names, self: self, life: rand.Text(), embedded: cfg.Join == nil, resting: cfg.Join == nil, link: l, log: cfg.Logger,
		changed: changed, enter: func() {}, wake: make(chan struct{}, 1), ended: make(chan struct{}), ctx: ctx, stop: stop,
		spaces: map[string]*space{}, owners: map[ownerKey]*owner{}, muted: map[string]bool{}}
}

// SetName mirrors a name's value, soon: of values set in quick succession only the
// last is written. short stands in its place where the value is too large for one
// message, with the subject on which the bridge then answers for the value; its
// Sequence is the name's revision. A revision lower than the one known is ignored, so
// that calls may overtake each other. The error is about a wrong namespace or name
// (code InvalidArgument) or a closed bridge (Closed), never of NATS: see Status.
func (b *Bridge) SetName(ns, name string, value []byte, short protocol.TupleReference) error {
	if err := checkName(ns, name); err != nil {
		return err
	}
	return b.names.set(ns, name, func(k *key) {
		k.revision, k.value, k.short, k.left = short.Sequence, bytes.Clone(value), short, ""
	}, short.Sequence)
}

// LeaveOut keeps a set name out of the mirror, and removes its entry there. Status and NameState
// say why. Errors as for SetName.
func (b *Bridge) LeaveOut(ns, name, why string) error {
	if err := checkName(ns, name); err != nil {
		return err
	}
	return b.names.set(ns, name, func(k *key) { k.value, k.left = nil, why }, math.MaxUint64)
}

// DeleteName removes a name from the mirror, soon. A name that was never set is no
// error. Errors as for SetName.
func (b *Bridge) DeleteName(ns, name string) error {
	if err := checkName(ns, name); err != nil {
		return err
	}
	return b.names.remove(ns, name)
}

// NamesTold says that the names which the broker took over from an earlier life have
// been set. Other entries of its earlier lives are removed then.
func (b *Bridge) NamesTold() {
	b.names.mu.Lock()
	defer b.names.mu.Unlock()
	b.names.told = true
	if b.names.former != nil {
		b.names.startLocked()
	}
	b.names.kick()
}

// KeepNames makes Close leave the keys in the buckets: another life of this broker goes
// on with them.
func (b *Bridge) KeepNames() {
	b.names.mu.Lock()
	defer b.names.mu.Unlock()
	b.names.config.Keep = true
}

func checkName(ns, name string) error {
	if err := checkNamespace(ns); err != nil {
		return err
	}
	return protocol.CheckName(name)
}

// checkNamespace refuses namespaces whose buckets are others: the directory of hosts, and those of spanned names.
func checkNamespace(ns string) error {
	if bucketName(ns) == hostsBucket || strings.HasPrefix(bucketName(ns), spanBucket) {
		return protocol.Errorf(protocol.CodeUnsupported, "use another namespace, if clients of NATS are to see its names",
			"names of namespace %s are not mirrored: the bucket %s is for hosts", ns, bucketName(ns))
	}
	return protocol.CheckNamespace(ns)
}

func (n *names) set(ns, name string, change func(*key), revision uint64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("mirror name %s: %w", name, protocol.ErrClosed)
	}
	s := n.spaces[ns]
	if s == nil {
		s = newSpace(ns)
		n.spaces[ns] = s
	}
	k := s.keys[name]
	switch {
	case k == nil:
		k = &key{}
		s.keys[name] = k
		s.live++
	case k.deleted:
		s.live++
	case revision < k.revision:
		return nil
	}
	change(k)
	k.deleted, k.relic, k.reference = false, false, false
	n.changedLocked(s, name, k)
	if !n.resting {
		n.startLocked()
	}
	return nil
}

// startLocked has the goroutine look at everything.
func (n *names) startLocked() {
	if !n.started {
		n.started = true
		go n.run()
	}
	n.kick()
}

// show makes the buckets, where there are none yet, and returns when they hold what was
// wanted before it was called, or cannot be written, or when ctx or the bridge ends.
func (n *names) show(ctx context.Context) {
	n.mu.Lock()
	n.visits++
	n.resting, n.leaving = false, false
	if n.closed || n.shownLocked(n.changes) {
		n.mu.Unlock()
		return
	}
	w := showing{n.changes, make(chan struct{})}
	n.waiting = append(n.waiting, w)
	n.startLocked()
	n.mu.Unlock()
	select {
	case <-w.done:
	case <-ctx.Done():
	case <-n.ctx.Done():
	}
}

// shownLocked tells whether the buckets hold all changes up to a number.
func (n *names) shownLocked(changes uint64) bool {
	for _, s := range n.spaces {
		if len(s.keys) > 0 && s.looked != s.asked {
			return false
		}
		for name := range s.dirty {
			if k := s.keys[name]; k.applied < changes && !k.relic {
				return false
			}
		}
	}
	return true
}

// admit lets clients go on that wait for no more than the last pass has written, and all
// where it failed: what comes of the next one is not known. One that was cut short is
// followed by another as soon as the connection is back.
func (n *names) admit(err error) {
	if errors.Is(err, ErrDisconnected) || errors.Is(err, context.Canceled) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting = slices.DeleteFunc(n.waiting, func(w showing) bool {
		if err == nil && !n.shownLocked(w.changes) {
			return false
		}
		close(w.done)
		return true
	})
}

// changedLocked notes that another state of a key is wanted.
func (n *names) changedLocked(s *space, name string, k *key) {
	n.changes++
	k.change = n.changes
	switch {
	case k.holder == nil:
		s.dirty[name] = struct{}{}
	case !k.wanted(): // and nothing of ours is there
		k.sequence = 0
		n.heldLocked(s, name, k, nil)
		s.markCleanLocked(name, k)
	}
}

func (n *names) remove(ns, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return fmt.Errorf("unmirror name %s: %w", name, protocol.ErrClosed)
	}
	if s := n.spaces[ns]; s != nil {
		if k := s.keys[name]; k != nil && !k.deleted {
			n.removeLocked(s, name, k)
			if n.resting {
				s.markCleanLocked(name, k) // it stands nowhere
			}
			n.kick()
		}
	}
	return nil
}

// removeLocked notes that a key is not wanted any more.
func (n *names) removeLocked(s *space, name string, k *key) {
	s.live--
	k.value, k.left, k.deleted = nil, "", true
	n.changedLocked(s, name, k)
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

// up makes the goroutine compare all buckets, over a connection that is new.
func (n *names) up() {
	n.mu.Lock()
	n.forgetLooksLocked()
	n.mu.Unlock()
	n.look("")
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
	var retry, tick <-chan time.Time
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.wake:
		case <-retry:
		case <-tick:
			tick = nil
			n.lookAround()
		}
		retry = nil
		ctx, cancel := context.WithCancel(n.ctx)
		n.mu.Lock()
		n.cutShort = cancel
		n.mu.Unlock()
		more, err := n.pass(ctx)
		cancel()
		n.admit(err)
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
		if tick == nil && n.watchful() {
			tick = time.After(n.config.Silence / looks)
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
		js, err := jetstream.New(nc, jetstream.WithPublishAsyncTimeout(ackTimeout))
		if err != nil {
			return false, n.failed(fmt.Errorf("use JetStream: %w", err))
		}
		n.nc, n.js = nc, js
	}
	n.enter()
	if l := n.link.refusals.lacks((*lackingRight).forReplies); l != nil {
		return false, n.failed(l) // no answer can come; the link connects again when the right is there
	}
	if err := n.removeBuckets(ctx); err != nil {
		n.log.Debug("buckets that no client looks at stay", "error", err)
	}
	var errs []error
	if err := n.findFormer(ctx); err != nil {
		errs = append(errs, err)
	}
	for _, s := range n.busy() {
		left, err := n.attempt(ctx, s)
		more = more || left
		if err != nil {
			errs = append(errs, fmt.Errorf("bucket %s: %w", bucketName(s.ns), err))
		}
	}
	n.tell()
	return more, n.failed(joined(errs))
}

// refused ends the visit under way if the server does not permit what it needs: no answer comes to what it refuses.
func (n *names) refused(l *lackingRight) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.forNames() && n.cutVisit != nil {
		n.cutVisit(l)
	}
}

// joined is nil without errors, and else all of them in one line.
func joined(errs []error) error {
	if len(errs) < 2 {
		return firstError(errs)
	}
	format := strings.Repeat("; %w", len(errs))[len("; "):]
	all := make([]any, len(errs))
	for i, err := range errs {
		all[i] = err
	}
	return fmt.Errorf(format, all...)
}

// mute notes whether the broker cannot answer in a namespace: what it writes must not say that it does.
func (n *names) mute(ns string, muted bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.muted[ns] == muted {
		return
	}
	n.muted[ns] = muted
	s := n.spaces[ns]
	if s == nil {
		return
	}
	for name, k := range s.keys {
		if k.holder == nil {
			s.dirty[name] = struct{}{}
		}
	}
	n.kick()
}

// busy lists the namespaces whose bucket may differ from what is wanted.
func (n *names) busy() []*space {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*space
	for _, s := range n.spaces {
		if !n.resting && s.behind() {
			out = append(out, s)
		}
	}
	return out
}

// namespaces lists those that have or had names.
func (n *names) namespaces() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.spaces))
}

// behind tells whether the bucket differs or may differ from what is wanted. One
// that holds nothing of ours need not be looked at.
func (s *space) behind() bool {
	return len(s.keys) > 0 && (len(s.dirty) > 0 || s.looked != s.asked)
}

// visit writes what differs in one bucket.
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
	more, err = n.inspect(ctx, s)
	if err == nil {
		var left bool
		left, err = n.write(ctx, s)
		more = more || left
	}
	if err != nil && lostBucket(err) {
		n.mu.Lock()
		s.asked++
		n.mu.Unlock()
	}
	return more, err
}

// attempt is a visit that ends after some time, and at once where the server refuses what it needs.
func (n *names) attempt(ctx context.Context, s *space) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, namesTimeout)
	defer cancel()
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	n.mu.Lock()
	n.cutVisit = cut
	n.mu.Unlock()
	more, err = n.visit(ctx, s)
	var lacks *lackingRight
	if err != nil && errors.As(context.Cause(ctx), &lacks) {
		err = lacks
	}
	return more, err
}

// failed records the result of a pass, and logs a change. It returns the error.
func (n *names) failed(err error) error {
	if errors.Is(err, context.Canceled) {
		return err // by Close, or with the connection
	}
	n.mu.Lock()
	text := ""
	if err != nil {
		text = err.Error()
	} else {
		n.link.refusals.forget(func(l *lackingRight, _ string) bool { return l.publish && l.forNames() })
	}
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
					n.removeLocked(s, name, k)
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
