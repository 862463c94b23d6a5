package machines

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/protocol"
)

// Subjects of a host, behind baton.<ns>.host.<instance>.
const (
	subjectFetch = "fetch"
	subjectData  = "data"
	subjectPing  = "ping"
)

const (
	// mostTransfers bounds the references that are held for all other hosts, mostTransfersOfPeer for one.
	mostTransfers       = 512
	mostTransfersOfPeer = 128
	// mostQuestion bounds what another host asks.
	mostQuestion = protocol.MaxHandle + 4<<10
	// mostQuestions bounds those that are being answered.
	mostQuestions = 64
	// holdTime is how long a source takes to hold a storage.
	holdTime = 5 * time.Second
)

// question asks for a storage.
type question struct {
	Lowest  int             `json:"lowest"`
	Highest int             `json:"highest"`
	Host    string          `json:"host"` // that asks
	Handle  protocol.Handle `json:"handle"`
	// Piece is the largest piece that the asking host takes.
	Piece uint32 `json:"piece"`
	// Certificate is the fingerprint of the asking host's, if its direct connections are encrypted.
	Certificate string `json:"certificate,omitempty"`
	// Claim asks for nothing but that the lease of the handle is redeemed: its bytes are there.
	Claim bool `json:"claim,omitempty"`
}

// answer offers it.
type answer struct {
	Version int             `json:"version,omitempty"`
	Bytes   uint64          `json:"bytes"`
	Piece   uint32          `json:"piece,omitempty"`
	Ticket  string          `json:"ticket,omitempty"`
	Error   *protocol.Error `json:"error,omitempty"`
	Offer
}

// pong answers a ping.
type pong struct {
	Life    string `json:"life"` // a number of the process, which no other has
	Lowest  int    `json:"lowest"`
	Highest int    `json:"highest"`
}

// transfer is a reference that is held for another host.
type transfer struct {
	held   Held
	ns     string
	peer   string
	handle protocol.Handle
	bytes  []byte
	piece  uint32
	// certificate is the one that the receiver shows on a direct connection; nil: on none, or they are not encrypted.
	certificate *fingerprint
	used        bool
	late        *time.Timer
}

// source gives storages of this host to others.
type source struct {
	m *Machines

	asking chan struct{} // a place for each question that is being answered

	mu        sync.Mutex
	closed    bool
	transfers map[[ticketBytes]byte]*transfer
	ofPeer    map[string]int
}

func newSource(m *Machines) *source {
	return &source{m: m, asking: make(chan struct{}, mostQuestions), transfers: map[[ticketBytes]byte]*transfer{}, ofPeer: map[string]int{}}
}

// asked answers a question. It returns at once.
func (s *source) asked(m *nats.Msg) {
	select {
	case s.asking <- struct{}{}:
		go func() {
			defer func() { <-s.asking }()
			a, err := s.offer(namespaceOf(m.Subject), m.Data)
			s.answer(m, a, err)
		}()
	default:
		s.answer(m, nil, protocol.Errorf(protocol.CodeBusy, "try again", "%d questions are being answered", mostQuestions))
	}
}

// answerWith answers another question. It returns at once.
func (s *source) answerWith(m *nats.Msg, answer func(ns string, data []byte) []byte) {
	select {
	case s.asking <- struct{}{}:
		go func() {
			defer func() { <-s.asking }()
			if data := answer(namespaceOf(m.Subject), m.Data); data != nil && m.Reply != "" {
				if err := m.Respond(data); err != nil {
					s.m.log.Debug("a question of another host was not answered", "error", err)
				}
			}
		}()
	default: // it asks again
	}
}

func (s *source) answer(m *nats.Msg, a *answer, err error) {
	if err != nil {
		s.m.refuse("a question of another host", err)
		a = &answer{Error: &protocol.Error{}}
		json.Unmarshal(refusalBody(err), a.Error)
	}
	data, err := json.Marshal(a)
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil {
		s.m.log.Debug("a question of another host was not answered", "error", err)
	}
}

