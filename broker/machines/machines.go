package machines

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/protocol"
)

// AllNamespaces in Config.Namespaces stands for all.
const AllNamespaces = "*"

// Ways of Config.Data.
const (
	DataAuto = "auto" // direct connections, and NATS if none can be opened
	DataTCP  = "tcp"  // direct connections alone
	DataNATS = "nats" // NATS alone
)

// Values of Config.TLS: whether direct connections are encrypted.
const (
	TLSAuto = "auto" // where NATS is reached by TLS
	TLSOn   = "on"   // always. Bytes go over NATS only where that is reached by TLS
	TLSOff  = "off"  // never
)

// Connection is the connection to NATS.
type Connection interface {
	Current() *nats.Conn // nil while there is none
	LastError() string
	// Refused are the rights that the server does not grant, and what that means.
	Refused() []string
	Close()
}

// Config says what a host gives and takes.
type Config struct {
	Instance string // of this host's broker
	HostName string
	Machine  string // its boot id
	PID      int
	// Namespaces that are spanned; AllNamespaces: all.
	Namespaces []string
	// Connect connects to NATS. up is called with each connection before it is used, and when it has come back.
	Connect func(up func(*nats.Conn)) (Connection, error)
	Memory  Memory
	// Data is one of the ways.
	Data string
	// Listen is the address of the data port, host:port. "": a free port at the address by which NATS is reached.
	Listen string
	// Encrypted: the settings have NATS reached by TLS. A server may want it whatever they say.
	Encrypted bool
	// TLS is one of its values; "": TLSAuto.
	TLS string
	// RemoteMemory bounds the bytes of other hosts that are kept here.
	RemoteMemory uint64
	// Evict lets go of what is held of other hosts and no program has open, until so many bytes are free, and tells
	// whether there was anything; nil: nothing is.
	Evict func(bytes uint64) bool
	// Answers are what else is answered on the subjects of this host, by the last part of the subject. They may take a
	// while; nil is no answer.
	Answers map[string]func(ns string, data []byte) []byte
	Log     *slog.Logger
}

// Machines is this host among others.
type Machines struct {
	cfg    Config
	log    *slog.Logger
	life   string // of this process
	conn   Connection
	source *source
	kept   *kept
	gate   gate
	dir    *directory

	identity *identity // nil: no direct connections
	tcp      *tcp      // nil: the same
	nats     *overNATS // nil: no bytes over NATS
	ways     []Transport

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	listens sync.Once
	// encrypted: a connection to NATS had TLS, whatever the settings say.
	encrypted atomic.Bool

	mu         sync.Mutex
	counts     counts
	overNATS   map[string]string // hosts to which bytes go over NATS though direct connections are allowed, and why
	listenErr  string
	refusedAt  time.Time
	unlogged   int
	subscribed *nats.Conn
	subs       []*nats.Subscription
	twin       bool // another process lives with the same instance
	closed     bool
}

// counts are what is counted, under Machines.mu.
type counts struct {
	fetching, serving         int
	fetched, served, failed   uint64
	fetchedBytes, servedBytes uint64
	bad, refused              uint64
}

func (m *Machines) count(change func(*counts)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.counts)
}

// Start begins to span. It does not wait for NATS. Errors: of the data address, and of the settings for NATS.
func Start(cfg Config) (*Machines, error) {
	m := &Machines{cfg: cfg, log: cfg.Log, life: rand.Text(), overNATS: map[string]string{}}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.source, m.kept, m.dir = newSource(m), newKept(m, cfg.RemoteMemory), newDirectory(m)
	if cfg.Data != DataNATS {
		own, err := newIdentity(cfg.Instance)
		if err != nil {
			m.cancel()
			return nil, err
		}
		m.identity = own
		t, err := newTCP(cfg.Listen, &security{own: own, wanted: m.encrypts, expects: m.source.expects, refused: func(err error) { m.refuse("a direct connection", err) }})
		if err != nil {
			m.cancel()
			return nil, protocol.Errorf(protocol.CodeInvalid, "give --data-listen an address of this machine, and a port that is free or 0", "the data port cannot be opened: %w", err)
		}
		m.tcp = t
		m.ways = append(m.ways, t)
	}
	if cfg.Data != DataTCP {
		m.nats = newOverNATS(cfg.Instance, m.current)
		m.ways = append(m.ways, m.nats)
	}
	ready := make(chan struct{})
	conn, err := cfg.Connect(func(nc *nats.Conn) {
		<-ready
		m.up(nc)
	})
	if err != nil {
		m.cancel()
		m.closeWays()
		return nil, err
	}
	m.conn = conn
	for _, way := range m.ways {
		way.Accept(m.source.serve)
	}
	close(ready)
	m.running.Go(m.dir.run)
	return m, nil
}

// encrypts tells whether direct connections that begin now are encrypted.
func (m *Machines) encrypts() bool {
	switch m.cfg.TLS {
	case TLSOn:
		return true
	case TLSOff:
		return false
	}
	return m.natsEncrypts()
}

