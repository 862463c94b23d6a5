package broker

import (
	"context"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Publisher is where tuples and names go: NATS, through natsbridge.Bridge. Its
// methods return at once and may be called from any goroutine.
type Publisher interface {
	// Publish queues a message; false when it was dropped.
	Publish(subject string, data []byte) bool
	// Interest tells whether anybody would get a message on the subject.
	Interest(subject string) bool
	// InterestVersion changes when the answers of Interest may have changed.
	InterestVersion() uint64
	SetName(ns, name string, revision uint64, value []byte) error
	DeleteName(ns, name string) error
}

const (
	// mirrorPace is how often the mirror wakes at most while there is traffic, so
	// that a sender pays for at most one wake in that time.
	mirrorPace = time.Millisecond
	// interestPace is how often it asks whether somebody has subscribed.
	interestPace = 250 * time.Millisecond
	// mirrorBatch bounds the messages that are read under the broker's lock.
	mirrorBatch = 64
)

// mirror publishes the tuple of each message that a topic still keeps when it
// looks. It is one more reader of a topic while somebody subscribes to it, and
// holds no sender up. It belongs to one goroutine; what it shares with the
// broker is guarded by the broker's lock.
type mirror struct {
	b       *Broker
	to      Publisher
	parking shm.Parking
	topics  map[*topic]*mirrored
	names   map[*topic]struct{} // changed since the last look

	interest, serial uint64 // as of the last choice of topics
	chosen           uint64 // when that was, CLOCK_MONOTONIC
	chosenAt         time.Time
	again            bool // more is there than one batch
	words            []uint64
}

// mirrored is a topic that somebody subscribes to.
type mirrored struct {
	subject string
	lanes   map[*lane]*place
}

// place is where the mirror is in one lane.
type place struct{ next, lost uint64 }

// Mirror publishes tuples and names until ctx ends. Once for each broker.
func (b *Broker) Mirror(ctx context.Context, to Publisher) {
	b.mu.Lock()
	m := &mirror{b: b, to: to, parking: shm.NewParking(b.own.session.region, b.own.bell.region),
		topics: map[*topic]*mirrored{}, names: map[*topic]struct{}{}, chosen: sys.Monotonic(), chosenAt: time.Now()}
	for _, t := range b.named {
		if t.name != nil && t.name.set {
			m.names[t] = struct{}{}
		}
	}
	b.mirror = m
	bell := b.own.bell.region
	b.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.mirror == m { // the broker has not closed its files yet
			shm.WakeBell(bell)
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
	found := m.look()
	if found {
		pause(ctx, mirrorPace-time.Since(began))
		return true
	}
	// Nothing was there: sleep until a sender rings, or interest may have changed.
	e, topics, ok := m.park()
	if !ok {
		return false
	}
	if !m.pending() && ctx.Err() == nil {
		// Without a topic there is nothing to subscribe to: the first lane rings.
		pace := shm.LookAgain
		if topics {
			pace = interestPace
		}
		m.parking.Sleep(e, pace)
	}
	return m.unpark()
}

// park, pending and unpark touch pages that a broker being torn down unmaps, so
// they look first, under the lock, whether it is.
func (m *mirror) park() (bell uint32, topics, ok bool) {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if m.b.mirror != m {
		return 0, false, false
	}
	return m.parking.Begin(), len(m.b.named) > 0, true
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

// pending is the second look of a waiter.
func (m *mirror) pending() bool {
	m.b.mu.Lock()
	defer m.b.mu.Unlock()
	if len(m.names) > 0 || m.stale() {
		return true
	}
	for t, w := range m.topics {
		for _, l := range t.lanes {
			if p := w.lanes[l]; p == nil || l.view.Head() >= p.next {
				return true
			}
		}
	}
	return false
}

func pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// stale tells whether topics or subscriptions have come or gone. Callers hold mu.
func (m *mirror) stale() bool {
	return m.serial != m.b.lastSerial() || m.interest != m.to.InterestVersion()
}

// look publishes what is there, in batches, and tells whether there was anything.
func (m *mirror) look() (found bool) {
	for {
		m.b.mu.Lock()
		if m.b.mirror != m {
			m.b.mu.Unlock()
			return false
		}
		if m.stale() {
			m.choose()
		}
		m.again = false
		n := m.publishNames()
		for t, w := range m.topics {
			n += m.publishTopic(t, w)
		}
		m.b.mu.Unlock()
		found = found || n > 0
		if !m.again {
			return found
		}
	}
}

// choose finds the topics that somebody subscribes to. From one that is new it
// takes what was sent since the last choice, so that nothing falls between a
// subscription and the look that notices it. Callers hold mu.
func (m *mirror) choose() {
	m.interest, m.serial = m.to.InterestVersion(), m.b.lastSerial()
	since, at := m.chosen, m.chosenAt
	m.chosen, m.chosenAt = sys.Monotonic(), time.Now()
	wanted := map[*topic]*mirrored{}
	for key, t := range m.b.named {
		if key.isName || t.name != nil {
			continue
		}
		subject := protocol.TopicSubject(key.namespace, key.name)
		if !m.to.Interest(subject) {
			continue
		}
		w := m.topics[t]
		if w == nil {
			w = &mirrored{subject: subject, lanes: map[*lane]*place{}}
			for _, l := range t.lanes {
				first := uint64(1) // of a topic made since then all counts, if only as lost
				if !t.made.After(at) {
					first = firstSince(l, since)
				}
				w.lanes[l] = &place{next: first}
			}
			m.b.setMirrored(t, true)
		}
		wanted[t] = w
	}
	for t := range m.topics {
		if wanted[t] == nil && m.b.topics[t.index] == t {
			m.b.setMirrored(t, false)
		}
	}
	m.topics = wanted
}

// firstSince finds the first message kept that was sent after a time.
func firstSince(l *lane, since uint64) uint64 {
	head := l.view.Head()
	first := head + 1
	for first > 1 && head-(first-1) < l.view.Slots() && l.view.Has(first-1) && l.view.Stamp(first-1) >= since {
		first--
	}
	return first
}

// setMirrored lists the broker among those whom senders ring. Callers hold mu.
func (b *Broker) setMirrored(t *topic, on bool) {
	if t.mirrored != on {
		t.mirrored = on
		b.setWaiter(t, protocol.BrokerSlot, on)
		b.changed(t)
	}
}

// publishTopic publishes what a topic has beyond the mirror's places.
func (m *mirror) publishTopic(t *topic, w *mirrored) (n int) {
	for l := range w.lanes {
		if t.lanes[l.number] != l {
			delete(w.lanes, l)
		}
	}
	for _, l := range t.lanes {
		p := w.lanes[l]
		if p == nil {
			p = &place{next: 1}
			w.lanes[l] = p
		}
		head := l.view.Head()
		// What is more than a turn of the ring behind has left its slot.
		if slots := l.view.Slots(); head >= slots && p.next <= head-slots {
			p.lost += head - slots + 1 - p.next
			p.next = head - slots + 1
		}
		for ; p.next <= head; p.next++ {
			if n >= mirrorBatch {
				m.again = true
				return n
			}
			n++
			data, ok := m.tuple(t, l, p.next, p.lost)
			if !ok {
				p.lost++
				continue
			}
			m.to.Publish(w.subject, data)
			p.lost = 0
		}
	}
	return n
}

// publishNames sends the names that have changed to their bucket.
func (m *mirror) publishNames() int {
	n := len(m.names)
	for t := range m.names {
		delete(m.names, t)
		ns, text := t.key.namespace, t.key.name
		if m.b.topics[t.index] != t || !t.name.set {
			m.to.DeleteName(ns, text)
			continue
		}
		if data, ok := m.tuple(t, t.name.lane, t.name.revision, 0); ok {
			m.to.SetName(ns, text, t.name.revision, data)
		}
	}
	return n
}

// noteName tells the mirror that a name was set or deleted. Callers hold mu.
func (b *Broker) noteName(t *topic) {
	if b.mirror != nil && t.name != nil {
		b.mirror.names[t] = struct{}{}
		shm.WakeBell(b.own.bell.region)
	}
}
