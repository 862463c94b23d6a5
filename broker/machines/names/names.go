package names

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// setTime is how long one try waits of what is not asked for by a program, and is tried again.
	setTime = 15 * time.Second
	// soonTime is the pause before JetStream is asked again.
	soonTime = 50 * time.Millisecond
	// againTime is that before a bucket that cannot be used is looked at again, lookTime that between looks at the
	// connection.
	againTime = time.Second
	lookTime  = 100 * time.Millisecond
)

// Hosts are the other hosts, as this one reaches them.
type Hosts interface {
	// Current is the connection to NATS, nil while there is none.
	Current() *nats.Conn
	// Fetch brings a storage of another host here.
	Fetch(ctx context.Context, ns string, h protocol.Handle) (protocol.Handle, error)
	// LetGo says that a storage which was fetched need not be kept for others.
	LetGo(ns string, h protocol.Handle)
	// Make gives memory of this host.
	Make(ctx context.Context, ns string, bytes uint64) (machines.Filling, error)
	// Spanning lists the other hosts that span a namespace.
	Spanning(ctx context.Context, ns string) ([]machines.Host, error)
}

// State is what stands here of a name.
type State struct {
	Agreed  protocol.Agreed // of the newest revision or deletion; Revision 0: none
	Set     bool
	Open    bool // a session has it open
	Foreign bool // it came from another host
}

// Value is the present revision of a name.
type Value struct {
	Agreed   protocol.Agreed
	Live     bool
	Setter   string
	Bytes    uint64
	Tensors  uint16
	Body     []byte
	Storages []protocol.Storage
}

// Local is the broker.
type Local interface {
	// Hold gives the present revision of a name, and holds its storages until release is called.
	Hold(ns, name string) (v Value, release func(), found bool, err error)
	// Publish publishes a revision of another host, and redeems the leases of what it names.
	Publish(ns string, r *protocol.NameSet, a protocol.Agreed, setter string, leases []uint64) error
	// Renumber publishes the present revision of a name anew, by another number.
	Renumber(ns, name string, a protocol.Agreed)
	// Read copies the bytes of a storage that was fetched, and redeems its lease.
	Read(ctx context.Context, ns string, h protocol.Handle) ([]byte, error)
	// Deleted takes a name away that was deleted; before is the number of that.
	Deleted(ns, name string, before uint64)
	// Evict lets a revision go that no session has open: one that came from another host, or any that was replaced.
	Evict(ns, name string, replaced bool) (bytes uint64)
	// State tells what stands here of a name, States of all of a namespace, and Namespaces where there are any.
	State(ns, name string) State
	States(ns string) map[string]State
	Namespaces() []string
	// Stale notes whether a newer revision of a name may be set on another host.
	Stale(ns, name string, stale bool)
}

// Setting is a revision that is held here, to be agreed on.
type Setting struct {
	Namespace, Name string
	Number          uint64 // of the request: one that is made again has the same
	Replaces        uint64 // the revision that has to be set now; 0: any, or none
	Bytes           uint64
	Tensors         uint16
	Ephemeral       bool
	Setter          string
	// Won publishes it here, Lost lets it go. One of them is called, once.
	Won  func(protocol.Agreed)
	Lost func()
}

// Config is what names need.
type Config struct {
	Instance, HostName string
	Namespaces         []string // machines.AllNamespaces: all
	Local              Local
	Timeout            time.Duration // of a set or a delete whose caller does not say
	Log                *slog.Logger
}

// Names agrees with other hosts on names.
type Names struct {
	cfg     Config
	hosts   Hosts // set before started is closed
	started chan struct{}
	give    give
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup
	within  atomic.Int64 // ns; stored by SetTimeout, read by each set and delete that begins

	mu     sync.Mutex
	spaces map[string]*space
	closed bool
}

