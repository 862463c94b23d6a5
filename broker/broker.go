package broker

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/custody"
	"github.com/baton-ipc/baton/broker/leases"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/internal/lasting"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Broker is one running broker. [New] makes it and listens, [Broker.Serve] runs
// it and frees everything.
type Broker struct {
	cfg      Config // what Change changes of it is guarded by mu
	access   atomic.Pointer[Access]
	log      *slog.Logger
	sparing  *sparing
	lock     *sys.FD
	listener *net.UnixListener
	// ownSocket is the file at which listener was bound; zero once it is removed.
	ownSocket sys.FileID
	// activated: a service manager has bound the socket, so this broker does not remove its file.
	activated bool
	anew      bool   // the instance is new: nothing is another broker's
	fresh     bool   // the instance's directory was made by this broker
	id        string // instance as text
	started   time.Time

	accepted chan struct{} // closed when no more connections are accepted
	quit     chan struct{} // closed when the broker must end by itself
	quitOnce sync.Once
	quitHow  ending
	quitErr  error
	over     chan struct{} // closed when everything is freed
	hosts    atomic.Pointer[Hosts]
	hostsAre chan struct{} // closed once hosts are set
	names    Names         // agrees on names with other hosts; read once namesAre is closed
	namesAre chan struct{}
	provided chan struct{} // has room for one: functions that are called over NATS may have changed
	// succession is what another living broker has handed over; nil: none has.
	succession *succession

	kept []string // names in the descriptor store that are not needed any more

	mu          guard // guards all below, the components, and every shared page the broker writes
	closing     bool
	awaitingEnd bool // clients have been sent the event that the broker stops
	clock       *alarm.Clock
	store       *sessionfiles.Store
	memory      *memory.Memory
	conns       map[*conn]bool // false: it is being refused
	connShares  record.Shares
	mostConns   int // since the memory for them was last given back
	slots       [protocol.MaxSessions]*session
	slotTable   record.Table
	idle        *alarm.Alarm

	topics  *topics.Topics
	leases  *leases.Leases
	custody *custody.Files

	assigning   *alarm.Alarm // files lack custodians
	assignAgain *alarm.Alarm // sessions were asked to keep them
	reaper      *alarm.Alarm // runs while there are orphans or adopted lanes
	reapDelay   time.Duration
	nextReap    int
	closed      map[*session]struct{} // that still hold
	away        map[*session]struct{} // disconnected, of programs that exec may replace
	unheard     map[*session]struct{} // evicted, whose clients may not know it yet
	forked      map[*session]struct{} // of processes that ended while they forked
	mirror      *mirror               // nil while there is none
	telling     []chan struct{}       // closed when the mirror has told all names

	state stateFile
	// why the state file cannot be written, and the rest of the place not be kept
	stateTrouble, placeTrouble lasting.Trouble
	files                      fileLimit
	extra                      map[string]func() any // parts of status that others add
	deaths                     uint64
	takeover                   *TakeoverStatus

	short   shortage
	begun   bool         // the place is this broker's, with a state file that says so
	taking  *gathering   // while the broker waits for the previous broker's clients
	inodes  uint64       // device of the files' inodes
	looking bool         // for programs that are gone
	look    *alarm.Alarm // when it looks next
	foreign bool         // process numbers in the files are of another namespace
}

