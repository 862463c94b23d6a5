package topics

import (
	"iter"
	"maps"
	"time"

	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// What the mirror sees of topics. The mirror is one more reader, in no group; senders ring it.

// Any tells whether there is a topic, queue or name that is not private.
func (ts *Topics) Any() bool { return len(ts.named) > 0 }

// Public gives the topics and queues that are not private.
func (ts *Topics) Public() iter.Seq[*Topic] {
	return func(yield func(*Topic) bool) {
		for key, t := range ts.named {
			if key.space == ofTopics && t.name == nil && !yield(t) {
				return
			}
		}
	}
}

// Names gives the names that are set.
func (ts *Topics) Names() iter.Seq[*Topic] {
	return func(yield func(*Topic) bool) {
		for _, t := range ts.named {
			if t.name != nil && t.name.set && !yield(t) {
				return
			}
		}
	}
}

// Has tells whether a topic has not been removed.
func (ts *Topics) Has(t *Topic) bool { return ts.topics[t.index] == t }

// Await makes senders in a topic ring the broker for the next message. The caller has read its
// own bell before, and fences and looks afterwards.
func (ts *Topics) Await(t *Topic) { ts.waits(t).All().Add(protocol.BrokerSlot) }

// waits are the wait sets of a topic.
func (ts *Topics) waits(t *Topic) shm.Waits { return ts.store.Bells.Waits(t.index) }

// Namespace is where the topic is.
func (t *Topic) Namespace() string { return t.key.namespace }

// Name is the topic's, "" of a private one.
func (t *Topic) Name() string { return t.key.name }

// Made is when the topic was made.
func (t *Topic) Made() time.Time { return t.made }

// Lanes gives the lanes, live and adopted.
func (t *Topic) Lanes() iter.Seq[*Lane] { return maps.Values(t.lanes) }

// HasLane tells whether a lane is still in the topic.
func (t *Topic) HasLane(l *Lane) bool { return t.lanes[l.Number] == l }

// Revision is the present revision of a name, and the lane in which it stands; set
// is false when the name is deleted.
func (t *Topic) Revision() (l *Lane, revision uint64, set bool) {
	return t.name.lane, t.name.revision, t.name.set
}

// SetterPID is the process that set the present revision of a name, 0 if a broker
// before this one was told.
func (t *Topic) SetterPID() int { return t.name.setterPID }

// Setter names the session that set the present revision of a name.
func (t *Topic) Setter() string { return t.name.setter }
