package broker

import (
	"errors"
	"os"
	"strings"
	"sync"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// keptOutput is how much memory for written tuples is kept.
const keptOutput = 1 << 20

// tupleWriter describes copied messages as JSON, in memory that it uses again.
type tupleWriter struct {
	text    []byte
	bounds  []int // tuple i is text[bounds[i]:bounds[i+1]]
	written []int // which message each tuple is
}

// publish writes and publishes what was copied, in runs of one subject. The broker's
// lock is not held.
func (m *mirror) publish() {
	c, w := &m.copied, &m.writer
	for i := range c.names {
		m.publishName(&c.names[i])
	}
	for rest := c.messages; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].subject == rest[0].subject {
			n++
		}
		m.missed += w.write(rest[:n])
		w.send(m.to, rest[:n])
		rest = rest[n:]
	}
	if m.missed > 0 {
		m.to.Missed(m.missed)
		m.missed = 0
	}
	if cap(w.text) > keptOutput {
		w.text = nil
	}
}

// write describes messages. What cannot be described is lost to subscribers, and the
// next one says so. It returns how many these are.
func (w *tupleWriter) write(run []copiedMessage) uint64 {
	w.text, w.bounds, w.written = w.text[:0], append(w.bounds[:0], 0), w.written[:0]
	for i := range run {
		x := &run[i]
		p := x.place
		p.lost += x.skipped
		x.tuple.Lost = p.lost
		p.lost++
		if p.encoder == nil {
			continue
		}
		var err error
		if w.text, err = p.encoder.Append(w.text, &x.tuple); err == nil {
			w.bounds, w.written = append(w.bounds, len(w.text)), append(w.written, i)
			p.lost = 0
		}
	}
	return uint64(len(run) - len(w.written))
}

// send publishes what was written. What is refused is lost to subscribers.
func (w *tupleWriter) send(to Publisher, run []copiedMessage) {
	for at := 0; at < len(w.written); at++ {
		if at += to.Publish(run[0].subject, w.text, w.bounds[at:]); at < len(w.written) {
			x := &run[w.written[at]]
			x.place.lost += x.tuple.Lost + 1
		}
	}
}

// originHere is where this broker's tuples come from.
func originHere() protocol.Origin {
	return protocol.Origin{HostName: hostName(), Machine: sys.BootID(), BrokerPID: uint32(processID)}
}

// hostName is the name of this host, or container, as the broker's process sees it; "": the kernel tells none.
var hostName = sync.OnceValue(func() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(name, "?")
})

// originOf is the origin of what a process has sent; 0: one that is not known.
func (m *mirror) originOf(pid int) protocol.Origin {
	o := m.origin
	o.PID = uint32(max(pid, 0))
	return o
}

// publishName sends a name that has changed to its bucket. One that has no tuple is
// left out there: an older one would mislead.
func (m *mirror) publishName(n *copiedName) {
	switch value, short, err := m.describeName(n); {
	case n.deleted:
		m.to.DeleteName(n.namespace, n.name)
	case err != nil:
		m.to.LeaveOut(n.namespace, n.name, withoutRemedy(err))
	default:
		m.to.SetName(n.namespace, n.name, value, short)
	}
}

// describeName writes a name's tuple, and what may stand for it.
func (m *mirror) describeName(n *copiedName) (value []byte, short protocol.TupleReference, err error) {
	if n.deleted || n.unread {
		return nil, short, errUnread
	}
	origin := m.originOf(n.setter)
	e, err := protocol.NewTupleEncoder(n.name, m.b.store.Own.Name, m.b.id, origin)
	if err != nil {
		return nil, short, err
	}
	if value, err = e.Append(nil, &n.message); err != nil {
		return nil, short, err
	}
	return value, protocol.TupleReference{Topic: n.name, Sender: m.b.store.Own.Name, Sequence: n.message.Sequence, Host: m.b.id,
		Origin: origin, Stamp: n.message.Stamp, Bytes: uint64(len(value)), Tensors: n.message.Tensors()}, nil
}

// withoutRemedy is what an error says to an operator: the remedy for readers is no use there.
func withoutRemedy(err error) string {
	var p *protocol.Error
	if errors.As(err, &p) {
		return p.Message
	}
	return err.Error()
}

var errUnread = errors.New("its memory was not handed over to this broker")
