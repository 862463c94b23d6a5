package broker

import "github.com/baton-ipc/baton/protocol"

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
		w.write(rest[:n])
		w.send(m.to, rest[:n])
		rest = rest[n:]
	}
	if cap(w.text) > keptOutput {
		w.text = nil
	}
}

// write describes messages. What cannot be described is lost to subscribers, and the
// next one says so.
func (w *tupleWriter) write(run []copiedMessage) {
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

// publishName sends a name that has changed to its bucket.
func (m *mirror) publishName(n *copiedName) {
	if n.deleted {
		m.to.DeleteName(n.namespace, n.name)
		return
	}
	e, err := protocol.NewTupleEncoder(n.name, m.b.store.Own.Name, m.b.id)
	if err != nil {
		return
	}
	if value, err := e.Append(nil, &n.message); err == nil {
		m.to.SetName(n.namespace, n.name, n.message.Sequence, value)
	}
}
