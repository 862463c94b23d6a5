package broker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/baton-ipc/baton/broker/record"
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
	fresh    bool   // the instance's directory was made by this broker
	id       string // instance as text
	started  time.Time

	accepted chan struct{} // closed when no more connections are accepted
	quit     chan struct{} // closed when the broker must end by itself
	quitOnce sync.Once
	quitErr  error

	mu        sync.Mutex // guards all below and every shared page the broker writes
	closing   bool
	broker    mapped
	file      record.File // of broker
	reserved  [protocol.BrokerBytes / reserveStep]bool
	chunks    handles.Chunks
	own       *pages // slot 0: the broker's row and the lanes of names
	conns     map[*conn]struct{}
	slots     [protocol.MaxSessions]*session
	slotTable table
	pages     map[uint64]*pages // by serial: the living, and the remains of the dead
	idle      *alarm

	chunkOf      [protocol.MaxChunks]*chunk
	chunkTable   table
	segments     [protocol.MaxSegments]*segment
	segmentTable table
	used         uint64 // bytes of all segments
	unreserved   map[*segment]struct{}
	collected    time.Time             // when idle owners were last asked to collect
	asking       *alarm                // they are to be asked again, when the pause is over
	refused      map[*session]struct{} // a grant, since memory last came free

	topics     [protocol.MaxTopics]*topic
	topicTable table
	named      map[topicKey]*topic
	tokens     map[string]*topic
	joins      table
	remains    table
	nameRoom   nameRoom

	leases     map[uint64]*lease
	leaseTable table

	devices []*device // by number

	caretaker *alarm // runs while there are orphans or adopted lanes
	careDelay time.Duration
	orphans   map[*segment]struct{}
	adopted   map[*topic]int // lanes
	free      handles.FreeTest
	mirror    *mirror // nil while nobody mirrors

	state stateFile
	extra map[string]func() any // parts of status that others add

	taking  *takeover          // while the broker waits for the clients of a dead one
	missing map[fileKey]uint64 // inodes of files that were not handed over yet
	inodes  uint64             // device of the files' inodes
	foreign bool               // process numbers in the files are of another namespace
	blank   []byte             // stands for missing session files
}

// New makes a broker: takes the runtime directory's lock, makes the shared
// files, or takes over those of a broker that died (which takes until its clients
// are back, at most Config.RecoverWait), and listens. Clients are served from
// then on; the caller calls Serve. ctx bounds the start only: when it ends during a
// takeover, New returns its error and leaves the takeover to the next broker. Other
// errors: ErrConflict when another broker runs (naming its process), ErrInvalid for
// a socket path that is too long, ErrPermissionDenied for a directory that others
// can write, else what the system said.
func New(ctx context.Context, cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		cfg: cfg, log: cfg.Log, started: time.Now(),
		quit: make(chan struct{}), accepted: make(chan struct{}),
		conns: map[*conn]struct{}{}, pages: map[uint64]*pages{},
		unreserved: map[*segment]struct{}{}, refused: map[*session]struct{}{},
		named: map[topicKey]*topic{}, tokens: map[string]*topic{},
		leases: map[uint64]*lease{}, orphans: map[*segment]struct{}{}, adopted: map[*topic]int{},
		extra:        map[string]func() any{},
		slotTable:    newTable(protocol.MaxSessions, 16),
		chunkTable:   newTable(protocol.MaxChunks, 4),
		segmentTable: newTable(protocol.MaxSegments, 16),
		topicTable:   newTable(protocol.MaxTopics, 16),
		joins:        newTable(record.MaxJoins, 16),
		leaseTable:   newTable(protocol.MaxLeases, 16),
		remains:      newTable(record.MaxRemains, 16),
		nameRoom:     nameRoom{newTable(nameLanes, 16)},
	}
	b.slotTable.claim(protocol.BrokerSlot)
	if err := b.occupy(); err != nil {
		return nil, err
	}
	if err := b.setUp(ctx); err != nil {
		b.end(false)
		return nil, err
	}
	return b, nil
}

