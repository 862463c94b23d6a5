package broker

import (
	"context"
	"time"

	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Publisher is where tuples and names go: NATS, through natsbridge.Bridge. Its
// methods return at once and may be called from any goroutine.
type Publisher interface {
	// Publish queues copies of messages up to the first that is refused, and
	// returns how many that is. Message i is text[bounds[i]:bounds[i+1]].
	Publish(subject string, text []byte, bounds []int) int
	// Missed counts messages that Publish is never given: they were overwritten before the
	// mirror had them, or cannot be described.
	Missed(n uint64)
	// Queued tells how many bytes are queued.
	Queued() int
	// Interest tells whether the subject has a subscriber.
	Interest(subject string) bool
	// InterestVersion changes when the answers of Interest may have changed.
	InterestVersion() uint64
	// InterestMayChange tells whether that may be soon. Where it becomes true, TellNames
	// is called.
	InterestMayChange() bool
	// SetName mirrors a name. short is what stands for a value that is too large for
	// one message, without the place where it can be fetched and how it is divided.
	SetName(ns, name string, value []byte, short protocol.TupleReference) error
	// LeaveOut takes a name that is set out of the mirror, for a reason.
	LeaveOut(ns, name, why string) error
	DeleteName(ns, name string) error
	// NamesTold says that all names which were set before it began have been set there.
	NamesTold()
	// NameState describes how far a name is mirrored.
	NameState(ns, name string) string
}

const (
	// mirrorPace is how often the mirror looks while there is traffic, by its own
	// clock: half of the delay that it may add to a message.
	mirrorPace = 500 * time.Microsecond
	// wakePace is how often senders wake it at most: it sleeps until one does only
	// when it was not woken for so long.
	wakePace = time.Millisecond
	// interestPace is how often it asks whether there is a subscriber.
	interestPace = 250 * time.Millisecond
	// alonePace is how often it asks while no client is there that could subscribe. TellNames
	// wakes it when one comes.
	alonePace = 5 * time.Second
	// restPace is how long it sleeps without a topic. There is nothing to subscribe
	// to then; the first lane and the first name ring, from this very process.
	restPace = time.Minute
	// mirrorBatch bounds the messages that are copied under the broker's lock.
	mirrorBatch = 128
	// mirrorFetch is how many messages before it copies one it starts to fetch it:
	// what a sender has written is in the cache of another processor.
	mirrorFetch = 4
	// mirrorAhead is how many bytes the mirror lets queue before it leaves messages
	// beyond one batch in their lanes until it looks again.
	mirrorAhead = 256 << 10
)

// mirror publishes the tuple of each message that a topic still keeps when it
// looks. It is one more reader of a topic while that has a subscriber, and
// holds no sender up. Under the broker's lock it only copies; what it copied is
// described and published without. It belongs to one goroutine; what it shares
// with the broker is guarded by the broker's lock.
type mirror struct {
	b       *Broker
	to      Publisher
	origin  protocol.Origin // of all tuples, without their senders
	parking shm.Parking
	topics  map[*topics.Topic]*mirrored
	names   map[*topics.Topic]struct{} // changed since the last look
	told    bool                       // the names that it began with were set

	interest, serial uint64 // as of the last choice of topics
	chosen           uint64 // when that was, CLOCK_MONOTONIC
	chosenAt         time.Time

	parked time.Time // when senders were last asked to wake it
	copied copied
	writer tupleWriter
	missed uint64 // not told to the Publisher yet
}

// Mirror notes what is sent and named from now on for a Publisher. The function that
// it returns publishes that until its context ends. Once for each broker.
func (b *Broker) Mirror(to Publisher) (publish func(context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := &mirror{b: b, to: to, origin: originHere(), parking: b.store.Bells.Parking(protocol.BrokerSlot),
		topics: map[*topics.Topic]*mirrored{}, names: map[*topics.Topic]struct{}{}, chosen: sys.Monotonic(), chosenAt: time.Now()}
	for t := range b.topics.Names() {
		m.names[t] = struct{}{}
	}
	b.mirror = m
	return m.run
}

// TellNames returns when the mirror has told its Publisher of each name that was set or
// deleted before, or when ctx ends. A mirror that has not begun yet is waited for.
func (b *Broker) TellNames(ctx context.Context) {
	told := make(chan struct{})
	b.mu.Lock()
	b.telling = append(b.telling, told)
	watcher{b}.Changed()
	b.mu.Unlock()
	select {
	case <-told:
	case <-ctx.Done():
	}
}

func (m *mirror) run(ctx context.Context) {
	b := m.b
	defer context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.mirror == m { // the broker has not closed its files yet
			b.store.Bells.Wake(protocol.BrokerSlot)
		}
	})()
	for ctx.Err() == nil && m.step(ctx) {
	}
	b.mu.Lock()
	b.mirror = nil
	b.mu.Unlock()
}

