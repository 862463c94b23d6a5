package natsbridge

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// Headers of a mirrored name.
	headerOwner    = "Baton-Owner" // identity of the broker that wrote it
	headerRevision = "Baton-Revision"
	headerHost     = "Baton-Host"    // name of the broker's machine
	headerMachine  = "Baton-Machine" // its boot id
	headerPID      = "Baton-Pid"     // of the broker
	headerWrite    = "Baton-Write"   // which write of which life of the broker it is
	// headerAnswers: the broker answers on a subject of its own while it is connected,
	// so that its absence can be noticed.
	headerAnswers = "Baton-Answers"

	headerOperation = "KV-Operation"       // a key-value bucket's: DEL or PURGE
	headerReason    = "Nats-Marker-Reason" // set by the server on markers of its own

	mostOwner = 128 // bytes of an owner that are read
)

// identity is what a bridge's headers say about its broker.
type identity struct {
	owner, hostName, machine, version string
	pid                               int
}

// key is one name as wanted, and what is known of its key in the bucket.
type key struct {
	value    []byte
	short    protocol.TupleReference // written where the value is too large
	revision uint64
	deleted  bool   // it is not set here
	left     string // why a name that is set is not to stand in the bucket
	relic    bool   // an earlier life wrote it, and it was not set in this one
	change   uint64 // grows with each change, so that the writer sees it was overtaken
	applied  uint64 // up to which change of all keys the bucket has what was wanted of this one

	// The next write expects this to be the last of the key's messages. 0: there is none.
	sequence  uint64
	ours      bool      // that is an entry of this broker's
	unsure    bool      // it may not be the last any more: look before the next write
	holder    *owner    // whose entry it is, where it is another broker's
	reference bool      // the value was too large
	repaired  time.Time // when it was last written because it was not there any more
}

// wanted tells whether an entry of ours is to stand in the bucket.
func (k *key) wanted() bool { return !k.deleted && k.left == "" }

// markCleanLocked takes a key off the list of keys to write.
func (s *space) markCleanLocked(name string, k *key) {
	delete(s.dirty, name)
	if k.deleted && s.keys[name] == k {
		delete(s.keys, name)
	}
}

// entry is what a bucket holds of one key.
type entry struct {
	sequence uint64 // of the last message, 0: there is none
	there    bool   // it is no marker of a deletion
	owner    string // "": no broker's
	hostName string
	machine  string
	pid      int
	answers  bool
	life     string
	change   uint64
}

// entryOf reads the headers of a key's last message. Any client with access to the bucket may
// have written them.
func entryOf(h nats.Header, sequence uint64) entry {
	e := entry{sequence: sequence, there: h.Get(headerOperation) == "" && h.Get(headerReason) == "",
		owner: printable(h.Get(headerOwner), mostOwner), hostName: printable(h.Get(headerHost), mostOwner),
		machine: printable(h.Get(headerMachine), mostOwner), answers: h.Get(headerAnswers) != ""}
	e.pid, _ = strconv.Atoi(h.Get(headerPID)) // 0: not known
	life, change, _ := strings.Cut(h.Get(headerWrite), ".")
	e.life = life
	e.change, _ = strconv.ParseUint(change, 10, 64)
	return e
}

// printable is text that fits in a header and a line of a log.
func printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}

// headers of a write of ours.
func (n *names) headers(k *key, muted bool) nats.Header {
	h := nats.Header{}
	h.Set(headerOwner, n.self.owner)
	h.Set(headerHost, n.self.hostName)
	h.Set(headerMachine, n.self.machine)
	h.Set(headerPID, strconv.Itoa(n.self.pid))
	h.Set(headerWrite, n.life+"."+strconv.FormatUint(k.change, 10))
	if !muted {
		h.Set(headerAnswers, "1")
	}
	return h
}

// foundLocked notes what the bucket holds of a key, and decides whose the key is:
//
//   - No broker's, if nothing is there or what no broker wrote.
//   - Ours, if this broker wrote it, in this life or an earlier one, or the previous broker, which has ended.
//   - Another broker's, as long as that is not known to be gone. It is left alone.
//
// A key without an owner, our own key, and one of a broker that is gone are brought to what is
// wanted, by a write that expects to find what was seen here.
func (n *names) foundLocked(s *space, name string, k *key, e entry) {
	wasDirty, wasOurs := s.isDirty(name), k.ours
	k.unsure, k.sequence, k.ours = false, e.sequence, n.oursLocked(e)
	if e.there && e.owner != "" && !k.ours {
		o := n.ownerOf(s.ns, e)
		if !k.wanted() { // and nothing of ours is there
			k.sequence, o = 0, nil
		}
		n.heldLocked(s, name, k, o)
		if o == nil || !o.gone {
			s.markCleanLocked(name, k)
			return
		}
	} else {
		n.heldLocked(s, name, k, nil)
		if !k.wanted() && !k.ours || k.wanted() && k.ours && e.life == n.life && e.change == k.change {
			s.markCleanLocked(name, k)
			return
		}
	}
	if !wasDirty { // it was as it should be, or another's
		if time.Since(k.repaired) < n.config.Silence/looks {
			k.unsure, s.later = true, true // a client that takes it away again and again is not raced with
			return
		}
		if wasOurs {
			k.repaired = time.Now()
			n.say = append(n.say, func() {
				n.log.Info("a name's key on NATS was changed from outside: it is written again", "namespace", s.ns, "name", name)
			})
		}
	}
	s.dirty[name] = struct{}{}
	k.applied = 0
}

// oursLocked tells whether an entry is this broker's, or of the previous one in the same runtime directory.
func (n *names) oursLocked(e entry) bool {
	if !e.there {
		return false
	}
	f := n.former
	return e.owner == n.self.owner || f != nil && e.owner == f.owner && e.machine == f.machine && e.pid == f.pid
}

func (s *space) isDirty(name string) bool {
	_, is := s.dirty[name]
	return is
}

// mirrored tells whether the bucket holds what is wanted of a name.
func (s *space) mirrored(name string, k *key) bool {
	return k.ours && !k.unsure && !s.isDirty(name) && s.looked == s.asked
}

// NameState describes how far a name is mirrored.
func (b *Bridge) NameState(ns, name string) string {
	if b.server != nil && b.server.noNames != "" {
		return "not mirrored: " + b.server.noNames
	}
	if err := (*protocol.Error)(nil); errors.As(checkNamespace(ns), &err) {
		return "left out: " + err.Message
	}
	return b.names.stateOf(ns, name, b.link.connected.Load())
}

func (n *names) stateOf(ns, name string, connected bool) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var k *key
	s := n.spaces[ns]
	if s != nil {
		k = s.keys[name]
	}
	away := "" // what the bucket has is as of the last connection
	if !connected {
		away = "; not connected"
	}
	switch {
	case k == nil || k.deleted:
		return "pending" // the mirror has not looked yet
	case k.left != "":
		return "left out: " + k.left
	case n.resting:
		return deferred
	case k.holder != nil:
		f := k.holder.shown()
		return "key of " + f.String() + away
	case s.mirrored(name, k) && k.reference: // as it is counted, also while there is no connection
		return "mirrored, by reference" + away
	case s.mirrored(name, k):
		return "mirrored" + away
	case !connected:
		return "pending: not connected"
	case n.err != "":
		return "pending: " + n.err
	}
	return "pending"
}