func (s *source) offer(ns string, data []byte) (*answer, error) {
	var q question
	if len(data) > mostQuestion {
		return nil, malformed("a question of %d bytes", len(data))
	}
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, malformed("a question that cannot be read: %w", err)
	}
	if err := q.Handle.Check(); err != nil {
		return nil, err
	}
	version, err := agree(q.Lowest, q.Highest, shortened(q.Host))
	switch {
	case err != nil:
		return nil, err
	case !isInstance(q.Host):
		return nil, malformed("a question of a host that has no name")
	case q.Handle.Host != s.m.cfg.Instance:
		return nil, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "the handle is of host %s", q.Handle.Host)
	case q.Handle.Device != "cpu":
		return nil, onDevice(&q.Handle)
	case q.Handle.Empty():
		return nil, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "the handle names no storage")
	case !s.m.spans(ns):
		return nil, notSpanned(ns, "this host")
	}
	ctx, cancel := context.WithTimeout(s.m.ctx, holdTime)
	defer cancel()
	if q.Claim {
		held, err := s.m.cfg.Memory.Hold(ctx, ns, &q.Handle)
		if err != nil {
			return nil, err
		}
		defer held.Release()
		return &answer{Version: version}, held.Claim(ctx)
	}
	piece := min(q.Piece, mostPiece)
	if most := s.m.payload(); most != 0 {
		piece = min(piece, most)
	}
	if piece < leastPiece {
		return nil, malformed("pieces of %d bytes are too short", piece)
	}
	offer, certificate, err := s.ways(ctx, &q)
	if err != nil {
		return nil, err
	}
	t := &transfer{ns: ns, peer: q.Host, handle: q.Handle, piece: piece, certificate: certificate}
	ticket, err := s.enter(t)
	if err != nil {
		return nil, err
	}
	held, err := s.m.cfg.Memory.Hold(ctx, ns, &q.Handle)
	if err != nil {
		s.drop(ticket, t)
		return nil, err
	}
	s.mu.Lock()
	t.held, t.bytes = held, held.Bytes()
	gone := s.transfers[ticket] != t
	if !gone {
		t.late = time.AfterFunc(progressTime, func() { s.drop(ticket, t) })
	}
	s.mu.Unlock()
	if gone {
		held.Release()
		return nil, errEnds
	}
	return &answer{Version: version, Bytes: uint64(len(t.bytes)), Piece: piece, Ticket: hex.EncodeToString(ticket[:]), Offer: *offer}, nil
}

// ways are those by which a host may get bytes, and its certificate if one of them is encrypted. A host whose certificate is not
// known, or that does not encrypt where this one does, gets them over NATS.
func (s *source) ways(ctx context.Context, q *question) (o *Offer, certificate *fingerprint, err error) {
	o = &Offer{Certificate: s.m.certificate()}
	if o.Certificate != "" {
		var print fingerprint
		if q.Certificate == "" {
			err = errUnencrypted(q.Host, true)
		} else if print, err = s.m.dir.certificate(ctx, q.Host, q.Certificate); err == nil {
			certificate = &print
		}
	}
	if s.m.tcp != nil && err == nil {
		s.m.tcp.Offer(o)
	}
	if s.m.usesNATS() {
		s.m.nats.Offer(o)
		if err != nil {
			s.m.refuse("a direct connection of host "+shortened(q.Host), err)
		}
		return o, certificate, nil
	}
	return o, certificate, err
}

// expects tells whether a receiver with such a certificate has been given a ticket.
func (s *source) expects(print fingerprint) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.transfers {
		if t.certificate != nil && *t.certificate == print && !t.used {
			return true
		}
	}
	return false
}

var errEnds = protocol.Errorf(protocol.CodeBusy, "try again", "the broker ends")

