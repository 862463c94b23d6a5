package broker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Broker is one running broker. [New] makes it and listens, [Broker.Serve] runs
// it and frees everything.
type Broker struct {
	cfg      Config
	log      *slog.Logger
	lock     *sys.FD
	listener *net.UnixListener
	files    maker
	instance [16]byte
	id       string // instance as text
	started  time.Time

	quit     chan struct{} // closed when the broker must end by itself
	quitOnce sync.Once
	quitErr  error

	mu       sync.Mutex // guards all below and every shared page the broker writes
	closing  bool
	broker   mapped
	file     shm.Region // of broker
	chunks   handles.Chunks
	own      *pages // slot 0: the broker's row and the lanes of names
	conns    map[*conn]struct{}
	slots    [protocol.MaxSessions]*session
	nextSlot uint32
	pages    map[uint64]*pages // by serial: the living, and the remains of the dead
	idle     *alarm

	chunkTable  [protocol.MaxChunks]*chunk
	nextChunk   uint32
	segments    [protocol.MaxSegments]*segment
	nextSegment uint32
	used        uint64 // bytes of all segments
	unreserved  map[*segment]struct{}
	collected   time.Time // when idle owners were last asked to collect

	topics     [protocol.MaxTopics]*topic
	nextTopic  uint32
	topicCount int
	named      map[topicKey]*topic
	tokens     map[string]*topic
	joins      table
	nameRoom   nameRoom

	leases     map[uint64]*lease
	leaseTable table

	caretaker *alarm // runs while there are orphans or adopted lanes
	careDelay time.Duration
	orphans   map[*segment]struct{}
	adopted   map[*topic]int // lanes
	free      handles.FreeTest
	mirror    *mirror // nil while nobody mirrors

	extra  map[string]func() any // parts of status that others add
	taking *takeover             // while the broker waits for the clients of a dead one
}

// New makes a broker: takes the runtime directory's lock, makes the shared
// files, or takes over those of a broker that died, and listens. Errors:
// ErrConflict when another broker runs (naming its process), ErrInvalid for a
// socket path that is too long, ErrPermissionDenied for a directory that others
// can write, else what the system said.
func New(cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		cfg: cfg, log: cfg.Log, started: time.Now(),
		quit:  make(chan struct{}),
		conns: map[*conn]struct{}{}, pages: map[uint64]*pages{},
		nextSlot: 1, unreserved: map[*segment]struct{}{},
		named: map[topicKey]*topic{}, tokens: map[string]*topic{},
		leases: map[uint64]*lease{}, orphans: map[*segment]struct{}{}, adopted: map[*topic]int{},
		extra:      map[string]func() any{},
		joins:      newTable(maxJoins),
		leaseTable: newTable(protocol.MaxLeases),
	}
	if err := b.occupy(); err != nil {
		return nil, err
	}
	if err := b.setUp(); err != nil {
		b.mu.Lock()
		b.tearDown(false)
		b.mu.Unlock()
		return nil, err
	}
	return b, nil
}

// setUp makes or takes over the shared files, then listens.
func (b *Broker) setUp() error {
	before, err := b.findPredecessor()
	if err != nil {
		return err
	}
	if before == nil {
		err = b.begin()
	} else {
		err = b.startTakeover(before)
	}
	if err != nil {
		return err
	}
	if err := b.listen(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taking == nil {
		if err := b.writeState(); err != nil {
			return err
		}
		b.checkIdle()
	}
	return nil
}

// begin makes the files of a new instance.
func (b *Broker) begin() error {
	rand.Read(b.instance[:])
	b.id = hex.EncodeToString(b.instance[:])
	if err := b.openFiles(); err != nil {
		return err
	}
	fd, err := b.files.create(protocol.RestoreBroker, 0, protocol.BrokerBytes)
	if err != nil {
		return noMemory(err, "broker file")
	}
	m, err := b.headFile(fd, protocol.RoleBroker, 0, protocol.BrokerSlot, protocol.BrokerBytes)
	if err != nil {
		return err
	}
	b.useBrokerFile(m)
	b.putText(brokerBoot, 40, sys.BootID())
	return b.makeOwnPages()
}

func (b *Broker) useBrokerFile(m mapped) {
	b.broker, b.file = m, m.region
	b.chunks = handles.NewChunks(m.region)
	b.free = handles.FreeTest{Chunks: b.chunks, Row: b.rowOf}
}

// serial gives out the next serial: one counter for sessions, chunks, segments,
// topics and groups, so that nothing is ever mistaken for its predecessor.
func (b *Broker) serial() uint64 { return b.file.Add64(brokerSerial, 1) }

func (b *Broker) lastSerial() uint64 { return b.file.Load64(brokerSerial) }

// ID is the broker's instance, the `host` of its handles.
func (b *Broker) ID() string { return b.id }

// Socket is the path that the broker listens at.
func (b *Broker) Socket() string { return b.cfg.Socket }

// Serve accepts clients until ctx ends, the broker has been idle for
// Config.IdleExit, or it cannot go on; only then it returns an error. It tells
// clients, removes the socket and frees everything. Call it once.
func (b *Broker) Serve(ctx context.Context) error {
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		b.accept()
	}()
	select {
	case <-ctx.Done():
	case <-b.quit:
	}
	b.mu.Lock()
	b.closing = true
	conns := make([]*conn, 0, len(b.conns))
	for c := range b.conns {
		conns = append(conns, c)
	}
	b.mu.Unlock()
	b.listener.Close()
	<-accepted
	for _, c := range conns {
		c.event(func(p *pending) { p.closing = true })
		c.finish()
	}
	for _, c := range conns {
		<-c.ended
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tearDown(true)
	return b.quitErr
}

// stop makes Serve return err.
func (b *Broker) stop(err error) {
	b.quitOnce.Do(func() {
		b.quitErr = err
		close(b.quit)
	})
}

// tearDown frees everything. With clean, the state file goes as well and names
// are kept where files can keep them. The mutex is held.
func (b *Broker) tearDown(clean bool) {
	b.closing = true
	b.mirror = nil // it looks, under the lock, before it touches a page
	if b.listener != nil {
		b.listener.Close()
		b.removeSocket()
	}
	if clean && b.file.Valid() {
		b.endAll()
	}
	for _, s := range b.slots {
		if s != nil && s.stopWaiting != nil {
			s.stopWaiting()
		}
	}
	for _, t := range b.topics {
		if t != nil {
			for _, g := range t.groups {
				if g != nil {
					g.file.close()
				}
			}
		}
	}
	for _, g := range b.segments {
		if g != nil {
			g.view.Close()
		}
	}
	for _, p := range b.pages {
		p.close()
	}
	keep := b.keepsNames()
	b.broker.close()
	b.file = shm.Region{}
	if b.files != nil {
		b.files.leave(keep)
	}
	if clean {
		b.removeState()
	}
	if b.lock != nil {
		b.lock.Close()
	}
}

// AddStatus adds a part to what `status` tells, computed at each request
// without the broker's mutex held.
func (b *Broker) AddStatus(name string, part func() any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.extra[name] = part
}

var errEnding = &protocol.Error{Code: protocol.CodeBrokerLost,
	Message: "the broker is ending", Remedy: "connect again"}

// asError makes an error fit for the socket.
func asError(err error) *protocol.Error {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e
	}
	return protocol.Errorf(protocol.CodeInternal, "see the broker's log", "%w", err)
}
