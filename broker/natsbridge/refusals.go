package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// firstProbe and lastProbe are the pauses between looks whether the server permits by now what it
	// has refused: it does not say so by itself.
	firstProbe = time.Second
	lastProbe  = 30 * time.Second
	// probeTime bounds one look.
	probeTime = 5 * time.Second
	// mostRefusals bounds how many subjects are kept.
	mostRefusals = 1024
)

// serviceRight is the right that permits a subscription of the service, as docs/operations.md lists them;
// "": it is none of its own.
func serviceRight(subject string) string {
	tokens := strings.Split(subject, ".")
	switch {
	case tokens[0] == micro.APIPrefix:
		return micro.APIPrefix + ".>"
	case len(tokens) > 3 && tokens[0] == "baton" && (tokens[2] == "host" || tokens[2] == "call"):
		return "baton.*." + tokens[2] + ".>"
	}
	return ""
}

// refused is called with what the server does not permit. It tells whether that is an optional right:
// the broker goes on without, and looks from time to time whether it has it.
func (s *service) refused(text string) bool {
	m := refusal.FindStringSubmatch(text)
	if m == nil || !strings.EqualFold(m[1], "subscription") {
		return false
	}
	subject := m[2]
	right := serviceRight(subject)
	if right == "" {
		return false
	}
	if ns := s.namespaceOf(subject); ns != "" {
		s.names.mute(ns, true)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return true
	}
	news := s.refusals[right] == nil
	if news {
		s.refusals[right] = map[string]struct{}{}
	}
	if len(s.refusals[right]) < mostRefusals {
		s.refusals[right][subject] = struct{}{}
	}
	if !s.probing {
		s.probing = true
		s.probes.Go(s.probe)
	}
	s.mu.Unlock()
	if news {
		s.log.Warn("NATS does not let the broker answer", "subject", subject, "right", "subscribe to "+right)
	}
	s.link.changed()
	return true
}

// namespaceOf is the namespace of a subject on which the broker answers for names; "": it is none of these.
func (s *service) namespaceOf(subject string) string {
	for _, ns := range append(s.names.namespaces(), s.namespace) {
		if strings.HasPrefix(subject, protocol.NamesSubject(ns, s.self.owner)+".") {
			return ns
		}
	}
	return ""
}

// probe looks from time to time whether the server permits what it has refused, until nothing is refused. The
// library never repeats a subscription on a connection.
func (s *service) probe() {
	for pause := firstProbe; ; pause = min(2*pause, lastProbe) {
		select {
		case <-time.After(pause):
		case <-s.again:
			pause = firstProbe
		case <-s.ended.Done():
			return
		}
		for right, subject := range s.refusedNow() {
			if nc, _ := s.link.current(); nc != nil && s.permits(nc, subject) {
				s.granted(right)
			}
		}
		s.mu.Lock()
		over := len(s.refusals) == 0
		s.probing = s.probing && !over
		s.mu.Unlock()
		if over {
			return
		}
	}
}

// refusedNow is one refused subject of each right, another one each time.
func (s *service) refusedNow() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for right, subjects := range s.refusals {
		for subject := range subjects { // in no order
			out[right] = subject
			break
		}
	}
	return out
}

// permits asks the server. The subject is one on which the broker does not answer, so no answer of its own is lost.
func (s *service) permits(nc *nats.Conn, subject string) bool {
	ctx, cancel := context.WithTimeout(s.ended, probeTime)
	defer cancel()
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		return false
	}
	defer func() { _ = sub.Unsubscribe() }() // it goes with its connection otherwise
	if nc.FlushWithContext(ctx) != nil {
		return false
	}
	_, err = sub.NextMsg(time.Nanosecond) // a refusal came before the answer to the flush
	return !errors.Is(err, nats.ErrPermissionViolation)
}

// granted subscribes anew to what a right permits. What is refused all the same is told again.
func (s *service) granted(right string) {
	s.mu.Lock()
	subjects := s.refusals[right]
	delete(s.refusals, right)
	s.stale = true
	s.mu.Unlock()
	for subject := range subjects {
		if ns := s.namespaceOf(subject); ns != "" {
			s.names.mute(ns, false)
		}
	}
	s.log.Info("NATS lets the broker answer now", "right", "subscribe to "+right)
	s.update()
	s.link.changed()
}

// forgetLocked drops refusals of functions that are listed no more.
func (s *service) forgetLocked() {
	listed := map[string]bool{}
	for _, f := range s.listed {
		listed[protocol.FunctionSubject(f.Namespace, f.Name)] = true
	}
	for right, subjects := range s.refusals {
		maps.DeleteFunc(subjects, func(subject string, _ struct{}) bool {
			return strings.Split(subject, ".")[2] == "call" && !listed[subject]
		})
		if len(subjects) == 0 {
			delete(s.refusals, right)
		}
	}
}

// why is the reason why the broker is not, or not wholly, a service of NATS.
func (s *service) why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != "" {
		return s.failed
	}
	var all []string
	for _, right := range slices.Sorted(maps.Keys(s.refusals)) {
		subjects := slices.Sorted(maps.Keys(s.refusals[right]))
		what := subjects[0]
		if n := len(subjects) - 1; n > 0 {
			what += fmt.Sprintf(" and %d more", n)
		}
		all = append(all, fmt.Sprintf("the server does not let the broker subscribe to %s, which needs the right to subscribe to %s", what, right))
	}
	return strings.Join(all, "; ")
}

// mute notes whether the broker cannot answer in a namespace: what it writes must not say that it does.
func (n *names) mute(ns string, muted bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.muted[ns] == muted {
		return
	}
	n.muted[ns] = muted
	s := n.spaces[ns]
	if s == nil {
		return
	}
	for name, k := range s.keys {
		if k.holder == nil {
			s.dirty[name] = struct{}{}
		}
	}
	n.kick()
}
