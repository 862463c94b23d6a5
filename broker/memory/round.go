package memory

import (
	"errors"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/alarm"
)

// A session keeps memory that it has used, empty, for the next time. Before a request of another, or one of its own for
// something else, is refused for want of memory, there is a round: every session that was granted memory is asked for
// what it does not hold, and answers when it has given that back; then what ended sessions have left is looked through.
// A request waits for a round that begins after it came, since an answer before may have been too early.

const (
	// roundPause is the least time from the beginning of one round to that of the next.
	roundPause = 100 * time.Millisecond
	// answerTime is how long a round waits for the answers: with a round before it, less than a client that does not
	// wait gives the broker for an answer. Sessions that are late, such as suspended ones, are asked
	// in the next rounds too, and not waited for until they have answered.
	answerTime = 300 * time.Millisecond
	// orphansTime is for how long a round looks through what ended sessions have left, a bit at a time.
	orphansTime = 100 * time.Millisecond
	orphansStep = 300 * time.Microsecond
	orphansRest = 100 * time.Microsecond
)

// Later is a refusal before a round: the request is to be carried out once more when [Memory.AfterRound] tells.
type Later struct {
	Refusal error
	of      *Account // who may give memory back; nil: all
}

func (l *Later) Error() string { return l.Refusal.Error() }

func (l *Later) Unwrap() error { return l.Refusal }

// later makes a refusal a Later, unless a round would find nothing.
func (m *Memory) later(err error) *Later {
	var r *refusal
	if !errors.As(err, &r) {
		return nil
	}
	if r.of != nil {
		if len(r.of.segments) == 0 {
			return nil
		}
		return &Later{err, r.of}
	}
	hasMemory := func(s *Account) bool { return s != nil && len(s.segments) > 0 }
	if len(m.orphans) == 0 && !slices.ContainsFunc(m.accounts[:], hasMemory) {
		return nil
	}
	return &Later{err, nil}
}

// rounds are the round under way and the next one.
type rounds struct {
	under   bool
	began   time.Time
	asked   map[*Account]struct{} // those that have not answered
	waiting []waiting             // for the end of the round under way
	next    []waiting             // for that of the next one
	due     *alarm.Alarm          // it begins then
	bound   *alarm.Alarm          // answers are waited for no longer
}

type waiting struct {
	of   *Account
	then func()
}

// AfterRound calls then once a round is over that begins from now on.
func (m *Memory) AfterRound(l *Later, then func()) {
	m.rounds.next = append(m.rounds.next, waiting{l.of, then})
	m.beginRound()
}

func (m *Memory) beginRound() {
	r := &m.rounds
	if r.under || r.due != nil || len(r.next) == 0 {
		return
	}
	if rest := roundPause - time.Since(r.began); rest > 0 {
		r.due = m.clock.After(rest, func() {
			r.due = nil
			m.beginRound()
		})
		return
	}
	r.under, r.began, r.asked = true, time.Now(), map[*Account]struct{}{}
	r.waiting, r.next = r.next, nil
	ofAll := slices.ContainsFunc(r.waiting, func(w waiting) bool { return w.of == nil })
	for _, s := range m.accounts[:] {
		concerned := ofAll || slices.ContainsFunc(r.waiting, func(w waiting) bool { return w.of == s })
		if s != nil && concerned && len(s.segments) > 0 && s.client.Reclaim() && !s.late {
			r.asked[s] = struct{}{}
		}
	}
	r.bound = m.clock.After(answerTime, func() {
		r.bound = nil
		for s := range r.asked {
			s.late = true
		}
		clear(r.asked)
		m.answered()
	})
	m.answered()
}

// Reclaimed notes that a session has given back what it does not hold, all that it was asked for.
func (m *Memory) Reclaimed(s *Account) {
	s.late = false
	m.noMoreAsked(s)
}

// noMoreAsked is for a session that has answered, or ended.
func (m *Memory) noMoreAsked(s *Account) {
	if _, is := m.rounds.asked[s]; is {
		delete(m.rounds.asked, s)
		m.answered()
	}
}

// answered goes on with the round under way once all have answered.
func (m *Memory) answered() {
	r := &m.rounds
	if len(r.asked) > 0 || r.asked == nil {
		return
	}
	r.asked = nil
	r.bound.Cancel()
	r.bound = nil
	left := make([]*segment, 0, len(m.orphans))
	for g := range m.orphans {
		left = append(left, g)
	}
	m.lookThrough(left, time.Now())
}

// lookThrough frees what is free of some orphans, and ends the round.
func (m *Memory) lookThrough(left []*segment, since time.Time) {
	for began := time.Now(); len(left) > 0 && time.Since(began) < orphansStep; {
		g := left[len(left)-1]
		left = left[:len(left)-1]
		if _, is := m.orphans[g]; !is {
			continue
		}
		m.reclaimOrphan(g, began, orphansStep)
		if time.Since(began) > orphansStep && len(left) > 0 && time.Since(since) < orphansTime {
			left = slices.Insert(left, 0, g) // what is left of it is looked at last: the next look begins there
		}
	}
	if len(left) > 0 && time.Since(since) < orphansTime {
		m.clock.After(orphansRest, func() { m.lookThrough(left, since) })
		return
	}
	r := &m.rounds
	over := r.waiting
	r.under, r.waiting = false, nil
	for _, w := range over {
		w.then()
	}
	m.beginRound()
}
