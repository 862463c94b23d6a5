package natsbridge

import (
	"strings"
	"sync"
)

// interestCache keeps the subjects subscribed to as of one version.
type interestCache struct {
	mu       sync.Mutex
	known    bool
	version  uint64
	subjects []string
}

// Interest tells whether a message on the subject would reach a subscriber besides
// this bridge. On a joined server that is not known: there it is always true. After Close it
// is false with the embedded server.
func (b *Bridge) Interest(subject string) bool {
	if b.server == nil {
		return true
	}
	return b.link.connected.Load() && b.server.interest(subject)
}

// AnyInterest tells whether a client besides this bridge subscribes to the subject given
// or to one below it: whole tokens joined by '.', such as baton.default.topic. It
// costs a look at all subscriptions once after each change. Joined: always true.
func (b *Bridge) AnyInterest(prefix string) bool {
	if b.server == nil {
		return true
	}
	if !b.link.connected.Load() {
		return false
	}
	prefix = strings.TrimSuffix(prefix, ".")
	c := &b.interest
	c.mu.Lock()
	defer c.mu.Unlock()
	// The version is read first: a change between the two reads is seen next time.
	if v := b.server.version(); !c.known || v != c.version {
		c.subjects, c.version, c.known = b.server.subjects(), v, true
	}
	for _, s := range c.subjects {
		if below(s, prefix) && !b.service.own(s) {
			return true
		}
	}
	return false
}

// InterestVersion changes whenever a subscription comes or goes, and perhaps
// without: a caller that sees it unchanged need not ask Interest again. It costs about a
// microsecond. Joined: always 0.
func (b *Bridge) InterestVersion() uint64 {
	if b.server == nil {
		return 0
	}
	return b.server.version()
}

// InterestMayChange tells whether InterestVersion may soon be another: not before a client
// of the embedded server is there, and Config.Tell is called for each that comes. Joined:
// never.
func (b *Bridge) InterestMayChange() bool { return b.server != nil && b.attended() }

// below tells whether a subscription's subject, wildcards included, can match the
// prefix or something below it.
func below(subscription, prefix string) bool {
	for prefix != "" {
		var want, has string
		want, prefix, _ = strings.Cut(prefix, ".")
		has, rest, more := strings.Cut(subscription, ".")
		if has == ">" {
			return true
		}
		if has != "*" && has != want {
			return false
		}
		if !more {
			return prefix == ""
		}
		subscription = rest
	}
	return true
}
