package machines

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// passageBytes is the number of a passage, which the receiver chooses at random. Its messages begin with it.
	passageBytes = 16
	// mostQueued bounds the frames of a passage that wait; a receiver wants no more pieces at a time.
	mostQueued = 4 * windowPieces
)

// overNATS carries frames as messages. A receiver publishes to the subject "data" of the source, with an inbox of its own, to
// which the source publishes.
type overNATS struct {
	host    string
	current func() *nats.Conn

	mu       sync.Mutex
	serve    func(Passage)
	closed   bool
	passages map[[passageBytes]byte]*natsPassage
	serving  sync.WaitGroup
}

func newOverNATS(host string, current func() *nats.Conn) *overNATS {
	return &overNATS{host: host, current: current, passages: map[[passageBytes]byte]*natsPassage{}}
}

func (o *overNATS) Name() string { return "nats" }

func (o *overNATS) Offer(to *Offer) { to.NATS = true }

func (o *overNATS) Accept(serve func(Passage)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.serve = serve
}

// came takes a message of a receiver.
func (o *overNATS) came(m *nats.Msg) {
	if len(m.Data) < passageBytes+headBytes || m.Reply == "" {
		return
	}
	id := [passageBytes]byte(m.Data)
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.passages[id]
	if p == nil {
		f, err := readFrame(m.Data[passageBytes:])
		if err != nil || f.Kind != kindHello || o.serve == nil || o.closed || len(o.passages) >= mostPassages {
			return
		}
		p = &natsPassage{o: o, to: m.Reply, prefix: passageBytes, queue: make(chan *nats.Msg, mostQueued), ended: make(chan struct{})}
		p.leave = func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			delete(o.passages, id)
		}
		o.passages[id] = p
		serve := o.serve
		o.serving.Go(func() {
			defer p.Close()
			serve(p)
		})
	}
	select {
	case p.queue <- m:
	default: // it wants more than it may
		p.end()
	}
}

func (o *overNATS) Open(_ context.Context, ns, host string, offer *Offer) (Passage, error) {
	if !offer.NATS {
		return nil, errNoWay
	}
	nc := o.current()
	if nc == nil {
		return nil, nats.ErrDisconnected
	}
	p := &natsPassage{o: o, to: protocol.HostSubject(ns, host, subjectData), inbox: nc.NewInbox(), ended: make(chan struct{}), queue: make(chan *nats.Msg, mostQueued)}
	rand.Read(p.id[:])
	p.first = p.id[:]
	sub, err := nc.ChanSubscribe(p.inbox, p.queue)
	if err != nil {
		return nil, err
	}
	p.leave = func() { sub.Unsubscribe() }
	return p, nil
}

func (o *overNATS) Close() {
	o.mu.Lock()
	o.closed = true
	for _, p := range o.passages {
		p.end()
	}
	o.mu.Unlock()
	o.serving.Wait()
}

// natsPassage is a subject to publish to, and what comes.
type natsPassage struct {
	o      *overNATS
	to     string
	inbox  string // of a receiver
	id     [passageBytes]byte
	first  []byte // what each message begins with that is sent
	prefix int    // how long that is in those that come
	queue  chan *nats.Msg
	body   []byte
	buffer []byte
	leave  func()
	ended  chan struct{}
	once   sync.Once
}

func (p *natsPassage) Send(f Frame, body []byte) error {
	nc := p.o.current()
	if nc == nil {
		return nats.ErrDisconnected
	}
	var head [headBytes]byte
	f.put(head[:])
	p.buffer = append(append(append(p.buffer[:0], p.first...), head[:]...), body...)
	return nc.PublishMsg(&nats.Msg{Subject: p.to, Reply: p.inbox, Data: p.buffer})
}

func (p *natsPassage) Receive(within time.Duration) (Frame, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case m := <-p.queue:
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			return Frame{}, nats.ErrNoResponders
		}
		if len(m.Data) < p.prefix {
			return Frame{}, malformed("a message of %d bytes", len(m.Data))
		}
		data := m.Data[p.prefix:]
		f, err := readFrame(data)
		if err != nil {
			return f, err
		}
		if p.body = data[headBytes:]; len(p.body) != int(f.Body) {
			return f, malformed("a message with %d bytes behind its head, which says %d", len(p.body), f.Body)
		}
		return f, nil
	case <-p.ended:
		return Frame{}, errClosed
	case <-late.C:
		return Frame{}, errSilence
	}
}

func (p *natsPassage) Body(to []byte) error {
	if len(to) != len(p.body) {
		return malformed("a body of %d bytes, not %d", len(p.body), len(to))
	}
	copy(to, p.body)
	return nil
}

func (p *natsPassage) end() { p.once.Do(func() { close(p.ended) }) }

func (p *natsPassage) Close() error {
	p.end()
	p.leave()
	return nil
}

// natsGone tells whether an error says that no connection of NATS answers for a host.
func natsGone(err error) bool { return errors.Is(err, nats.ErrNoResponders) }

// payload is how long a piece may be in a message of a connection; 0: there is none.
func payload(nc *nats.Conn) uint32 {
	if nc == nil {
		return 0
	}
	return pieceWithin(nc.MaxPayload())
}

// pieceWithin is the length of pieces for messages of so many bytes.
func pieceWithin(most int64) uint32 {
	n := most - headBytes - passageBytes
	if n >= mostPiece {
		return mostPiece
	}
	if n < leastPiece {
		return 0
	}
	return uint32(n) &^ (leastPiece - 1)
}
