package natsbridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// DefaultSilence is how long a broker must be away from NATS before its keys are
	// taken. It is several times what a broker needs to connect again once a server
	// that was restarted is there (lastDelay, dialTimeout for each address): not all are back at once.
	DefaultSilence = time.Minute
	// looks is how often other brokers are asked for in that time.
	looks = 6
	// askTime bounds one question. A question without an answer proves nothing.
	askTime = 2 * time.Second
	// mostLooks bounds the keys of others that are looked at again at a time.
	mostLooks = 64
	// mostOwners bounds the brokers that Status lists, mostNamed their keys.
	mostOwners, mostNamed = 16, 4
)

// ownerKey is a broker in a namespace: a broker answers in the namespaces of its names.
type ownerKey struct{ ns, owner string }

// owner is another broker that has keys which are wanted here.
//
// It counts as gone when no connection of NATS has answered for its subject for as long as
// Silence, while this bridge was connected and could ask. That applies only to an owner whose
// entries say that it answers. That is no proof that its process has ended: it may be
// cut off from NATS. No client can reach it then either, and when it is back it finds that
// its key is another's and leaves it alone, as the server refuses what it writes.
type owner struct {
	ownerKey
	hostName, machine string
	pid               int
	answers           bool
	keys              map[string]*key // that it holds, by name

	asked  uint64
	here   presence
	away   time.Time // since when it is
	gone   bool
	latest string // a name that is asked for
}

// presence is the result of the last question.
type presence int

const (
	unknown presence = iota
	connected
	absent
)

// ownerOf finds or makes the owner of an entry. An owner is kept as long as it holds a key.
func (n *names) ownerOf(ns string, e entry) *owner {
	id := ownerKey{ns, e.owner}
	o := n.owners[id]
	if o == nil {
		o = &owner{ownerKey: id, keys: map[string]*key{}}
	}
	o.hostName, o.machine, o.pid, o.answers = e.hostName, e.machine, e.pid, e.answers
	return o
}

// ownerNews is a key whose holder has changed.
type ownerNews struct {
	ns, name string
	from, to *owner // nil: no other broker
}

// heldLocked notes the owner of a key, nil for no other broker.
func (n *names) heldLocked(s *space, name string, k *key, o *owner) {
	was := k.holder
	if was == o {
		return
	}
	k.holder = o
	if was != nil {
		delete(was.keys, name)
		if len(was.keys) == 0 {
			delete(n.owners, was.ownerKey)
		}
	}
	if o != nil {
		n.owners[o.ownerKey] = o
		o.keys[name] = k
	}
	if k.wanted() {
		n.news = append(n.news, ownerNews{s.ns, name, was, o})
	}
}

// tell logs the keys that have another owner now, in a line for each broker.
func (n *names) tell() {
	n.mu.Lock()
	news, say := n.news, n.say
	n.news, n.say = nil, nil
	type line struct {
		ns, owner string
		held      bool
	}
	var lines []line
	names := map[line][]string{}
	for _, x := range news {
		at := line{ns: x.ns}
		if x.to != nil {
			f := x.to.shown()
			at.owner, at.held = f.String(), true
		}
		if names[at] == nil {
			lines = append(lines, at)
		}
		names[at] = append(names[at], x.name)
	}
	n.mu.Unlock()
	for _, f := range say {
		f()
	}
	for _, at := range lines {
		all := names[at]
		shown := strings.Join(all[:min(len(all), mostNamed)], " ")
		if len(all) > mostNamed {
			shown += " …"
		}
		if at.held {
			n.log.Warn("names are another broker's on NATS and stay so", "namespace", at.ns, "names", shown, "count", len(all), "held by", at.owner,
				"remedy", "delete them there; the keys of a broker that is gone, where it cannot be noticed: nats kv del "+bucketName(at.ns)+" KEY")
		} else {
			n.log.Info("names that were another broker's on NATS are this one's", "namespace", at.ns, "names", shown, "count", len(all))
		}
	}
}

// watchful tells whether lookAround has anything to do.
func (n *names) watchful() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.owners) > 0 {
		return true
	}
	for _, s := range n.spaces {
		if s.later {
			return true
		}
	}
	return false
}

