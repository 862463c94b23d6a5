package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// firstProbe and lastProbe are the pauses between looks whether the server permits by now what it
	// has refused: it does not say so by itself.
	firstProbe = time.Second
	lastProbe  = 15 * time.Second
	// probeTime bounds one look.
	probeTime = 5 * time.Second
	// mostRefusals bounds how many rights are kept, and how many subjects of each.
	mostRefusals = 1024
)

// Refusal is a right that the NATS server does not grant the broker.
type Refusal struct {
	Right    string    `json:"right"`   // as docs/operations.md lists them: "publish baton.default.>"
	Effect   string    `json:"effect"`  // what the broker goes without
	Subject  string    `json:"subject"` // one of those that were refused
	Subjects int       `json:"subjects"`
	Messages uint64    `json:"messages,omitempty"` // that were refused; 0 for a subscription
	Since    time.Time `json:"since"`
	Last     time.Time `json:"last"`
}

// String tells people what is refused, and what comes of it.
func (r *Refusal) String() string {
	text := "needs the right to " + r.Right + " (" + r.Subject
	if n := r.Subjects - 1; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	if r.Messages == 1 {
		text += ", 1 message refused"
	} else if r.Messages > 1 {
		text += fmt.Sprintf(", %d messages refused", r.Messages)
	}
	return text + "): " + r.Effect
}

// refusals are the rights that the server has refused on a connection. A goroutine looks from time to time which of them
// it grants by now, until it grants all.
//
// A refused subscription is tried anew: the library never repeats one on a connection. A refused message cannot be: the
// subscribers would get it. Its right counts as granted after a message to a refused subject of its own was not refused.
type refusals struct {
	log      *slog.Logger
	current  func() *nats.Conn // nil: there is none
	changed  func()
	refused  func(*lackingRight)                       // is called with each refusal that is news, and with each message
	granted  func(*lackingRight, []string) (made bool) // makes the subscriptions of a right anew, if it can
	watching atomic.Bool                               // a message has been refused

	again  chan struct{} // cap 1: it is time to look
	ended  context.Context
	end    context.CancelFunc
	probes sync.WaitGroup // the goroutine that runs probe, if there is one

	mu      sync.Mutex
	probing bool // a goroutine runs probe
	rights  map[string]*refusedRight
}

// refusedRight is one right of refusals.
type refusedRight struct {
	lackingRight
	subjects    map[string]*refusedSubject
	messages    uint64
	since, last time.Time
}

// refusedSubject is what is known of a subject since the server has refused a message to it.
type refusedSubject struct {
	sent    bool // another message was given to the connection
	flushed bool // and the server has it
}

func newRefusals(log *slog.Logger, current func() *nats.Conn, changed func()) *refusals {
	r := &refusals{log: log, current: current, changed: changed, refused: func(*lackingRight) {},
		granted: func(*lackingRight, []string) bool { return false },
		again:   make(chan struct{}, 1), rights: map[string]*refusedRight{}}
	r.ended, r.end = context.WithCancel(context.Background())
	return r
}

// refusal is how the server says what a connection may not do. It says so on the side: a write
// that it refuses gets no answer, and ends by its time.
var refusal = regexp.MustCompile(`(?i)violation for (publish|subscription) to "([^"]+)"`)

// note records what the server says that it does not permit. It returns false for an error that says no such thing.
func (r *refusals) note(err error) bool {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return false
	}
	m := refusal.FindStringSubmatch(err.Error())
	if m == nil {
		return false
	}
	l := rightFor(strings.EqualFold(m[1], "publish"), m[2])
	now := time.Now()
	r.mu.Lock()
	if r.ended.Err() != nil {
		r.mu.Unlock()
		return true
	}
	right := r.rights[l.name()]
	news := right == nil
	if news {
		right = &refusedRight{lackingRight: *l, subjects: map[string]*refusedSubject{}, since: now}
		if len(r.rights) < mostRefusals {
			r.rights[l.name()] = right
		}
	}
	right.last = now
	if !strings.Contains(right.effect, l.effect) {
		right.effect += "; " + l.effect
	}
	if l.publish {
		right.messages++
		r.watching.Store(true)
	}
	if s := right.subjects[l.kept()]; s != nil {
		*s = refusedSubject{}
	} else if len(right.subjects) < mostRefusals {
		right.subjects[l.kept()] = &refusedSubject{}
	}
	if !r.probing {
		r.probing = true
		r.probes.Go(r.probe)
	}
	r.mu.Unlock()
	if news {
		r.log.Warn("NATS refuses the broker a right", "right", l.name(), "subject", l.subject, "effect", l.effect)
	}
	r.refused(l)
	r.changed()
	return true
}

// sent notes that a message was given to the connection. It costs nothing while none has been refused.
func (r *refusals) sent(subject string) {
	if !r.watching.Load() {
		return
	}
	l := rightFor(true, subject)
	r.mu.Lock()
	defer r.mu.Unlock()
	if right := r.rights[l.name()]; right != nil {
		if s := right.subjects[l.kept()]; s != nil {
			s.sent = true
		}
	}
}

// lacks is the first of these rights that is refused now, nil: none is.
func (r *refusals) lacks(is func(*lackingRight) bool) *lackingRight {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.rights)) {
		if l := &r.rights[name].lackingRight; is(l) {
			return l
		}
	}
	return nil
}

