package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/protocol"
)

// TrafficStatus counts messages of all topics and queues, since the broker began to count them. Calls of functions and
// their replies are not among them.
type TrafficStatus struct {
	Traffic
	Waiting uint64 // messages that some group, or taker of a queue, has not taken
	// Unacknowledged are messages that takers have and have not acknowledged.
	Unacknowledged uint64
	Kept           uint64
	// WithoutTakers are queues in which items wait and from which no session takes.
	WithoutTakers int
	// HeldUpFor is for how long, in seconds, one unacknowledged item has kept a sender from sending more, at most.
	HeldUpFor float64
	// Dropped are messages that were dropped before a reader, or a taker, had them or could have had them.
	Dropped     map[topics.Dropped]uint64
	Redelivered uint64 // items that were freed for others because their takers had left
}

// Traffic sums what topics and queues count, and shows each. It takes the mutex for a moment at
// a time, so topics that come or go meanwhile may be missing. ok is false, and the sum is not whole, when the broker
// takes over or ends. Any goroutine.
func (b *Broker) Traffic(each func(*TopicRow)) (sum TrafficStatus, ok bool) {
	at := 0
	ok = b.whileServing(func() {
		sum.Traffic, sum.Redelivered = b.topics.Ended()
		sum.Dropped = b.topics.Dropped()
	})
	for ok && at >= 0 {
		var rows []TopicRow
		ok = b.whileServing(func() { rows, at = b.topicRows(at) })
		for i := range rows {
			r := &rows[i]
			if each != nil {
				each(r)
			}
			if r.OfCalls { // these are counted apart
				continue
			}
			sum.Add(r.Traffic)
			sum.Waiting += uint64(r.Waiting)
			sum.Unacknowledged += uint64(r.Unacknowledged)
			sum.Kept += uint64(r.Kept)
			sum.HeldUpFor = max(sum.HeldUpFor, r.HeldUpFor)
			if r.Kind == protocol.KindQueue && r.Readers == 0 && r.Waiting > 0 {
				sum.WithoutTakers++
			}
		}
	}
	return sum, ok
}

// topicRows are rows of topics from a number on; next is -1 at the end.
func (b *Broker) topicRows(at int) (rows []TopicRow, next int) {
	began, all := time.Now(), func(string) bool { return true }
	for end := b.topics.Used(); at < end; at++ {
		if time.Since(began) > lookTime {
			return rows, at
		}
		if row, _ := b.topics.TopicRow(protocol.AnyNamespace, at, all); row != nil {
			rows = append(rows, row.(TopicRow))
		}
	}
	return rows, -1
}

// whileServing calls f with the mutex held, unless the broker ends or takes over.
func (b *Broker) whileServing(f func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closing || b.taking != nil {
		return false
	}
	f()
	return true
}

// Alive returns once the broker can carry out a request. Any goroutine.
func (b *Broker) Alive() {
	b.mu.Lock()
	defer b.mu.Unlock()
}