// New makes a broker: takes the runtime directory's lock, makes the shared
// files, or takes over those of a broker that died (which takes until its clients
// are back, at most Config.RecoverWait), and listens. Clients are served from
// then on; the caller calls Serve. ctx bounds the start only: when it ends during a
// takeover, New returns its error and leaves the takeover to the next broker. Other
// errors: ErrConflict when another broker runs (it names the process), ErrInvalid for
// a socket path that is too long, ErrPermissionDenied for a directory that others
// can write, else what the system said.
func New(ctx context.Context, cfg Config) (*Broker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{
		cfg: cfg, log: cfg.Log, sparing: newSparing(cfg.Log), started: time.Now(),
		quit: make(chan struct{}), accepted: make(chan struct{}), over: make(chan struct{}), provided: make(chan struct{}, 1), hostsAre: make(chan struct{}), namesAre: make(chan struct{}),
		conns: map[*conn]bool{}, connShares: record.NewShares("connections", "close sessions, or raise the broker's limit of open files", connLimit()), store: sessionfiles.NewStore(cfg.Log), extra: map[string]func() any{},
		closed: map[*session]struct{}{}, away: map[*session]struct{}{}, forked: map[*session]struct{}{}, unheard: map[*session]struct{}{},
		slotTable: record.NewTable(record.NewShares("sessions", "end some of them: baton ls sessions lists them", protocol.MaxSessions), 16),
	}
	b.access.Store(&cfg.Access)
	b.mu.observe = cfg.ObserveHold
	b.store.MayHave, b.store.MayKeep = b.mayHave, b.mayKeep
	b.clock = alarm.NewClock(&b.mu)
	b.custody = custody.New()
	b.store.Gone = b.custody.Gone
	b.memory = memory.New(memory.Limits{Memory: cfg.Memory, SessionMemory: cfg.SessionMemory, DeviceMemory: cfg.DeviceMemory,
		SessionDeviceMemory: cfg.SessionDeviceMemory, MemoryDir: cfg.MemoryDir, ReadMemory: cfg.ReadMemory}, b.store, b.clock, cfg.Log)
	b.memory.LetGo(b.letGo)
	b.topics = topics.New(b.store, b.memory, b.clock, cfg.Log, watcher{b})
	b.topics.NoTraces(cfg.NoRemoteTraces)
	b.leases = leases.New(b.store, b.memory, b.clock, cfg.Log, b.checkIdle)
	b.leases.LimitUnread(cfg.UnreadLimit)
	b.memory.GiveUp(b.leases)
	b.memory.KeptFor(memory.Kept{Names: b.topics.EachOfNames, Leases: b.leases.Each})
	b.slotTable.Claim(protocol.BrokerSlot, record.Holder{})
	if err := b.take(ctx); err != nil {
		return nil, err
	}
	if err := b.setUp(ctx); err != nil {
		b.end(endFailed)
		return nil, err
	}
	return b, nil
}

// setUp makes or takes over the shared files and listens.
func (b *Broker) setUp(ctx context.Context) error {
	if err := b.findFiles(); err != nil {
		return err
	}
	if b.listener == nil {
		if activated, err := b.useActivated(); err != nil {
			return err
		} else if !activated {
			if err := b.listen(); err != nil {
				return err
			}
		}
	}
	if b.cfg.Early != nil {
		b.cfg.Early(b)
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
	if err := b.writeState(); sys.IsNoDescriptors(err) {
		// There may be no descriptor while many clients connect: keepPlace writes it later.
		b.log.Error("cannot write the state file yet: too many files are open (ulimit -n)", "error", err)
	} else if err != nil {
		return err
	}
	b.forgetKept()
	b.checkIdle()
	b.keepPlace()
	b.watchMemory()
	b.begun = true
	b.noteTakeover()
	return nil
}

// findFiles begins a new instance or the takeover of the previous broker's. It has the
// mutex: what is taken over may have alarms that are due.
func (b *Broker) findFiles() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.succession != nil {
		return nil // all is here
	}
	before, err := b.findPrevious()
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
	rand.Read(b.store.Instance[:])
	b.id = hex.EncodeToString(b.store.Instance[:])
	if err := b.lookAtFiles(); err != nil {
		return err
	}
	if err := b.files.checkBegin(); err != nil {
		return err
	}
	if err := b.openFiles(); err != nil {
		return err
	}
	m, err := b.store.NewFile(protocol.RoleBroker, protocol.RestoreBroker, 0, protocol.BrokerSlot, protocol.BrokerBytes)
	if err != nil {
		return err
	}
	b.useBrokerFile(m)
	if err := b.store.ReserveHead(); err != nil {
		return err
	}
	b.inodes = m.Device
	if err := b.store.MakeBells(); err != nil {
		return err
	}
	// Another broker must not take the files over while this one lives.
	if err := m.FD.Lock(false); err != nil {
		return fmt.Errorf("lock the broker file: %w", err)
	}
	b.store.Record.SetBoot(sys.BootID())
	b.store.Record.SetDir(b.cfg.Dir)
	b.store.Record.SetPIDNamespace(sys.PIDNamespace(processID))
	return b.makeOwnFile()
}