// setUp makes or takes over the shared files and listens.
func (b *Broker) setUp(ctx context.Context) error {
	if err := b.findFiles(); err != nil {
		return err
	}
	if err := b.listen(); err != nil {
		return err
	}
	go func() {
		defer close(b.accepted)
		b.accept()
	}()
	if err := b.await(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.writeState(); err != nil {
		return err
	}
	b.checkIdle()
	return nil
}

// findFiles begins a new instance or the takeover of a former one. It has the
// mutex: what is taken over may have alarms that are due.
func (b *Broker) findFiles() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, err := b.findPredecessor()
	if err != nil {
		return err
	}
	if before == nil {
		return b.begin()
	}
	return b.startTakeover(before)
}

// begin makes the files of a new instance.
func (b *Broker) begin() error {
	rand.Read(b.instance[:])
	b.id = hex.EncodeToString(b.instance[:])
	if err := b.openFiles(); err != nil {
		return err
	}
	m, err := b.newFile(protocol.RoleBroker, protocol.RestoreBroker, 0, protocol.BrokerSlot, protocol.BrokerBytes)
	if err != nil {
		return err
	}
	b.useBrokerFile(m)
	if err := b.reserveTables(); err != nil {
		return err
	}
	b.inodes = m.device
	// Another broker must not take the files over while this one lives.
	if err := m.fd.Lock(false); err != nil {
		return fmt.Errorf("lock the broker file: %w", err)
	}
	b.file.SetBoot(sys.BootID())
	b.file.SetDir(b.cfg.Dir)
	b.file.SetPIDNamespace(sys.PIDNamespace(processID))
	return b.makeOwnPages()
}

// openFiles makes the place of a new instance's files.
func (b *Broker) openFiles() error {
	if b.cfg.MemoryDir == "" {
		b.files = memfds{}
		return nil
	}
	d := directory{filepath.Join(b.cfg.MemoryDir, instancePrefix+b.id)}
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return protocol.Errorf(protocol.CodeInvalid, "name a --memory-dir that this user can make and write to",
			"cannot make the folder of this broker's memory: %w", err)
	}
	b.files, b.fresh = d, true
	return nil
}

func (b *Broker) useBrokerFile(m mapped) {
	b.broker, b.file = m, record.Of(m.region)
	clear(b.reserved[:])
	b.chunks = b.file.Chunks()
	b.free = handles.FreeTest{Chunks: b.chunks, Row: b.rowOf}
}

// serial gives out the next serial: one counter for sessions, chunks, segments,
// topics and groups, so that nothing is ever mistaken for its predecessor.
func (b *Broker) serial() uint64 { return b.file.NextSerial() }

func (b *Broker) lastSerial() uint64 { return b.file.LastSerial() }

// ID is the broker's instance, the `host` of its handles.
func (b *Broker) ID() string { return b.id }

// Socket is the path that the broker listens at.
func (b *Broker) Socket() string { return b.cfg.Socket }

// Serve runs until ctx ends, the broker has been idle for
// Config.IdleExit, or it cannot go on; only then it returns an error. It tells
// clients, removes the socket and frees everything. Call it once.
func (b *Broker) Serve(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-b.quit:
	}
	b.end(true)
	return b.quitErr
}

// end closes every connection, then frees everything.
func (b *Broker) end(clean bool) {
	b.mu.Lock()
	b.closing = true
	conns := make([]*conn, 0, len(b.conns))
	for c := range b.conns {
		conns = append(conns, c)
	}
	b.mu.Unlock()
	if b.listener != nil {
		b.listener.Close()
		<-b.accepted
	}
	for _, c := range conns {
		c.event(func(p *pending) { p.closing = true })
		c.finish()
	}
	for _, c := range conns {
		<-c.ended
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tearDown(clean)
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
	if b.mirror != nil {
		shm.WakeBell(b.own.bell.region)
		b.mirror = nil // it looks, under the lock, before it touches a page
	}
	if b.listener != nil {
		b.removeSocket()
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
		if g != nil && g.view != nil {
			g.view.Close()
		}
	}
	for _, p := range b.pages {
		p.close()
	}
	if b.blank != nil {
		sys.Unmap(b.blank)
	}
	keep := b.keepsNames() || !clean && !b.fresh
	b.broker.close()
	b.file = record.File{}
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
	if sys.IsNoDescriptors(err) {
		return protocol.Errorf(protocol.CodeTooMany, "raise the broker's limit of open files (ulimit -n)", "%w", err)
	}
	return protocol.Errorf(protocol.CodeInternal, "see the broker's log", "%w", err)
}
