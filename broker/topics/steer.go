package topics

import (
	"slices"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// What an operator asks for drops messages of others, and frees nothing: of each message the
// sender, or for one that has ended the broker, pays until it sees that the message was
// dropped, and a reader that has taken one holds it in its own refcounts.

// Named finds a topic or queue by its name, or one without a name by its id.
func (ts *Topics) Named(namespace string, r *protocol.TopicByName) (*Topic, error) {
	if r.ID != 0 {
		return ts.unnamed(namespace, r)
	}
	if err := protocol.CheckName(r.Name); err != nil {
		return nil, err
	}
	t := ts.named[topicKey{namespace, r.Name, ofTopics}]
	if t == nil || r.Kind != "" && r.Kind != kindName(t.kind) {
		what := r.Kind
		if what == "" {
			what = "topic or queue"
		}
		return nil, protocol.Errorf(protocol.CodeNotFound, "baton ls topics lists them", "there is no %s %s in namespace %s", what, r.Name, namespace)
	}
	return t, nil
}

func (ts *Topics) unnamed(namespace string, r *protocol.TopicByName) (*Topic, error) {
	for _, t := range ts.used() {
		if t != nil && t.id == r.ID && t.key.name == "" && t.key.namespace == namespace && t.key.space == ofTopics && (r.Kind == "" || r.Kind == kindName(t.kind)) {
			return t, nil
		}
	}
	return nil, protocol.Errorf(protocol.CodeNotFound, "baton ls topics --all lists them", "there is no topic or queue %d without a name in namespace %s", r.ID, namespace)
}

// About tells what a topic is, and which sessions have it open.
func (ts *Topics) About(t *Topic) protocol.PurgeReply {
	return protocol.PurgeReply{Kind: kindName(t.kind), Openers: len(t.members)}
}

// Purge is under way of a topic: it drops what every lane has when it comes there.
type Purge struct {
	ts *Topics
	t  *Topic
	// Dropped counts the messages so far.
	Dropped uint64

	lanes   []*Lane // still to be looked at
	begun   bool    // with the first of them
	next    uint64  // its next message
	head    uint64  // its last one
	writers bool    // some live
}

// Purge begins to drop what a topic keeps for late readers, or what waits in a queue and no
// member has claimed.
func (ts *Topics) Purge(t *Topic) *Purge {
	p := &Purge{ts: ts, t: t}
	for _, l := range t.lanes {
		p.lanes = append(p.lanes, l)
	}
	slices.SortFunc(p.lanes, func(a, b *Lane) int { return int(a.Number) - int(b.Number) })
	return p
}

// purgeLook is after how many messages Step looks at the time.
const purgeLook = 256

// Step goes on for a time, and tells whether all is done. Between steps the lanes may come and
// go.
func (p *Purge) Step(most time.Duration) (done bool) {
	began := time.Now()
	for len(p.lanes) > 0 {
		l := p.lanes[0]
		if p.ts.topics[p.t.index] != p.t || p.t.lanes[l.Number] != l || !l.File.There() {
			p.lanes, p.begun = p.lanes[1:], false
			continue
		}
		if !p.begun {
			p.begun, p.head = true, l.View.Head()
			p.next = p.head + 1 - min(p.head, l.View.Slots())
		}
		// In their order: a reader that finds a message takes it that the next is there as well.
		for n := 1; p.next <= p.head; n++ {
			if p.ts.dropMessage(l, p.next) {
				p.Dropped++
			}
			p.next++
			if n%purgeLook == 0 && time.Since(began) > most {
				return false
			}
		}
		p.writers = p.writers || l.state == protocol.LaneLive
		p.lanes, p.begun = p.lanes[1:], false
		if l.state == protocol.LaneAdopted && len(l.kept) == 0 {
			if _, unread := p.ts.unread[l]; !unread {
				p.ts.dropLane(l)
			}
		}
		if len(p.lanes) > 0 && time.Since(began) > most {
			return false
		}
	}
	if p.ts.topics[p.t.index] == p.t {
		p.finish()
	}
	return true
}

// finish has all look: senders that wait for room, and those that pay for what was dropped.
func (p *Purge) finish() {
	p.ts.changed(p.t)
	if p.writers {
		for s := range p.t.members {
			s.client.Collect()
		}
	}
	p.ts.removeIfUnused(p.t)
}

// dropMessage drops message i of a lane, unless a member of a group has claimed it and has not
// acknowledged it, and tells whether there was one.
//
// SYNC claim: what is marked done here no member takes any more.
// SYNC slot-seq: an emptied slot is lost to a reader that has not looked twice; what it named
// is counted down later, by the session that pays for it.
func (ts *Topics) dropMessage(l *Lane, i uint64) (dropped bool) {
	t := l.Topic
	for _, g := range t.groups {
		if g == nil {
			continue
		}
		if a, ok := g.area(l.Number); ok && a.Drop(i) {
			dropped = true
		}
	}
	if t.lossless && !l.doneByAll(i) {
		return dropped
	}
	if l.state == protocol.LaneAdopted {
		if _, kept := l.kept[i]; kept {
			ts.dropKept(l, i)
			dropped = true
		}
		return dropped
	}
	// A queue's sender empties what is done by itself.
	if !t.isQueue() && l.View.Drop(i) {
		dropped = true
	}
	return dropped
}

// Shut ends sending to a topic for all.
func (ts *Topics) Shut(t *Topic) {
	if !t.closed {
		ts.noteClosers(t)
		t.closed = true
		ts.store.Record.Topic(t.index).SetState(protocol.TopicClosed)
		ts.changed(t)
	}
}