// natsEncrypts tells whether NATS is reached by TLS.
func (m *Machines) natsEncrypts() bool {
	if m.cfg.Encrypted || m.encrypted.Load() {
		return true
	}
	nc := m.current()
	if nc == nil {
		return false
	}
	_, err := nc.TLSConnectionState()
	if err == nil {
		m.encrypted.Store(true)
	}
	return err == nil
}

// certificate is the fingerprint of this host's, "" where direct connections are not encrypted or there are none.
func (m *Machines) certificate() string {
	if m.tcp == nil || !m.encrypts() {
		return ""
	}
	return m.identity.print.String()
}

// usesNATS tells whether bytes may go over NATS.
func (m *Machines) usesNATS() bool {
	return m.nats != nil && (m.cfg.TLS != TLSOn || m.natsEncrypts())
}

func (m *Machines) current() *nats.Conn {
	if m.conn == nil {
		return nil
	}
	return m.conn.Current()
}

// payload is how long a piece may be over NATS; 0: none goes that way.
func (m *Machines) payload() uint32 {
	if !m.usesNATS() {
		return 0
	}
	return payload(m.current())
}

// takes is the largest piece that this host takes.
func (m *Machines) takes() uint32 {
	if n := m.payload(); n != 0 {
		return n
	}
	return mostPiece
}

// Spans tells whether a namespace is among those that are spanned.
func Spans(spanned []string, ns string) bool {
	return slices.Contains(spanned, AllNamespaces) || slices.Contains(spanned, ns)
}

func (m *Machines) spans(ns string) bool { return Spans(m.cfg.Namespaces, ns) }

// Current is the connection to NATS, nil while there is none.
func (m *Machines) Current() *nats.Conn { return m.current() }

// Make gives memory of this host.
func (m *Machines) Make(ctx context.Context, ns string, bytes uint64) (Filling, error) {
	return m.cfg.Memory.Make(ctx, ns, bytes)
}

// LetGo says that a storage which was fetched is held by what it was fetched for, and need not be kept for others.
func (m *Machines) LetGo(ns string, h protocol.Handle) { m.kept.letGo(keyOf(ns, &h)) }

// up is called with each connection that is there.
func (m *Machines) up(nc *nats.Conn) {
	if nc.TLSRequired() {
		m.encrypted.Store(true)
	}
	m.listens.Do(func() { m.listenBeside(nc) })
	m.dir.wake()
}

// listenBeside opens the data port at the address by which NATS is reached, if none was given.
func (m *Machines) listenBeside(nc *nats.Conn) {
	if m.tcp == nil || m.cfg.Listen != "" {
		return
	}
	to := nc.ConnectedAddr()
	c, err := net.Dial("udp", to) // nothing is sent: the kernel chooses the address
	if err == nil {
		host, _, _ := net.SplitHostPort(c.LocalAddr().String())
		c.Close()
		err = m.tcp.listen(net.JoinHostPort(host, "0"))
	}
	if err == nil {
		m.tcp.Accept(m.source.serve)
		return
	}
	m.mu.Lock()
	m.listenErr = err.Error()
	m.mu.Unlock()
	m.log.Error("the data port cannot be opened: other hosts get bytes of this one over NATS", "error", err)
}

// subscribe answers other hosts on a connection.
func (m *Machines) subscribe(nc *nats.Conn) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.subscribed == nc {
		return nil
	}
	var subs []*nats.Subscription
	for _, ns := range m.cfg.Namespaces {
		answers := map[string]func(*nats.Msg){
			subjectFetch: m.source.asked,
			subjectPing:  m.pinged,
			subjectData:  m.data,
		}
		for what, answer := range m.cfg.Answers {
			answers[what] = func(msg *nats.Msg) { m.source.answerWith(msg, answer) }
		}
		for what, answer := range answers {
			s, err := nc.Subscribe(protocol.HostSubject(ns, m.cfg.Instance, what), answer)
			if err != nil {
				for _, s := range subs {
					s.Unsubscribe()
				}
				return err
			}
			subs = append(subs, s)
		}
	}
	m.subscribed, m.subs = nc, subs
	return nc.Flush()
}

// unsubscribe answers no more.
func (m *Machines) unsubscribe() {
	m.mu.Lock()
	subs := m.subs
	m.subscribed, m.subs = nil, nil
	m.mu.Unlock()
	for _, s := range subs {
		s.Unsubscribe()
	}
}

// namespaceOf is the namespace of a subject of a host.
func namespaceOf(subject string) string {
	const before = "baton."
	for i := len(before); i < len(subject); i++ {
		if subject[i] == '.' {
			return subject[len(before):i]
		}
	}
	return ""
}

func (m *Machines) data(msg *nats.Msg) {
	if m.usesNATS() {
		m.nats.came(msg)
	}
}

