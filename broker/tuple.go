package broker

import "github.com/baton-ipc/baton/protocol"

// keptOutput is how much memory for written tuples is kept.
const keptOutput = 1 << 20

// tupleWriter describes copied messages as JSON, in memory that it uses again.
type tupleWriter struct {
	out      []byte
	messages [][]byte // parts of out on one subject, for Publish
	lost     []uint64 // what each of them says
	places   []*place
}

// publish writes and publishes what was copied. The broker's lock is not held.
func (m *mirror) publish() {
	c, w := &m.copied, &m.writer
	for i := range c.names {
		m.publishName(&c.names[i])
	}
	for i := range c.messages {
		x := &c.messages[i]
		if i > 0 && x.subject != c.messages[i-1].subject {
			w.send(m.to, c.messages[i-1].subject)
		}
		x.place.lost += x.skipped
		if !w.add(x) {
			x.place.lost++
		}
	}
	if n := len(c.messages); n > 0 {
		w.send(m.to, c.messages[n-1].subject)
	}
	w.reset()
}

// add writes a tuple.
func (w *tupleWriter) add(x *copiedMessage) bool {
	p := x.place
	if p.encoder == nil {
		return false
	}
	x.tuple.Lost = p.lost
	from := len(w.out)
	var err error
	if w.out, err = p.encoder.Append(w.out, &x.tuple); err != nil {
		return false
	}
	w.messages = append(w.messages, w.out[from:len(w.out):len(w.out)])
	w.lost, w.places = append(w.lost, p.lost), append(w.places, p)
	p.lost = 0
	return true
}

// send publishes what was written. What is refused is lost to subscribers.
func (w *tupleWriter) send(to Publisher, subject string) {
	for i := 0; i < len(w.messages); i++ {
		if i += to.Publish(subject, w.messages[i:]...); i < len(w.messages) {
			w.places[i].lost += w.lost[i] + 1
		}
	}
	w.messages, w.lost, w.places = w.messages[:0], w.lost[:0], w.places[:0]
}

func (w *tupleWriter) reset() {
	if w.out = w.out[:0]; cap(w.out) > keptOutput {
		w.out = nil
	}
}

// publishName sends a name that has changed to its bucket.
func (m *mirror) publishName(n *copiedName) {
	if n.deleted {
		m.to.DeleteName(n.namespace, n.name)
		return
	}
	e, err := protocol.NewTupleEncoder(n.name, m.b.own.name, m.b.id)
	if err != nil {
		return
	}
	if value, err := e.Append(nil, &n.message); err == nil {
		m.to.SetName(n.namespace, n.name, n.message.Sequence, value)
	}
}