// enter makes a ticket, within the limits.
func (s *source) enter(t *transfer) (ticket [ticketBytes]byte, err error) {
	rand.Read(ticket[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ticket, errEnds
	case len(s.transfers) >= mostTransfers:
		return ticket, protocol.Errorf(protocol.CodeBusy, "try again", "%d storages are being given to other hosts", mostTransfers)
	case s.ofPeer[t.peer] >= mostTransfersOfPeer:
		return ticket, protocol.Errorf(protocol.CodeBusy, "try again", "%d storages are being given to host %s", mostTransfersOfPeer, t.peer)
	}
	s.transfers[ticket] = t
	s.ofPeer[t.peer]++
	return ticket, nil
}

// drop ends a transfer and its reference.
func (s *source) drop(ticket [ticketBytes]byte, t *transfer) {
	s.mu.Lock()
	is := s.transfers[ticket] == t
	if is {
		delete(s.transfers, ticket)
		if s.ofPeer[t.peer]--; s.ofPeer[t.peer] == 0 {
			delete(s.ofPeer, t.peer)
		}
	}
	held := t.held
	if t.late != nil {
		t.late.Stop()
	}
	t.held = nil
	s.mu.Unlock()
	if held != nil {
		held.Release()
	}
}

// use takes a ticket, which is good once, and for the host that asked alone.
func (s *source) use(ticket [ticketBytes]byte, p Passage) (*transfer, error) {
	direct, is := p.(*tcpPassage)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.transfers[ticket]
	switch {
	case t == nil || t.held == nil:
		return nil, protocol.Errorf(protocol.CodePermission, "ask anew", "the ticket is invalid, or its time is over")
	case t.used:
		return nil, protocol.Errorf(protocol.CodePermission, "ask anew", "the ticket was used before")
	case is && !direct.shows(t.certificate):
		return nil, errCertificate
	}
	t.used = true
	t.late.Stop() // the passage has deadlines of its own
	return t, nil
}

// serve gives what a passage's ticket is for.
func (s *source) serve(p Passage) {
	f, err := p.Receive(helloTime)
	if err != nil {
		s.ends(p, err)
		return
	}
	var ticket [ticketBytes]byte
	if f.Kind != kindHello {
		err = malformed("a passage begins with a frame of kind %d", f.Kind)
	} else if err = p.Body(ticket[:]); err != nil {
		return
	}
	var t *transfer
	if err == nil {
		t, err = s.use(ticket, p)
	}
	if err != nil {
		s.refuse(p, err)
		return
	}
	if s.give(p, t) {
		s.drop(ticket, t)
		return
	}
	// The receiver may come again with another ticket. Until it has a reference by that, this one stays.
	s.mu.Lock()
	if t.late != nil && t.held != nil {
		t.late.Reset(progressTime)
	}
	s.mu.Unlock()
}

// give answers what a receiver wants, and tells whether it has confirmed.
func (s *source) give(p Passage, t *transfer) (confirmed bool) {
	s.m.count(func(c *counts) { c.serving++ })
	defer s.m.count(func(c *counts) { c.serving-- })
	for {
		f, err := p.Receive(progressTime)
		if err != nil {
			s.ends(p, err)
			return false
		}
		switch f.Kind {
		case kindWant:
			size := uint64(len(t.bytes))
			if f.Length > t.piece || f.Offset > size || uint64(f.Length) > size-f.Offset {
				s.refuse(p, malformed("a range of %d bytes at %d, of a storage of %d bytes in pieces of %d", f.Length, f.Offset, size, t.piece))
				return false
			}
			part := t.bytes[f.Offset : f.Offset+uint64(f.Length)]
			f := Frame{Kind: kindPiece, Version: Highest, Body: f.Length, Offset: f.Offset, Sum: sumOf(part, f.Offset)}
			if p.Send(f, part) != nil {
				return false
			}
			s.m.count(func(c *counts) { c.servedBytes += uint64(len(part)) })
		case kindDone:
			ctx, cancel := context.WithTimeout(s.m.ctx, holdTime)
			err := t.held.Claim(ctx)
			cancel()
			if err != nil {
				s.m.log.Debug("the lease of a handle that another host has opened was not redeemed", "error", err)
			}
			s.m.count(func(c *counts) { c.served++ })
			p.Send(Frame{Kind: kindReleased, Version: Highest}, nil)
			return true
		default:
			s.refuse(p, malformed("a frame of kind %d from a receiver", f.Kind))
			return false
		}
	}
}

// ends refuses a passage on which a frame came that is none. Others end by themselves.
func (s *source) ends(p Passage, err error) {
	if asError(err).Code != protocol.CodeInternal {
		s.refuse(p, err)
	}
}

func (s *source) refuse(p Passage, err error) {
	s.m.refuse("a passage", err)
	body := refusalBody(err)
	sent := p.Send(Frame{Kind: kindRefused, Version: Highest, Body: uint32(len(body))}, body)
	if direct, is := p.(*tcpPassage); is && sent == nil {
		linger(direct.c)
	}
}

// close ends all references. Passages have ended before.
func (s *source) close() {
	s.mu.Lock()
	s.closed = true
	all := s.transfers
	s.transfers = map[[ticketBytes]byte]*transfer{}
	s.mu.Unlock()
	for ticket, t := range all {
		s.drop(ticket, t)
	}
}

func (s *source) holding() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.transfers)
}

func onDevice(h *protocol.Handle) error {
	return protocol.Errorf(protocol.CodeUnsupported, "copy it to the machine's memory there, and send a handle of the copy", "a tensor on %s of host %s is not given to other hosts", h.Device, h.Host)
}

func notSpanned(ns, host string) error {
	return protocol.Errorf(protocol.CodeUnsupported, "start its broker with --span, or with this namespace in the list of --span", "%s does not span the namespace %s", host, ns)
}