// openFiles makes the place of a new instance's files.
func (b *Broker) openFiles() error {
	b.anew, b.store.Files = true, b.placeOfFiles()
	if d, ok := b.store.Files.(sessionfiles.Directory); ok {
		if err := d.Make(); err != nil {
			return err
		}
		b.fresh = true
	}
	return nil
}

// placeOfFiles is where this broker's instance has its files.
func (b *Broker) placeOfFiles() sessionfiles.Maker {
	if b.cfg.MemoryDir == "" {
		return sessionfiles.Memfds{}
	}
	return b.folderOf(b.id)
}

// folderOf is the folder of an instance in the memory directory.
func (b *Broker) folderOf(instance string) sessionfiles.Directory {
	return sessionfiles.Directory{Path: filepath.Join(b.cfg.MemoryDir, sessionfiles.InstancePrefix+instance)}
}

func (b *Broker) useBrokerFile(m sessionfiles.File) {
	b.store.UseBrokerFile(m)
	b.memory.UseRecord()
}

// ID is the broker's instance, the `host` of its handles.
func (b *Broker) ID() string { return b.id }

// Socket is the path that the broker listens at.
func (b *Broker) Socket() string { return b.cfg.Socket }

// Serve runs until ctx ends, Stop is called, the broker has been idle for
// Config.IdleExit, or it cannot go on; only then it returns an error. At the end of
// ctx it leaves everything to the broker that comes next, as a kill would; Stop and
// idleness end it for good. It notifies clients, removes the socket and closes all that
// it has. Call it once.
func (b *Broker) Serve(ctx context.Context) error {
	how := endLeave
	select {
	case <-ctx.Done():
	case <-b.quit:
		how = b.quitHow
	}
	b.end(how)
	return b.quitErr
}

// Quit is closed once a request asks the broker to end, or it cannot go on.
func (b *Broker) Quit() <-chan struct{} { return b.quit }

// end closes every connection, then frees everything.
func (b *Broker) end(how ending) {
	defer close(b.over)
	b.mu.Lock()
	b.closing = true
	b.clock.Stop()
	b.awaitingEnd = how.final()
	conns := make([]*conn, 0, len(b.conns))
	var open []*conn
	for c := range b.conns {
		conns = append(conns, c)
		if s := c.session; s != nil && s.state != protocol.SessionClosed {
			open = append(open, c)
		}
	}
	if b.listener != nil && how != endHanded {
		b.removeSocket() // while it is open: its number is no other file's
	}
	b.mu.Unlock()
	if b.listener != nil {
		b.listener.Close()
		<-b.accepted
	}
	for _, c := range conns {
		c.event(func(p *pending) { p.closing, p.stopped = !how.final(), how.final() })
	}
	if how.final() {
		b.awaitClients(open)
	}
	for _, c := range conns {
		c.finish()
	}
	for _, c := range conns {
		<-c.ended
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tearDown(how)
}

// tearDown frees everything. The mutex is held.
func (b *Broker) tearDown(how ending) {
	if how == endUnserved {
		how = b.unserved()
	}
	if how == endLeave {
		b.leaveState()
		b.leaveFiles()
	}
	keep := b.keeps(how)
	if how == endFailed && b.anew {
		b.removeState()
	}
	if how.final() {
		b.removeState()
		if b.store.Record.Valid() {
			b.store.Record.SetEnded(!keep)
		}
	}
	if b.mirror != nil {
		b.store.Bells.Wake(protocol.BrokerSlot)
		b.mirror = nil // it looks, under the lock, before it touches a page
	}
	if b.listener != nil && how != endHanded {
		b.removeSocket()
	}
	for _, s := range b.used() {
		if s == nil {
			continue
		}
		if s.process != nil {
			s.process.Stop()
		}
		s.alive.Close()
	}
	b.topics.Close()
	b.memory.Close()
	b.store.Close()
	if b.store.Files != nil {
		b.store.Files.Leave(keep)
	}
	b.state.close()
	if b.lock != nil {
		b.lock.Close()
	}
}

// AddStatus adds a part to the answer of `status`, computed at each request
// without the broker's mutex held.
func (b *Broker) AddStatus(name string, part func() any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.extra[name] = part
}

var errEnding = &protocol.Error{Code: protocol.CodeBrokerLost,
	Message: "the broker is ending", Remedy: "connect again"}
