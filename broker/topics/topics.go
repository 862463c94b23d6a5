package topics

import (
	"fmt"
	"iter"
	"log/slog"

	"github.com/baton-ipc/baton/broker/alarm"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Topics are the topics, queues and names of a broker, and the sessions in them.
type Topics struct {
	log    *slog.Logger
	clock  *alarm.Clock
	store  *sessionfiles.Store
	memory *memory.Memory
	watch  Watcher

	topics     [protocol.MaxTopics]*Topic
	topicTable record.Table
	named      map[topicKey]*Topic
	tokens     map[string]*Topic
	joins      record.Table
	nameRoom   nameRoom
	groups     int                 // of all topics
	left       map[*group]struct{} // that have members which are no more and may hold what they claimed
	draining   map[*Topic]struct{} // deleted ones that keep something
	ended      Traffic
	endedCalls CallTotals // of functions that are no more
	noTraces   bool       // of errors of functions, at their callers
	dropped    map[Dropped]uint64
	freed      uint64 // claims of members that had left, for others to take
	opening    uint64 // counts openings whose numbers were chosen here
	parties    map[*sessionfiles.SessionFile]*Party
	lanesIn    map[*sessionfiles.SessionFile]map[*Lane]struct{} // live and adopted ones
	adopted    map[*Topic]int                                   // lanes
	holdings   map[*Holding]struct{}
	unread     map[*Lane]struct{} // what they name is in files that were not handed over yet
}

// Watcher is notified of what happens to topics. Its methods return at once.
type Watcher interface {
	// Changed says that the lanes, readers, groups or state of a topic have changed.
	Changed()
	// Named says that a name was set or deleted.
	Named(*Topic)
	// EndedAgreed says that the session has ended with which a name goes, whose revision of a number hosts have agreed on.
	EndedAgreed(namespace, name string, revision uint64)
	// Understood says that what a lane names is known now, or is of no interest any
	// more: it calls for the broker's refcounts to be lowered to what Recount says.
	Understood()
	// Provided says that OverNATS may list other functions than before.
	Provided()
	// Adopted says that there is something for DropKept or Drain.
	Adopted()
}

// New makes topics, none yet, over a store and a memory that have the same broker
// file.
func New(store *sessionfiles.Store, m *memory.Memory, clock *alarm.Clock, log *slog.Logger, watch Watcher) *Topics {
	return &Topics{log: log, clock: clock, store: store, memory: m, watch: watch,
		named: map[topicKey]*Topic{}, dropped: map[Dropped]uint64{}, tokens: map[string]*Topic{},
		parties: map[*sessionfiles.SessionFile]*Party{}, lanesIn: map[*sessionfiles.SessionFile]map[*Lane]struct{}{}, adopted: map[*Topic]int{}, left: map[*group]struct{}{}, draining: map[*Topic]struct{}{}, unread: map[*Lane]struct{}{}, holdings: map[*Holding]struct{}{},
		topicTable: record.NewTable(record.NewShares("topics, queues and names", "close or delete some: baton ls topics lists them", protocol.MaxTopics), 16),
		joins:      record.NewTable(record.NewShares("places for openers and readers", "close topics that are not used", record.MaxJoins), 16),
		nameRoom:   nameRoom{record.NewTable(record.NewShares("places for names", "delete some", nameLanes), 16)}}
}

// used are the topics by number, nil where one is free, as far as numbers were given out.
func (ts *Topics) used() []*Topic { return ts.topics[:ts.topicTable.Used()] }

// Used returns from which number on no topic was ever made.
func (ts *Topics) Used() int { return len(ts.used()) }

// Client is notified of what happens to the lanes of a session. Its methods return at once.
type Client interface {
	// Trim says that the session's file has room again where a lane was, or that a name
	// which it has open was deleted.
	Trim()
	// Collect says that messages of its lanes were dropped, for which it still pays.
	Collect()
}

// Process reports on the process of a session. Its methods return at once.
type Process interface {
	// Evicted tells whether the session was ended by an operator, or since its user may not have one.
	Evicted() bool
	// Exit tells how it has ended, as far as it is known.
	Exit() sys.Exit
	// Began tells when it began, 0 where that is not known, and of which user it is.
	Began() (start uint64, uid uint32)
}

// Party is what one session takes part in, while it lasts.
type Party struct {
	*sessionfiles.SessionFile
	// Namespace is where its names and topics are.
	Namespace string

	// Process is that of the session.
	Process Process

	// LivesOn: when it leaves, its process lives, and goes on reading and writing what it holds.
	LivesOn bool

	client  Client
	topics  map[*Topic]*member
	names   map[*Topic]struct{} // ephemeral
	touched map[*Topic]struct{} // by Leave

	openings map[uint64]*Topic     // by their numbers
	left     sessionfiles.Received // by readers that are no more
	// sent and its bytes are those of lanes that are no more.
	sent, sentBytes uint64
}

// Who is the name of a session in messages: programs of one name can be told apart.
func (s *Party) Who() string { return whoIs(s.Name, s.PID) }

func whoIs(session string, pid int) string { return fmt.Sprintf("%s (pid %d)", session, pid) }

// Open makes the party of a session.
func (ts *Topics) Open(p *sessionfiles.SessionFile, namespace string, c Client) *Party {
	s := &Party{SessionFile: p, Namespace: namespace, client: c, topics: map[*Topic]*member{}, names: map[*Topic]struct{}{}, openings: map[uint64]*Topic{}}
	ts.parties[p] = s
	return s
}

// Close closes the files of all groups.
func (ts *Topics) Close() {
	for g := range ts.allGroups() {
		g.file.Close()
	}
}

// Groups counts the groups of all topics, those included whose files are missing.
func (ts *Topics) Groups() int { return ts.groups }

// EachHolder lists each group with the holder that it counts for.
func (ts *Topics) EachHolder(f func(record.Holder)) {
	for g := range ts.allGroups() {
		f(g.holder())
	}
}

// allGroups lists the groups of all topics.
func (ts *Topics) allGroups() iter.Seq[*group] {
	return func(yield func(*group) bool) {
		for _, t := range ts.used() {
			if t == nil {
				continue
			}
			for _, g := range t.groups {
				if g != nil && !yield(g) {
					return
				}
			}
		}
	}
}

// findGroup finds the group with an id; nil when there is none.
func (ts *Topics) findGroup(id uint64) *group {
	for g := range ts.allGroups() {
		if g.id == id {
			return g
		}
	}
	return nil
}

// Counts says how many there are.
type Counts struct {
	Topics, Queues, Functions, Names, AdoptedLanes int
}

// Counts counts.
func (ts *Topics) Counts() (n Counts) {
	for _, t := range ts.used() {
		switch {
		case t == nil:
		case t.kind == protocol.TopicKindTopic:
			n.Topics++
		case t.kind == protocol.TopicKindQueue:
			n.Queues++
		case t.kind == protocol.TopicKindFunction:
			n.Functions++
		case t.name.set:
			n.Names++
		}
	}
	for _, lanes := range ts.adopted {
		n.AdoptedLanes += lanes
	}
	return n
}