// step looks once, then waits for the next reason to. It returns false when the
// broker is being torn down.
func (m *mirror) step(ctx context.Context) bool {
	began := time.Now()
	if m.look(ctx) || began.Sub(m.parked) < wakePace {
		return m.pause(mirrorPace - time.Since(began))
	}
	// Nothing was there: sleep until a sender rings, or interest may have changed.
	m.parked = began
	e, topics, ok := m.park()
	if !ok {
		return false
	}
	if !m.pending() && ctx.Err() == nil {
		pace := restPace
		if topics {
			pace = alonePace
			if m.to.InterestMayChange() {
				pace = interestPace
			}
		}
		m.parking.SleepFor(e, pace)
	}
	return m.unpark()
}

// park, pending, unpark and pause touch pages that a broker being torn down
// unmaps, so they look first, under the lock, whether it is.
func (m *mirror) park() (bell uint32, topics, ok bool) {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if m.b.mirror != m {
		return 0, false, false
	}
	bell = m.parking.Bell()
	for t := range m.topics {
		if m.b.topics.Has(t) {
			m.b.topics.Await(t)
		}
	}
	m.parking.Begin() // after it pending looks
	return bell, m.b.topics.Any(), true
}

func (m *mirror) unpark() bool {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if m.b.mirror != m {
		return false
	}
	m.parking.End()
	return true
}

// pending is the second look of a waiter: whether there is anything to do, or an end.
func (m *mirror) pending() bool {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if m.b.mirror != m || len(m.names) > 0 || len(m.b.telling) > 0 || m.stale() {
		return true
	}
	for t, w := range m.topics {
		for l := range t.Lanes() {
			if p := w.lanes[l]; p == nil || l.View.Head() >= p.next {
				return true
			}
		}
	}
	return false
}

// pause waits for a time too short for the runtime's timers, which an idle
// process rounds up to a millisecond. No sender rings meanwhile.
func (m *mirror) pause(d time.Duration) bool {
	m.b.mu.Lock()
	if m.b.mirror != m {
		m.b.mu.Unlock()
		return false
	}
	e := m.parking.Bell()
	m.b.mu.Unlock()
	if d > 0 {
		m.parking.SleepFor(e, d)
	}
	return true
}

// look publishes what is there, in batches, and tells whether there was anything.
// A sender that goes on and on, even with what cannot be read, does not keep it past its context.
func (m *mirror) look(ctx context.Context) (found bool) {
	for {
		m.b.mu.Lock()
		if m.b.mirror != m {
			m.b.mu.Unlock()
			return false
		}
		if m.stale() {
			m.choose()
		}
		m.copied.reset()
		more := m.copyNames()
		m.copied.spilled = 0 // a session that sets long names on and on does not keep topics waiting
		names := len(m.names)
		var telling []chan struct{}
		if names == 0 {
			telling, m.b.telling = m.b.telling, nil
		}
		more = m.copyTopics() || more
		m.b.mu.Unlock()
		found = found || !m.copied.empty()
		m.publish()
		if names == 0 && !m.told {
			m.told = true
			m.to.NamesTold()
		}
		for _, told := range telling {
			close(told)
		}
		if !more || m.to.Queued() > mirrorAhead || ctx.Err() != nil {
			return found
		}
	}
}

// watcher notifies the mirror and the reaper of changes of topics.
type watcher struct{ b *Broker }

// Changed wakes the mirror.
func (w watcher) Changed() {
	if w.b.mirror != nil {
		w.b.store.Bells.Wake(protocol.BrokerSlot)
	}
}

// Named notifies the mirror that a name was set or deleted.
func (w watcher) Named(t *topics.Topic) {
	if w.b.mirror != nil {
		w.b.mirror.names[t] = struct{}{}
		w.Changed()
	}
}

// EndedAgreed has a name deleted on all hosts that goes with a session.
func (w watcher) EndedAgreed(namespace, name string, revision uint64) {
	w.b.whenNames(func(n Names) { n.Ended(namespace, name, revision) })
}

// Understood lowers the broker's refcounts.
func (w watcher) Understood() { w.b.lowerRefcounts() }

// Provided has the functions be listed anew that are called over NATS.
func (w watcher) Provided() {
	select {
	case w.b.provided <- struct{}{}:
	default: // they are to be listed already
	}
}

// Adopted starts the reaper.
func (w watcher) Adopted() { w.b.reapSoon() }