// lookAround makes some keys of other brokers be looked at again, and asks whether these brokers
// are there.
func (n *names) lookAround() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.spaces {
		if s.later {
			s.later = false
			for name, k := range s.keys {
				if k.unsure {
					s.dirty[name] = struct{}{}
				}
			}
		}
	}
	left := mostLooks
	var all []*owner
	for _, o := range n.owners {
		s := n.spaces[o.ns]
		for name, k := range o.keys { // in another order each time
			o.latest = name
			if left--; left < 0 {
				break
			}
			k.unsure = true
			s.dirty[name] = struct{}{}
		}
		all = append(all, o)
	}
	if nc, _ := n.link.current(); nc != nil && len(all) > 0 && !n.asking {
		n.asking = true
		go n.ask(nc, all)
	}
}

// ask asks for owners, one after the other.
func (n *names) ask(nc *nats.Conn, all []*owner) {
	for _, o := range all {
		n.mu.Lock()
		subject := protocol.NameSubject(o.ns, o.owner, o.latest)
		n.mu.Unlock()
		here := unknown
		if validSubject(subject) && n.ctx.Err() == nil {
			ctx, cancel := context.WithTimeout(n.ctx, askTime)
			_, err := nc.RequestWithContext(ctx, subject, nil)
			cancel()
			switch {
			case err == nil:
				here = connected
			case errors.Is(err, nats.ErrNoResponders):
				here = absent
			}
		}
		n.mu.Lock()
		n.askedLocked(nc, o, here)
		n.mu.Unlock()
		n.changed()
	}
	n.mu.Lock()
	n.asking = false
	n.mu.Unlock()
	n.kick()
}

// askedLocked notes whether an owner was there.
func (n *names) askedLocked(nc *nats.Conn, o *owner, here presence) {
	if now, _ := n.link.current(); now != nc {
		here = unknown // the connection was lost meanwhile
	}
	o.asked++
	if here != absent {
		o.away, o.gone = time.Time{}, false
	} else if o.here != absent {
		o.away = time.Now()
	}
	o.here = here
	if here == absent && o.answers && time.Since(o.away) >= n.config.Silence && !o.gone {
		o.gone = true
		f := o.shown()
		n.say = append(n.say, func() {
			n.log.Info("a broker is gone from NATS: its keys may be taken", "namespace", f.Namespace, "broker", f.String())
		})
	}
	if !o.gone {
		return
	}
	s := n.spaces[o.ns]
	for name, k := range o.keys {
		k.unsure = true
		s.dirty[name] = struct{}{}
	}
}

// forgetLooksLocked begins to watch owners anew: none was asked while there was no
// connection.
func (n *names) forgetLooksLocked() {
	for _, o := range n.owners {
		o.here, o.away, o.gone = unknown, time.Time{}, false
	}
}

// ForeignOwner is another broker that has keys of names which are set here as well.
type ForeignOwner struct {
	Namespace string   `json:"namespace"`
	Instance  string   `json:"instance"`
	HostName  string   `json:"host_name,omitempty"`
	Machine   string   `json:"machine,omitempty"`
	PID       int      `json:"pid,omitempty"`
	Keys      int      `json:"keys"`
	Names     []string `json:"names"` // some of them
	// Connected tells whether it was connected to NATS when it was last asked for;
	// absent: it is not known, since it does not answer.
	Connected *bool  `json:"connected,omitempty"`
	Asked     uint64 `json:"asked"` // how often it was asked for
}

// String is the owner as messages name it.
func (f *ForeignOwner) String() string {
	text := "broker " + f.Instance
	if f.HostName != "" {
		text += " on " + f.HostName
	}
	if f.PID > 0 {
		text += fmt.Sprintf(" (pid %d)", f.PID)
	}
	if f.Connected != nil && !*f.Connected {
		text += ", which is not connected"
	}
	return text
}

func (o *owner) shown() ForeignOwner {
	f := ForeignOwner{Namespace: o.ns, Instance: o.owner, HostName: o.hostName, Machine: o.machine, PID: o.pid, Keys: len(o.keys), Asked: o.asked}
	if o.here != unknown {
		is := o.here == connected
		f.Connected = &is
	}
	return f
}

// foreignLocked lists some of the owners, in order.
func (n *names) foreignLocked() (list []ForeignOwner) {
	for _, o := range n.owners {
		f := o.shown()
		for name := range o.keys {
			f.Names = append(f.Names, name)
		}
		slices.Sort(f.Names)
		f.Names = f.Names[:min(len(f.Names), mostNamed)]
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b ForeignOwner) int {
		return strings.Compare(a.Namespace+"."+a.Instance, b.Namespace+"."+b.Instance)
	})
	return list[:min(len(list), mostOwners)]
}