func (m *Machines) pinged(msg *nats.Msg) {
	data, err := json.Marshal(pong{m.life, Lowest, Highest})
	if err == nil {
		err = msg.Respond(data)
	}
	if err != nil {
		m.log.Debug("a ping of another host was not answered", "error", err)
	}
}

// ping asks whether a host is there. known: false if this host's own link is down.
func (m *Machines) ping(ctx context.Context, ns, host string) (alive, known bool) {
	nc := m.current()
	if nc == nil {
		return false, false
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	_, err := nc.RequestWithContext(ctx, protocol.HostSubject(ns, host, subjectPing), nil)
	return err == nil, err == nil || m.current() != nil
}

// explain tells why no host answers for a handle, if the directory knows; nil: it may come.
func (m *Machines) explain(ctx context.Context, ns, host string) error {
	h, found, err := m.dir.find(ctx, host)
	switch {
	case err != nil:
		return nil
	case !found:
		return lost(host, "it is not among the hosts of this NATS (baton ls hosts)")
	case !slices.Contains(h.Namespaces, AllNamespaces) && !slices.Contains(h.Namespaces, ns):
		return notSpanned(ns, "host "+host)
	}
	_, err = agree(h.Lowest, h.Highest, host)
	return err
}

// Fetch brings the storage of a handle of another host here, once for all that ask, and returns a handle of this host
// for it. Errors: Unreachable, HostLost, Expired, Unsupported, OutOfMemory, InvalidHandle, Version, and those of the source.
func (m *Machines) Fetch(ctx context.Context, ns string, h protocol.Handle) (protocol.Handle, error) {
	m.mu.Lock()
	twin := m.twin
	m.mu.Unlock()
	switch {
	case !m.spans(ns):
		return protocol.Handle{}, notSpanned(ns, "this host")
	case twin:
		return protocol.Handle{}, errTwin(m.cfg.Instance)
	case h.Device != "cpu":
		return protocol.Handle{}, onDevice(&h)
	case !isInstance(h.Host):
		return protocol.Handle{}, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "the handle is of no host")
	case h.Bytes == 0 && !h.Empty():
		return protocol.Handle{}, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "the handle names a storage without bytes")
	case h.Empty():
		h.Host, h.ReadOnly = m.cfg.Instance, true
		return h, nil
	}
	return m.kept.open(ctx, ns, &h)
}

// redeem has the lease of a handle redeemed whose bytes are here already. What the source makes of it changes nothing
// here.
func (m *Machines) redeem(ns string, h protocol.Handle) {
	m.begin(func() {
		nc := m.current()
		q, err := json.Marshal(question{Lowest: Lowest, Highest: Highest, Host: m.cfg.Instance, Handle: h, Piece: mostPiece, Claim: true})
		if err != nil || nc == nil {
			return
		}
		ctx, cancel := context.WithTimeout(m.ctx, absentTime)
		defer cancel()
		if _, err := nc.RequestWithContext(ctx, protocol.HostSubject(ns, h.Host, subjectFetch), q); err != nil {
			m.log.Debug("the lease of a handle of another host was not redeemed", "host", h.Host, "error", err)
		}
	})
}

// refuse counts what another host was refused, and logs some of it.
func (m *Machines) refuse(what string, err error) {
	code := protocol.CodeOf(err)
	m.mu.Lock()
	m.counts.refused++
	m.unlogged++
	n := m.unlogged
	now := time.Now()
	due := now.Sub(m.refusedAt) >= time.Minute
	if due {
		m.refusedAt, m.unlogged = now, 0
	}
	m.mu.Unlock()
	if due {
		m.log.Warn(what+" was refused", "code", code, "error", err, "since_last_line", n)
	}
}

// overNATSTo notes whether bytes of a host go over NATS though direct connections are allowed.
func (m *Machines) overNATSTo(host string, why error) {
	m.mu.Lock()
	before, was := m.overNATS[host]
	if why == nil {
		delete(m.overNATS, host)
	} else if len(m.overNATS) < 1024 {
		m.overNATS[host] = why.Error()
	}
	m.mu.Unlock()
	if why != nil && (!was || before != why.Error()) {
		m.log.Warn("bytes go over NATS: no direct connection to the host can be opened", "host", host, "error", why)
	}
}

// begin runs something that Close waits for, and tells whether it does.
func (m *Machines) begin(work func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.running.Go(work)
	}
	return !m.closed
}

func (m *Machines) closeWays() {
	for _, way := range m.ways {
		way.Close()
	}
}

// Close ends all fetches and gives nothing any more. The entry in the directory stays until its time is over: a broker that goes on
// with the instance finds it.
func (m *Machines) Close() {
	m.unsubscribe()
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel()
	m.closeWays()
	m.running.Wait()
	m.source.close()
	m.kept.close()
	m.conn.Close()
	m.cfg.Memory.Close()
}

func errTwin(instance string) error {
	return protocol.Errorf(protocol.CodeConflict, "give one of the two brokers a runtime directory and memory of its own, and do not copy those of another one",
		"another broker lives as host %s, which is this one's", instance)
}
