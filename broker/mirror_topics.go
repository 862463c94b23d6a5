package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// mirrored is a topic with a subscriber.
type mirrored struct {
	subject string
	lanes   map[*topics.Lane]*place
}

// place is where the mirror is in one lane.
type place struct {
	next    uint64
	skipped uint64                 // not copied since the last one that was
	lost    uint64                 // not published since the last one that was
	encoder *protocol.TupleEncoder // nil: its tuples cannot be written
}

// newPlace is where a reader begins that has seen nothing before next.
func (m *mirror) newPlace(l *topics.Lane, next uint64) *place {
	e, err := protocol.NewTupleEncoder(l.Topic.Name(), l.File.Name, m.b.id, m.originOf(l.File.PID))
	if err != nil {
		m.b.log.Error("the tuples of a sender cannot be written", "topic", l.Topic, "sender", l.File.Name, "error", err)
	}
	return &place{next: next, encoder: e}
}

// stale tells whether topics or subscriptions have come or gone. Callers hold mu.
func (m *mirror) stale() bool {
	return m.serial != m.b.store.Record.LastSerial() || m.interest != m.to.InterestVersion()
}

// choose finds the topics with subscribers. From one that is new it
// takes what was sent since the last choice, so that nothing falls between a
// subscription and the look that notices it. Callers hold mu.
func (m *mirror) choose() {
	m.interest, m.serial = m.to.InterestVersion(), m.b.store.Record.LastSerial()
	since, at := m.chosen, m.chosenAt
	m.chosen, m.chosenAt = sys.Monotonic(), time.Now()
	wanted := map[*topics.Topic]*mirrored{}
	for t := range m.b.topics.Public() {
		subject := protocol.TopicSubject(t.Namespace(), t.Name())
		if !m.to.Interest(subject) {
			continue
		}
		w := m.topics[t]
		if w == nil {
			w = &mirrored{subject: subject, lanes: map[*topics.Lane]*place{}}
			for l := range t.Lanes() {
				first := uint64(1) // of a topic made since then all counts, if only as lost
				if !t.Made().After(at) {
					first = firstSince(l, since)
				}
				w.lanes[l] = m.newPlace(l, first)
			}
		}
		wanted[t] = w
	}
	m.topics = wanted
}

// firstSince finds the first message kept that was sent after a time.
func firstSince(l *topics.Lane, since uint64) uint64 {
	head := l.View.Head()
	first := head + 1
	for first > 1 && head-(first-1) < l.View.Slots() && l.View.Has(first-1) && l.View.Stamp(first-1) >= since {
		first--
	}
	return first
}

// copyTopics copies what topics have beyond the mirror's places, until there is
// enough for one batch; then it returns true, for there may be more.
func (m *mirror) copyTopics() (more bool) {
	for t, w := range m.topics { // in another order each time, so that none is left behind
		if m.copyTopic(t, w) {
			return true
		}
	}
	return false
}

func (m *mirror) copyTopic(t *topics.Topic, w *mirrored) (more bool) {
	for l := range w.lanes {
		if !t.HasLane(l) {
			delete(w.lanes, l)
		}
	}
	for l := range t.Lanes() {
		p := w.lanes[l]
		if p == nil {
			p = m.newPlace(l, 1)
			w.lanes[l] = p
		}
		head := l.View.Head()
		// What is more than a turn of the ring behind has left its slot.
		if slots := l.View.Slots(); head >= slots && p.next <= head-slots {
			m.skip(p, head-slots+1-p.next)
			p.next = head - slots + 1
		}
		for ; p.next <= head; p.next++ {
			if m.copied.full() {
				return true
			}
			if p.next+mirrorFetch <= head {
				l.View.Fetch(p.next + mirrorFetch)
			}
			if !m.copied.add(m.b, l, p.next, w.subject, p) {
				m.skip(p, 1)
			}
		}
	}
	return false
}

// skip counts messages that are not copied: the next tuple of the lane tells so, and the Publisher's count.
func (m *mirror) skip(p *place, n uint64) {
	p.skipped += n
	m.missed += n
}
