package broker

import (
	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

const (
	copiedWords    = 8 << 10 // of slots, room for a batch of small messages
	copiedStorages = 1 << 10 // kept room for
	// copiedSpills is how many bytes of spilled messages make a batch full. One alone
	// may have 64 MiB.
	copiedSpills = 1 << 20
	// copiedTries is how many messages are looked at for a batch, whether they can be
	// read or not.
	copiedTries = 64 * mirrorBatch
)

// copied is a batch of messages as they stood in their slots. It is filled under
// the broker's lock and read without it.
type copied struct {
	messages []copiedMessage
	names    []copiedName
	words    []uint64
	refs     []protocol.Ref
	storages []protocol.Storage
	spilled  uint64 // bytes read of spilled messages
	tries    int    // messages looked at
}

// copiedMessage is one message. What it aliases is private.
type copiedMessage struct {
	tuple   protocol.TupleMessage
	subject string
	place   *place
	skipped uint64 // messages of its lane before it that could not be copied
}

// copiedName is a name that was set or deleted.
type copiedName struct {
	namespace, name string
	deleted, unread bool
	setter          int // process that set it, 0: not known
	message         protocol.TupleMessage
}

func (c *copied) empty() bool { return len(c.messages) == 0 && len(c.names) == 0 }

func (c *copied) full() bool {
	return len(c.messages) >= mirrorBatch || len(c.words) > copiedWords/2 || c.spilled > copiedSpills || c.tries > copiedTries
}

// reset forgets the last batch and what it needed more memory for than most.
func (c *copied) reset() {
	clear(c.messages)
	clear(c.names)
	c.messages, c.names = c.messages[:0], c.names[:0]
	if cap(c.words) != copiedWords {
		c.words = make([]uint64, 0, copiedWords)
	}
	if cap(c.storages) > copiedStorages {
		c.storages, c.refs = nil, nil
	}
	c.words, c.storages, c.spilled, c.tries = c.words[:0], c.storages[:0], 0, 0
}

// add copies message i of a lane that is published on a subject. It returns false
// when the slot does not hold it any more or it could not be read. Callers hold
// the broker's mu.
func (c *copied) add(b *Broker, l *topics.Lane, i uint64, subject string, p *place) bool {
	c.tries++
	n := len(c.messages)
	c.messages = append(c.messages, copiedMessage{subject: subject, place: p, skipped: p.skipped})
	if !c.message(b, l, i, &c.messages[n].tuple) {
		c.messages = c.messages[:n]
		return false
	}
	p.skipped = 0
	return true
}

// message copies a message into m, which is empty. It takes no reference: what it reads beside the slot
// (storage entries, a spill) belongs to storages that the slot names, and if the
// slot still names the message afterwards, none of them has changed.
func (c *copied) message(b *Broker, l *topics.Lane, i uint64, m *protocol.TupleMessage) bool {
	h, words, ok := l.View.Read(i, c.words[len(c.words):])
	if !ok {
		return false
	}
	if len(words) <= cap(c.words)-len(c.words) { // else it lies in memory of its own
		c.words = c.words[:len(c.words)+len(words)]
	}
	m.Sequence, m.Stamp, m.Body, m.Writable = i, h.Stamp/1000, h.BodyOf(words), h.Flags&protocol.SlotWritable != 0
	if h.Flags&protocol.SlotAgreed != 0 {
		m.Sequence = h.Agreed(words).Revision
	}
	var err error
	if c.refs, err = protocol.ParseRefs(c.refs[:0], shm.BytesOf(words), int(h.Nref)); err != nil {
		return false
	}
	refs := c.refs
	if h.Flags&protocol.SlotSpilled != 0 {
		if len(refs) != 1 {
			return false
		}
		if refs, m.Body, err = c.spill(b, refs[0]); err != nil {
			return false
		}
	}
	from := len(c.storages)
	for _, r := range refs {
		s, ok := b.memory.Stored(r)
		if !ok {
			c.storages = c.storages[:from]
			return false
		}
		c.storages = append(c.storages, s)
	}
	m.Storages = c.storages[from:len(c.storages):len(c.storages)]
	// SYNC slot-seq: the second look, after everything else was read.
	shm.FenceAcquire()
	return l.View.Has(i)
}

// spill reads the refs and the body of a spilled message. The spill storage is
// held meanwhile, as when a client opens a handle.
func (c *copied) spill(b *Broker, r protocol.Ref) ([]protocol.Ref, []byte, error) {
	if err := b.memory.Hold(r); err != nil {
		return nil, nil, err
	}
	defer b.memory.Drop(r.Index)
	s, err := b.memory.OpenSpill(r)
	if err != nil {
		return nil, nil, err
	}
	c.spilled += s.Bytes()
	return s.Read(true)
}

// copyNames copies what names have become, until there is enough for one batch; then
// it returns true. Callers hold mu.
func (m *mirror) copyNames() (more bool) {
	for t := range m.names {
		if m.copied.full() {
			return true
		}
		delete(m.names, t)
		l, revision, set := t.Revision()
		n := copiedName{namespace: t.Namespace(), name: t.Name(), deleted: !m.b.topics.Has(t) || !set || t.IsForeign()} // the host that set it mirrors it
		if !n.deleted {
			n.setter = t.SetterPID()
			n.unread = !m.copied.message(m.b, l, revision, &n.message)
		}
		m.copied.names = append(m.copied.names, n)
	}
	return false
}
