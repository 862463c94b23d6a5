package topics

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// A topic that was deleted lives on, without its name, for the sessions that have it open. It
// keeps nothing: an unacknowledged item goes to no other taker, and each sender is asked to count
// down what it has sent.

// Delete removes the name of a topic that was shut. The topic goes with the last session that
// has it open; its name is free for another topic at once. Until then the topic is like a
// private one whose token no client has.
func (ts *Topics) Delete(t *Topic) {
	if ts.topics[t.index] != t || t.deleted {
		return
	}
	var token [16]byte
	rand.Read(token[:])
	ts.store.Record.Topic(t.index).Delete(token)
	delete(ts.named, t.key)
	t.token = hex.EncodeToString(token[:])
	t.wasDeleted()
	ts.tokens[t.token] = t
	t.linger = 0
	t.lingering.Cancel()
	t.lingering = nil
	for _, g := range t.groups {
		if g != nil {
			ts.freeStrays(g)
			ts.forgetLeft(g)
		}
	}
	ts.changed(t) // takers that wait for what others hold end their wait
	ts.drain(t)
	ts.removeIfUnused(t)
}

// wasDeleted turns the name into the former one.
func (t *Topic) wasDeleted() {
	t.deleted, t.former, t.key.name = true, t.key.name, ""
}

// drain makes Drain look at a deleted topic.
func (ts *Topics) drain(t *Topic) {
	ts.draining[t] = struct{}{}
	ts.watch.Adopted()
}

// Draining tells how many deleted topics keep something.
func (ts *Topics) Draining() int { return len(ts.draining) }

// Drain drops what deleted topics keep, except what takers hold unacknowledged, and tells
// whether there was any. When the time is over it stops after a topic.
func (ts *Topics) Drain(most time.Duration) (progress bool) {
	began := time.Now()
	for t := range ts.draining {
		keeps := false
		for _, l := range t.lanes {
			if !l.File.There() {
				keeps = true
				continue
			}
			dropped, left := ts.drainLane(l)
			progress, keeps = progress || dropped, keeps || left
		}
		if !keeps {
			delete(ts.draining, t)
		}
		ts.removeIfUnused(t)
		if time.Since(began) > most {
			break
		}
	}
	return progress
}

// drainLane drops what a lane of a deleted topic has. If its sender lives, the sender counts that
// down: drainLane notifies it, once for the same messages.
func (ts *Topics) drainLane(l *Lane) (dropped, keeps bool) {
	done := uint64(0)
	for k := range l.View.Slots() {
		i := l.View.Seq(k)
		if i == 0 || i&(l.View.Slots()-1) != k {
			continue
		}
		dropped = ts.dropMessage(l, i) || dropped
		if keeps = keeps || l.View.Has(i); l.View.Has(i) && l.doneByAll(i) {
			done += i
		}
	}
	if l.state == protocol.LaneAdopted {
		if _, unread := ts.unread[l]; len(l.kept) == 0 && !unread {
			ts.dropLane(l)
			ts.lanesChanged(l.Topic)
		}
		return dropped, keeps
	}
	if s := ts.parties[l.File]; s != nil && done != l.asked && done != 0 {
		s.client.Collect()
	}
	l.asked = done
	return dropped, keeps
}