// New makes them. Answer and Evict may be called at once, all else after Start.
func New(cfg Config) *Names {
	n := &Names{cfg: cfg, spaces: map[string]*space{}, started: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	n.SetTimeout(cfg.Timeout)
	n.give = give{n: n, held: map[heldKey]*heldValue{}}
	return n
}

// Start reads the buckets of the namespaces that have names here, and of those that are spanned by their names.
func (n *Names) Start(hosts Hosts) {
	n.hosts = hosts
	close(n.started)
	for _, ns := range n.cfg.Namespaces {
		if ns != machines.AllNamespaces {
			n.space(ns)
		}
	}
	for _, ns := range n.cfg.Local.Namespaces() {
		if n.Spans(ns) {
			n.space(ns)
		}
	}
}

// Spans tells whether a namespace is spanned.
func (n *Names) Spans(ns string) bool { return machines.Spans(n.cfg.Namespaces, ns) }

// space finds the namespace or begins with it.
func (n *Names) space(ns string) *space {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.spaces[ns]
	if s == nil {
		s = newSpace(n, ns)
		n.spaces[ns] = s
		if !n.closed {
			n.work.Go(s.run)
		}
	}
	return s
}

// known are the namespaces that are followed.
func (n *Names) known() []*space {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []*space
	for _, s := range n.spaces {
		all = append(all, s)
	}
	return all
}

// begin runs something that Close waits for, and tells whether it does.
func (n *Names) begin(work func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.work.Go(work)
	}
	return !n.closed
}

// Close ends all. What is not known stays so: the next broker learns it.
func (n *Names) Close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.cancel()
	n.work.Wait()
	n.give.close()
}

// Evict lets revisions of other hosts go that no session here has open, until as many bytes are free, and tells whether
// there were any. Those go first that came ahead and that no session has opened since, then those that came first.
func (n *Names) Evict(bytes uint64) (freed bool) {
	type loose struct {
		space *space
		name  string
		asked bool
		came  time.Time
	}
	var all []loose
	for _, s := range n.known() {
		states := n.cfg.Local.States(s.ns)
		s.mu.Lock()
		for name, st := range states {
			if !st.Set || !st.Foreign || st.Open {
				continue
			}
			l := loose{space: s, name: name, asked: true}
			if k := s.names[name]; k != nil {
				l.asked, l.came = !k.ahead, k.came
			}
			all = append(all, l)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b loose) int {
		if a.asked != b.asked {
			if b.asked {
				return -1
			}
			return 1
		}
		return a.came.Compare(b.came)
	})
	for _, l := range all {
		b := l.space.evict(l.name, false)
		if freed = freed || b > 0; b >= bytes {
			return true
		}
		bytes -= b
	}
	return freed
}

// Here tells whether a session that has just opened a name finds what it may see. Of one that is not set it is not known.
func (n *Names) Here(ns, name string) bool {
	s := n.space(ns)
	s.mu.Lock()
	defer s.mu.Unlock()
	here := s.synced && s.setLocked(name) && s.hereLocked(name)
	if here {
		s.names[name].ahead = false
	}
	return here
}

func (s *space) setLocked(name string) bool {
	k := s.names[name]
	return k != nil && k.set()
}

// hereLocked tells whether the newest revision that is known stands here.
func (s *space) hereLocked(name string) bool {
	k := s.names[name]
	return k == nil || !k.set() || s.n.cfg.Local.State(s.ns, name).Agreed.Revision >= s.epochs.number(k.Seq)
}

// errWaits is the error of what waited for JetStream without a result.
func (s *space) errWaits(what string) error {
	s.mu.Lock()
	why := s.trouble
	s.mu.Unlock()
	if s.n.ctx.Err() != nil {
		return ErrEnds
	}
	const remedy = "look at baton status and the servers of NATS, and try again"
	if why == nil {
		return protocol.Errorf(protocol.CodeUnreachable, remedy, "%s: JetStream has not answered in time", what)
	}
	return protocol.Errorf(protocol.CodeUnreachable, remedy, "%s: %w", what, why)
}
