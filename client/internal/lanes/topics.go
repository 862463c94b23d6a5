package lanes

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/client/internal/turn"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Broker is what topics ask a broker for.
type Broker interface {
	Call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)
	// CallUntil waits for a broker as long as ctx lasts.
	CallUntil(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error)
	// Undo has this broker, or the next one, take back what a request may have made.
	Undo(op string, body any)
	IsAway() bool
	// AwayFor tells for how long it has been so, 0 while there is a broker.
	AwayFor() time.Duration
	// UntilAway returns a context that ends with the connection, too.
	UntilAway(ctx context.Context) (context.Context, context.CancelFunc)
	// Epoch counts the brokers, or connections, that came after the first.
	Epoch() uint64
	// Typed writes a command that is to be typed, and that reaches this broker and the session's namespace.
	Typed(sub string, args ...string) string
}

// Topics are the topics, queues and names that a session has open, and its readers.
type Topics struct {
	broker Broker
	files  *sessionfiles.Files
	life   *life.Life
	waits  *waits.Hub
	memory *memory.Memory

	openMu   turn.Turn     // opens and closes of topics take turns
	openings atomic.Uint64 // the number of the last
	readers  atomic.Uint64 // the number that the last reader has
	got      got
	claiming sync.RWMutex // held for reading from the look whether the client is closed to a claim or its acknowledgement

	mu       sync.Mutex // guards what follows
	open     map[uint64]*Topic
	joining  map[uint64]*joining // by number of the reader
	counting map[uint64]struct{} // by place: records of readers
}

// New makes the topics of a new session.
func New(b Broker, p *sessionfiles.Files, l *life.Life, waits *waits.Hub, m *memory.Memory) *Topics {
	return &Topics{broker: b, files: p, life: l, waits: waits, memory: m, openMu: turn.New(),
		open: map[uint64]*Topic{}, joining: map[uint64]*joining{}, counting: map[uint64]struct{}{}}
}

// all lists what is open, to be looked through without the mutex.
func (s *Topics) all() []*Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.open))
}

// Count returns how many are open.
func (s *Topics) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// WithdrawDone gives back messages that queues are finished with, and purged ones.
func (s *Topics) WithdrawDone() {
	for _, t := range s.all() {
		t.withdrawDone()
	}
}

// MarkPeers adds the sessions whose lanes are looked at.
func (s *Topics) MarkPeers(used map[uint64]bool) {
	for _, t := range s.all() {
		if v := t.lanes.Load(); v != nil {
			for _, l := range v.lanes {
				used[l.Serial] = true
			}
		}
	}
}

// AttachAhead considers the newest messages of the topics that are read.
func (s *Topics) AttachAhead(a *memory.Ahead) {
	for _, t := range s.all() {
		t.attachAhead(a)
	}
}

// GroupFiles adds the files of groups that are mapped here, by number of the group.
func (s *Topics) GroupFiles(add func(id uint64, fd *sys.FD)) {
	for _, t := range s.all() {
		for _, g := range t.groups.Load().groups {
			add(g.ID, g.fd)
		}
	}
}

// CloseFiles closes the descriptors of groups; what is in use stays mapped.
func (s *Topics) CloseFiles() {
	for _, t := range s.all() {
		t.closeGroups()
	}
}

// ForgetDeleted leaves names that were read and are not set any more.
func (s *Topics) ForgetDeleted() {
	for _, t := range s.got.forgetDeleted() {
		t.Close()
	}
}

// Join opens or makes a topic or name at the broker, once for this process. request is
// made with the number of the opening.
func (s *Topics) Join(ctx context.Context, op string, request func(opening uint64) any) (*Topic, error) {
	if err := s.openMu.Take(ctx); err != nil { // an open and the last close of one topic must not cross
		return nil, err
	}
	defer s.openMu.End()
	var info protocol.TopicInfo
	opening := s.openings.Add(1)
	if _, err := s.broker.Call(ctx, op, request(opening), &info); err != nil {
		if fault.Uncertain(err) { // a broker may have done it, and the next one count it
			s.broker.Undo(protocol.OpTopicLeave, protocol.TopicLeave{Role: protocol.RoleNameOpen, Opening: opening})
		}
		return nil, err
	}
	if info.Topic >= protocol.MaxTopics || info.Slots == 0 || info.Slots > 2*protocol.MaxDepth || info.Stride < protocol.SlotSize || info.Depth == 0 || info.Depth >= info.Slots {
		return nil, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "topic %q came with impossible sizes", info.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.open[info.ID]
	if t == nil {
		r, waits := s.files.TopicRecord(info.Topic), s.files.Bells.Waits(info.Topic)
		t = &Topic{set: s, Info: info, mu: turn.New(), viewMu: turn.New(), record: r, waits: waits, all: waits.All(), active: waits.Active()}
		t.versionWord, t.idWord, t.stateWord = r.Words()
		t.groups.Store(&groupsView{})
		s.open[info.ID] = t
	}
	t.users = append(t.users, info.Opening)
	return t, nil
}
