package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

const (
	lockFile     = "nats.lock"
	startTimeout = 10 * time.Second // for the connection to our own server
)

// Bridge is a broker's link to NATS. Make it with Start, end it with Close.
type Bridge struct {
	cfg    Config
	lock   *sys.FD
	server *embedded     // nil when joined
	wired  chan struct{} // closed when what follows is there
	link   *link
	outbox *outbox
	names  *names
	// service is the broker as services of NATS are listed.
	service *service
	change  broadcast

	published, dropped atomic.Uint64

	ctx      context.Context // ends with the connection
	cancel   context.CancelFunc
	linkDone chan struct{}
	keeping  sync.WaitGroup // of keepPlace, whose the lock is meanwhile

	closing  sync.Once
	closed   chan struct{}
	closeErr error
}

// Start starts the embedded server, or begins to join the operator's, and writes
// nats.json. It returns when the embedded server is ready; a joined one may come
// later or never, which Status tells and Wait waits for. ctx bounds the start only.
//
// Errors: ErrConfig (code InvalidArgument), ErrLocked and ErrPortTaken (Busy),
// ErrServer (Internal), or that of the runtime directory. Nothing is left running.
func Start(ctx context.Context, cfg Config) (*Bridge, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	var options nats.Options
	if cfg.Join != nil {
		if options, err = cfg.Join.options(); err != nil {
			return nil, err
		}
	}
	if err := sys.CheckPrivateDir(cfg.RuntimeDir); err != nil {
		return nil, err
	}
	lock, err := takeLock(cfg.RuntimeDir)
	if err != nil {
		return nil, err
	}
	former := formerLife(cfg.RuntimeDir)
	b := &Bridge{cfg: cfg, lock: lock, wired: make(chan struct{}), linkDone: make(chan struct{}), closed: make(chan struct{})}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	var info Info
	if cfg.Join == nil {
		info, options, err = b.startServer()
	} else {
		info = joinedInfo(cfg.Join, options.Servers)
		info.Owner = cfg.Owner
	}
	if err != nil {
		b.cancel()
		return nil, errors.Join(err, b.release(context.WithoutCancel(ctx)))
	}
	b.signLock()
	b.link = newLink(options, info.URL, cfg.Logger, b.change.send)
	b.link.onUp, b.link.onDown = b.up, func() { b.names.interrupt() }
	b.outbox = newOutbox(cfg.QueueBytes)
	self := cfg.identity()
	b.names = newNames(cfg, self, b.link, b.change.send)
	if cfg.Join != nil {
		b.names.former = former
	}
	b.service = newService(self, b.link, b.names, b.stats, cfg)
	b.names.enter = b.service.update
	b.link.refusals.refused, b.link.refusals.granted = b.refused, b.service.granted
	close(b.wired)
	go func() {
		defer close(b.linkDone)
		b.link.run(b.ctx)
	}()
	go b.outbox.run(b.send)
	if b.server != nil {
		wait, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		if err := b.Wait(wait, func(s Status) bool { return s.Connected }); err != nil {
			if ctx.Err() == nil {
				err = protocol.Errorf(protocol.CodeInternal, "see the log", "%v: %w", err, ErrServer)
			}
			return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
		}
	}
	if err := info.write(cfg.RuntimeDir); err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	b.keeping.Go(func() { b.keepPlace(info) })
	return b, nil
}

// Functions says which functions are called over NATS, all of them. Without Config.Call there are none.
func (b *Bridge) Functions(all []Function) {
	if b.cfg.Call != nil {
		b.service.list(all)
	}
}

// up is called with each connection, before it is used.
func (b *Bridge) up() {
	b.service.update()
	b.names.up()
}

// refused is called with what the server does not permit.
func (b *Bridge) refused(l *lackingRight) {
	b.names.refused(l)
	b.service.refused(l)
	if l.publish && strings.HasPrefix(l.subject, "baton.") {
		b.dropped.Add(1) // the connection had taken it
	}
}

// stats is what STATS has of the broker.
//
// The library calls it with the lock of a service, which an update of the service takes below the service's own:
// it asks nothing of the service.
func (b *Bridge) stats() serviceStats {
	n := b.names.status(b.link.connected.Load())
	return serviceStats{Published: b.published.Load(), Dropped: b.dropped.Load(), Names: n.Names, Mirrored: n.Mirrored}
}