// forget drops refusals that matter no more, all of a right or of some subjects.
func (r *refusals) forget(drop func(l *lackingRight, subject string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, right := range r.rights {
		maps.DeleteFunc(right.subjects, func(subject string, _ *refusedSubject) bool { return drop(&right.lackingRight, subject) })
		if len(right.subjects) == 0 {
			delete(r.rights, name)
		}
	}
}

// list tells what is refused, by rights.
func (r *refusals) list() (all []Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.rights)) {
		right := r.rights[name]
		subject := right.subject
		if right.subjects[subject] == nil && !right.answer() {
			subject = slices.Min(slices.Collect(maps.Keys(right.subjects)))
		}
		all = append(all, Refusal{Right: name, Effect: right.effect, Subject: subject, Subjects: len(right.subjects),
			Messages: right.messages, Since: right.since, Last: right.last})
	}
	return all
}

// up has everything looked at soon: another connection may have other rights.
func (r *refusals) up() {
	select {
	case r.again <- struct{}{}:
	default:
	}
}

// close ends the goroutine.
func (r *refusals) close() {
	r.mu.Lock()
	r.end() // with the lock, so that none begins later
	r.mu.Unlock()
	r.probes.Wait()
}

// probe looks from time to time what the server permits, until nothing is refused.
func (r *refusals) probe() {
	pause := firstProbe
	for next := time.Now().Add(pause); ; {
		wait := time.Until(next)
		if r.watching.Load() {
			wait = min(wait, firstProbe) // a look at messages asks the server nothing, unless some were sent
		}
		select {
		case <-time.After(wait):
		case <-r.again:
			pause, next = firstProbe, time.Now()
		case <-r.ended.Done():
			return
		}
		if nc := r.current(); nc != nil {
			if now := time.Now(); !now.Before(next) {
				r.probeSubscriptions(nc)
				pause = min(2*pause, lastProbe)
				next = now.Add(pause)
			}
			r.probeMessages(nc)
		}
		r.mu.Lock()
		over := len(r.rights) == 0
		if over {
			r.probing = false
			r.watching.Store(false)
		}
		r.mu.Unlock()
		if over {
			return
		}
	}
}

// probeSubscriptions tries one refused subscription of each right, another one each time.
func (r *refusals) probeSubscriptions(nc *nats.Conn) {
	try := map[string]string{}
	r.mu.Lock()
	for name, right := range r.rights {
		for subject := range right.subjects { // in no order
			if !right.publish {
				try[name] = subject
			}
			break
		}
	}
	r.mu.Unlock()
	for name, subject := range try {
		if sub, came := r.permits(nc, subject); sub != nil {
			r.grant(nc, name)
			r.pass(nc, sub, came)
		}
	}
}

// permits asks the server. The subscription that it permits stays: requests may come there before the broker has
// subscribed itself. It is one of those that share the requests, as the broker's own.
func (r *refusals) permits(nc *nats.Conn, subject string) (sub *nats.Subscription, came *nats.Msg) {
	queue := ""
	if rightFor(false, subject).right == rightToCalls {
		queue = ServiceName
	}
	sub, err := nc.QueueSubscribeSync(subject, queue)
	if err != nil {
		return nil, nil
	}
	refused := !r.flush(nc)
	if came, err = sub.NextMsg(time.Nanosecond); errors.Is(err, nats.ErrPermissionViolation) {
		refused = true // which came before the answer to the flush
	}
	if refused {
		_ = sub.Unsubscribe() // it goes with its connection otherwise
		return nil, nil
	}
	return sub, came
}

// pass ends a subscription of permits, and sends what came there again: to the broker's own by now.
func (r *refusals) pass(nc *nats.Conn, sub *nats.Subscription, came *nats.Msg) {
	err := sub.Drain()
	for err == nil {
		if came != nil {
			err = nc.PublishMsg(came)
		}
		if err == nil {
			came, err = sub.NextMsg(probeTime) // the error is that all came
		}
	}
}

func (r *refusals) flush(nc *nats.Conn) bool {
	ctx, cancel := context.WithTimeout(r.ended, probeTime)
	defer cancel()
	return nc.FlushWithContext(ctx) == nil
}

// grant makes the subscriptions of a right anew. It counts as refused until the server has them. What is refused all the
// same is told again.
func (r *refusals) grant(nc *nats.Conn, name string) {
	r.mu.Lock()
	right := r.rights[name]
	if right == nil {
		r.mu.Unlock()
		return
	}
	l, subjects := right.lackingRight, slices.Collect(maps.Keys(right.subjects))
	r.mu.Unlock()
	made := r.granted(&l, subjects)
	if made && !r.flush(nc) {
		return
	}
	r.drop(name)
	if !made {
		// A connection that comes back subscribes to all that it had. Nothing less does that for the library's own
		// subscription, on which it gets answers. The error is that the connection is closed.
		_ = nc.ForceReconnect()
	}
}

// probeMessages finds the rights of which a message has been sent, and not refused.
func (r *refusals) probeMessages(nc *nats.Conn) {
	var look, fewer bool
	var granted []string
	r.mu.Lock()
	for name, right := range r.rights {
		for subject, s := range right.subjects {
			look = look || s.sent && !s.flushed
			if s.flushed { // the refusal would have been told since the last look
				delete(right.subjects, subject)
				fewer = true
			}
		}
		if right.publish && len(right.subjects) == 0 {
			granted = append(granted, name)
		}
	}
	r.mu.Unlock()
	for _, name := range granted {
		r.drop(name)
	}
	if fewer {
		r.changed()
	}
	if !look || !r.flush(nc) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, right := range r.rights {
		for _, s := range right.subjects {
			s.flushed = s.sent
		}
	}
}

// drop notes that a right is refused no more.
func (r *refusals) drop(name string) {
	r.mu.Lock()
	_, was := r.rights[name]
	delete(r.rights, name)
	r.mu.Unlock()
	if was {
		r.log.Info("NATS grants the broker a right that it had refused", "right", name)
		r.changed()
	}
}
