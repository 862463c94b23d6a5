package topics

import (
	"log/slog"
	"math"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/protocol"
)

// Messages that some session might still have got are dropped with their topic, when no session has had it open
// for its linger, and by a sender that opens a closed topic again. No request asks for that, so the log says it.
// What an operator drops is counted here as well.

// Reasons for which messages are dropped.
const (
	DroppedLinger   = "linger"
	DroppedReopened = "reopened"
	DroppedPurged   = "purged"
	DroppedDeleted  = "deleted"
)

// Reasons are all of them.
var Reasons = []string{DroppedLinger, DroppedReopened, DroppedPurged, DroppedDeleted}

// Dropped is what is counted of dropped messages: those of topics or of queues, for a reason.
type Dropped struct{ Kind, Reason string }

// Dropped counts the messages that were dropped, in this broker's life.
func (ts *Topics) Dropped() map[Dropped]uint64 {
	all := map[Dropped]uint64{}
	for _, kind := range []string{protocol.KindTopic, protocol.KindQueue} {
		for _, reason := range Reasons {
			d := Dropped{kind, reason}
			all[d] = ts.dropped[d]
		}
	}
	return all
}

// CountDropped counts messages of a topic that are dropped. Calls of functions are not among them.
func (ts *Topics) CountDropped(t *Topic, reason string, n uint64) {
	if t.kind == protocol.TopicKindTopic || t.kind == protocol.TopicKindQueue {
		ts.dropped[Dropped{kindName(t.kind), reason}] += n
	}
}

// noteDropped counts what a topic has just before it is dropped, and writes a line about it. A private topic that ends
// with the last session that has it open, such as the one for the replies to a caller, has nothing that another session
// could get.
func (ts *Topics) noteDropped(t *Topic, reason, text string) {
	if t.deleted || t.kind == protocol.TopicKindName || t.token != "" && t.linger == 0 {
		return
	}
	n, bytes := ts.remaining(t)
	if n == 0 {
		return
	}
	ts.CountDropped(t, reason, n)
	log := ts.log.Info
	if t.isQueue() { // items that were sent for one taker, and have had none
		log = ts.log.Warn
	}
	line := []any{events.Of(events.Memory), "topic", t.String(), "namespace", t.key.namespace, "messages", n, "bytes", bytes, "reason", reason}
	if reason == DroppedLinger {
		line = append(line, slog.Duration("linger", t.linger))
	}
	log(text, append(line, "created_by", t.creator, "last_left", ts.store.Record.Topic(t.index).LastLeft())...)
}

// remaining counts the messages of a topic that would be dropped with it: of a queue those that no taker has finished
// with, of a topic all that it keeps. The bytes are those of their storages, each once.
func (ts *Topics) remaining(t *Topic) (n, bytes uint64) {
	counted := map[uint32]struct{}{}
	for _, l := range t.lanes {
		if !l.File.There() {
			continue
		}
		for k := range l.View.Slots() {
			i := l.View.Seq(k)
			if i == 0 || i&(l.View.Slots()-1) != k || t.isQueue() && l.doneByAll(i) {
				continue
			}
			n++
			for _, index := range l.kept[i] {
				if _, again := counted[index]; !again {
					counted[index] = struct{}{}
					bytes = safe(bytes + ts.memory.BytesOf(index))
				}
			}
		}
	}
	return n, bytes
}

// Lingering is for how long a topic stays that no session has open.
type Lingering struct {
	// LingersSince is since when no session has it open, as far as this broker knows; nil: some session has.
	LingersSince *time.Time `json:"lingers_since,omitempty"`
	// EndsIn is in how many seconds it ends, with what it has, unless a session opens it.
	EndsIn *float64 `json:"ends_in_seconds,omitempty"`
}

// lingers tells for how long a topic stays that no session has open.
func (t *Topic) lingers() (l Lingering) {
	if t.lingering != nil {
		since, left := t.lingeringSince, math.Max(0, (t.linger-time.Since(t.lingeringSince)).Seconds())
		l.LingersSince, l.EndsIn = &since, &left
	}
	return l
}