// ready returns when a client of the embedded server that comes now finds each name that
// was set before, if names can be mirrored at all.
func (b *Bridge) ready(ended context.Context) {
	select {
	case <-b.wired:
	case <-ended.Done():
		return
	}
	if b.server.noNames != "" {
		return
	}
	if b.cfg.Tell != nil {
		b.cfg.Tell(ended)
	}
	b.names.show(ended)
}

// takeLock makes this the only bridge of the directory.
func takeLock(dir string) (*sys.FD, error) {
	lock, err := sys.OpenLock(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, inTheWay(err)
	}
	if err := lock.Lock(false); err != nil {
		lock.Close()
		if sys.IsLocked(err) {
			return nil, locked(dir)
		}
		return nil, err
	}
	return lock, nil
}

// startServer starts the embedded server on its former port if that is free.
func (b *Bridge) startServer() (Info, nats.Options, error) {
	key, path, err := seedKey(b.cfg.RuntimeDir)
	if err != nil {
		return Info{}, nats.Options{}, err
	}
	b.server, err = startEmbedded(b.cfg, key, b.formerPort(), b.ready)
	if err != nil {
		return Info{}, nats.Options{}, err
	}
	info := newInfo(ModeEmbedded, b.server.url())
	info.Seed = path
	options, err := b.server.options()
	return info, options, err
}

func joinedInfo(j *JoinConfig, urls []string) Info {
	i := newInfo(ModeJoined, displayURLs(urls))
	i.User, i.TLSFirst = j.User, j.TLSFirst
	// Other processes have other working directories.
	for _, f := range []struct {
		from string
		to   *string
	}{{j.Creds, &i.Creds}, {j.Seed, &i.Seed}, {j.CA, &i.CA}, {j.Cert, &i.Cert}, {j.Key, &i.Key}} {
		if f.from == "" {
			continue
		}
		*f.to = f.from
		if abs, err := filepath.Abs(f.from); err == nil {
			*f.to = abs
		}
	}
	return i
}

// release ends the server, if there is one, and gives the directory free. When ctx
// ends first, both happen later.
func (b *Bridge) release(ctx context.Context) error {
	if b.server == nil {
		return b.lock.Close()
	}
	return b.server.stop(ctx, func() { b.lock.Close() })
}

// Close sends what is queued, removes the names from a joined server (unless they are
// kept), closes the connection, ends the embedded server and removes nats.json. When
// ctx ends first the rest is cut short and the error says at what; so it is when a joined server
// does not answer any more (ErrSilent). Later calls wait for the first and return its result. What a file of the
// credentials keeps, on a file system that does not answer, goes on when Close has returned (ErrStuck).
func (b *Bridge) Close(ctx context.Context) error {
	b.closing.Do(func() {
		go func() {
			defer close(b.closed)
			b.closeErr = b.close(ctx)
		}()
	})
	select {
	case <-b.closed:
		return b.closeErr
	case <-ctx.Done():
	}
	select {
	case <-b.closed:
		return b.closeErr
	case <-time.After(lastMoment):
		return fmt.Errorf("close NATS: %w", ErrStuck)
	}
}

// lastMoment is how long it may take to cut the end short.
const lastMoment = time.Second

func (b *Bridge) close(ctx context.Context) error {
	var errs []error
	b.outbox.close()
	up := b.link.connected.Load() // without a connection nothing is sent, and that is no failure
	ctx, silent := context.WithCancelCause(ctx)
	defer silent(nil)
	// At its end so does the connection: a callback of nats.go may wait for a server that reads nothing, with what is
	// closed below locked.
	defer context.AfterFunc(ctx, b.cancel)()
	if b.server == nil { // another one's server may be suspended, or be cut off
		defer b.link.whileAnswering(func() { silent(ErrSilent) })()
	}
	if err := b.names.close(ctx); err != nil && up {
		errs = append(errs, err)
	}
	b.service.close() // after its keys: as long as they stand it answers for them
	if err := b.Flush(ctx); err != nil && up {
		errs = append(errs, err)
	}
	b.cancel()
	<-b.linkDone
	<-b.outbox.ended
	b.keeping.Wait()
	errs = append(errs, b.removeInfo(), b.release(ctx))
	b.change.send()
	if context.Cause(ctx) == ErrSilent {
		errs = []error{ErrSilent}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close NATS: %w", err)
	}
	return nil
}
