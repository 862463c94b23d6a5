package machines

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// absentTime is how long a host is silent on both ways until it counts as lost.
	absentTime = 5 * time.Second
	// brokenTime is that of a host whose connection has broken and which NATS does not know.
	brokenTime = time.Second
	// askTime is how long an answer is waited for until the question is put again.
	askTime = time.Second
	// againTime is the pause before something is tried again.
	againTime = 50 * time.Millisecond
	// mostBad is how often a piece may come with a wrong sum.
	mostBad = 3
)

// fetch brings one storage here.
type fetch struct {
	m      *Machines
	ns     string
	handle protocol.Handle
	// make takes memory, once the source has confirmed how much.
	make func(ctx context.Context) (Filling, error)

	into    Filling
	bytes   []byte
	missing []piece // pieces that are not here, or not verified
	bad     map[uint64]int

	broke  time.Time // when a passage ended before its time; zero: none has
	direct int       // passages over direct connections, one after the other, that brought nothing
	last   error     // what went wrong last
	note   func(error)
}

// piece is a range of the storage.
type piece struct {
	at     uint64
	length uint32
}

// run fetches until all is here, verified and confirmed, or it cannot be fetched.
func (f *fetch) run(ctx context.Context) error {
	f.bad = map[uint64]int{}
	for {
		err := f.attempt(ctx)
		var final *refused
		switch {
		case err == nil:
			return nil
		case f.complete() && (errors.As(err, &final) || isFinal(err)):
			return nil // all is here and verified: that the source does not know so changes nothing
		case errors.As(err, &final) && final.why.Code != protocol.CodeBusy:
			return final.why
		case isFinal(err):
			return err
		}
		f.went(err)
		f.m.log.Debug("a fetch from another host goes on", "host", f.handle.Host, "error", err)
		select {
		case <-ctx.Done():
			return f.late(ctx)
		case <-time.After(againTime):
		}
	}
}

// isFinal tells whether an error of this side ends the fetch.
func isFinal(err error) bool {
	var e *protocol.Error
	return errors.As(err, &e) && e.Code != protocol.CodeBusy && e.Code != protocol.CodeProtocol
}

func (f *fetch) complete() bool { return f.into != nil && len(f.missing) == 0 }

// went notes what went wrong.
func (f *fetch) went(err error) {
	f.last = err
	f.note(err)
}

// late is the error of a fetch whose time is over, or that is wanted no more.
func (f *fetch) late(ctx context.Context) error {
	e := protocol.Errorf(protocol.CodeUnreachable, "look at baton ls hosts, or give it more time", "host %s has not given %d bytes in time", f.handle.Host, f.handle.Bytes)
	if f.last != nil {
		e = protocol.Errorf(protocol.CodeUnreachable, "look at baton ls hosts, or give it more time", "host %s has not given %d bytes in time: %w", f.handle.Host, f.handle.Bytes, f.last)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return ctx.Err()
	}
	return e.With("host", f.handle.Host)
}

// attempt asks, opens a passage, and moves what is missing.
func (f *fetch) attempt(ctx context.Context) error {
	a, err := f.ask(ctx)
	if err != nil {
		return err
	}
	ticket, err := hex.DecodeString(a.Ticket)
	switch {
	case err != nil || len(ticket) != ticketBytes:
		return malformed("host %s gave an invalid ticket", f.handle.Host)
	case a.Bytes != f.handle.Bytes:
		return refusedBy(f.handle.Host, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "the storage has %d bytes, the handle says %d", a.Bytes, f.handle.Bytes))
	case a.Piece < leastPiece || a.Piece > mostPiece:
		return malformed("host %s gives pieces of %d bytes", f.handle.Host, a.Piece)
	}
	if f.into == nil {
		if f.into, err = f.make(ctx); err != nil {
			return err
		}
		f.bytes = f.into.Bytes()
		f.missing = cut(uint64(len(f.bytes)), a.Piece)
	} else {
		f.missing = cutAgain(f.missing, a.Piece)
	}
	p, direct, err := f.open(ctx, &a.Offer)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { p.Close() })()
	defer p.Close()
	before := len(f.missing)
	if err = p.Send(Frame{Kind: kindHello, Version: Highest, Body: ticketBytes}, ticket); err == nil {
		err = f.move(ctx, p, a.Piece)
	}
	if err != nil {
		f.broke = time.Now()
		switch {
		case !direct:
		case len(f.missing) == before:
			f.direct++
		default:
			f.direct = 0
		}
	}
	return err
}

// cut divides a storage.
func cut(size uint64, length uint32) (out []piece) {
	for at := uint64(0); at < size; at += uint64(length) {
		out = append(out, piece{at, uint32(min(uint64(length), size-at))})
	}
	return out
}

// cutAgain divides pieces that are longer than the source gives now.
func cutAgain(all []piece, length uint32) (out []piece) {
	for _, p := range all {
		for p.length > length {
			out = append(out, piece{p.at, length})
			p.at, p.length = p.at+uint64(length), p.length-length
		}
		out = append(out, p)
	}
	return out
}

// open opens a passage: a direct one if it may, else over NATS.
func (f *fetch) open(ctx context.Context, o *Offer) (p Passage, direct bool, err error) {
	host, other := f.handle.Host, f.m.usesNATS() && o.NATS
	err = errNoWay
	if f.m.tcp != nil && (f.direct < 2 || !other) {
		if err = f.mayOpen(ctx, o); err == nil {
			p, err = f.m.tcp.Open(ctx, f.ns, host, o)
		}
		if err == nil {
			f.m.overNATSTo(host, nil)
			return p, true, nil
		}
	}
	if protocol.CodeOf(err) == protocol.CodeUnsupported && !other {
		return nil, false, err
	}
	if !f.m.usesNATS() {
		why := "--data=tcp permits no other way"
		if f.m.nats != nil {
			why = "--data-tls=on permits no bytes over a NATS that is reached without TLS"
		}
		return nil, false, protocol.Errorf(protocol.CodeBusy, "open its data port (--data-listen), or use --data=auto", "host %s cannot be reached directly, and %s: %w", host, why, err)
	}
	if f.m.tcp != nil {
		f.m.overNATSTo(host, err)
	}
	p, err = f.m.nats.Open(ctx, f.ns, host, o)
	if errors.Is(err, errNoWay) {
		err = protocol.Errorf(protocol.CodeBusy, "let both hosts use the same way (--data), and open the data port", "host %s gives bytes in no way that this host can use", host)
	}
	return p, false, err
}

// mayOpen tells whether the source is reached directly as this host wants it, and shows the certificate that the directory has.
func (f *fetch) mayOpen(ctx context.Context, o *Offer) error {
	switch encrypts := f.m.encrypts(); {
	case encrypts && o.Certificate == "" && len(o.Addresses) > 0:
		return errUnencrypted(f.handle.Host, true)
	case encrypts && o.Certificate != "":
		_, err := f.m.dir.certificate(ctx, f.handle.Host, o.Certificate)
		return err
	case !encrypts && o.Certificate != "":
		return errUnencrypted(f.handle.Host, false)
	}
	return nil
}

// move moves what is missing through a passage, and confirms.
func (f *fetch) move(ctx context.Context, p Passage, most uint32) error {
	host := f.handle.Host
	underway := map[uint64]uint32{}
	defer func() {
		for at, n := range underway {
			f.m.gate.give(host, int64(n))
			f.missing = append(f.missing, piece{at, n})
		}
	}()
	for len(f.missing) > 0 || len(underway) > 0 {
		for len(underway) < windowPieces && len(f.missing) > 0 {
			next := f.missing[0]
			if len(underway) > 0 {
				if !f.m.gate.try(host, int64(next.length)) {
					break
				}
			} else if err := f.m.gate.take(ctx, host, int64(next.length)); err != nil {
				return err
			}
			f.missing = f.missing[1:]
			underway[next.at] = next.length
			if err := p.Send(Frame{Kind: kindWant, Version: Highest, Offset: next.at, Length: next.length}, nil); err != nil {
				return err
			}
		}
		h, err := f.receive(ctx, p)
		if err != nil {
			return err
		}
		n, wanted := underway[h.Offset]
		if h.Kind != kindPiece || !wanted || n != h.Body {
			return malformed("host %s sent a frame of kind %d with %d bytes at %d, which was not asked for", host, h.Kind, h.Body, h.Offset)
		}
		part := f.bytes[h.Offset : h.Offset+uint64(n)]
		if err := p.Body(part); err != nil {
			return err
		}
		delete(underway, h.Offset)
		f.m.gate.give(host, int64(n))
		if sumOf(part, h.Offset) != h.Sum {
			f.missing = append([]piece{{h.Offset, n}}, f.missing...)
			f.m.count(func(c *counts) { c.bad++ })
			if f.bad[h.Offset]++; f.bad[h.Offset] >= mostBad {
				return &refused{protocol.Errorf(protocol.CodeProtocol, "have the tensor written by no process once its handle was given away, and look for what changes bytes on the way",
					"%d bytes at %d from host %s came with a wrong sum %d times", n, h.Offset, host, mostBad)}
			}
			continue
		}
		f.m.count(func(c *counts) { c.fetchedBytes += uint64(n) })
	}
	if err := p.Send(Frame{Kind: kindDone, Version: Highest}, nil); err != nil {
		return err
	}
	h, err := f.receive(ctx, p)
	if err == nil && h.Kind != kindReleased {
		err = malformed("host %s sent a frame of kind %d after all was confirmed", host, h.Kind)
	}
	return err
}

// receive waits for a frame. A source that says nothing is asked over NATS whether it is there.
func (f *fetch) receive(ctx context.Context, p Passage) (Frame, error) {
	host := f.handle.Host
	for waited := time.Duration(0); ; waited += absentTime {
		h, err := p.Receive(absentTime)
		switch {
		case err == nil && h.Kind == kindRefused:
			body := make([]byte, h.Body)
			if err := p.Body(body); err != nil {
				return h, err
			}
			return h, f.refused(body)
		case !errors.Is(err, errSilence):
			return h, err
		case waited+absentTime >= progressTime:
			return h, err
		}
		alive, known := f.m.ping(ctx, f.ns, host)
		if !alive && known {
			return h, lost(host, "it is silent on all ways for more than "+absentTime.String())
		}
	}
}

// refused is why a source refused a passage. A ticket that is over is asked for again.
func (f *fetch) refused(body []byte) error {
	err := readRefusal(f.handle.Host, body)
	if protocol.CodeOf(err) == protocol.CodePermission {
		return errors.New(protocol.Plain(err))
	}
	return err
}

func lost(host, why string) error {
	return protocol.Errorf(protocol.CodeHostLost, "have it made again: its bytes were in the memory of that host", "host %s is gone: %s", host, why).With("host", host)
}

// ask puts the question until it is answered.
func (f *fetch) ask(ctx context.Context) (*answer, error) {
	host := f.handle.Host
	subject := protocol.HostSubject(f.ns, host, subjectFetch)
	var began time.Time // of the silence, while this host's own link is up
	looked := false
	for {
		nc := f.m.current()
		if nc == nil {
			began = time.Time{}
			f.went(errors.New("the link to NATS is down"))
			if err := f.pause(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if f.m.dir.wasWritten(ctx) != nil {
			return nil, f.late(ctx)
		}
		if began.IsZero() {
			began = time.Now()
		}
		q, err := json.Marshal(question{Lowest: Lowest, Highest: Highest, Host: f.m.cfg.Instance, Handle: f.handle, Piece: f.m.takes(), Certificate: f.m.certificate()})
		if err != nil {
			return nil, err
		}
		asked, cancel := context.WithTimeout(ctx, askTime)
		m, err := nc.RequestWithContext(asked, subject, q)
		cancel()
		if err == nil {
			var a answer
			if len(m.Data) > mostQuestion || json.Unmarshal(m.Data, &a) != nil {
				return nil, malformed("host %s gave an answer that cannot be read", host)
			}
			if a.Error != nil {
				return nil, refusedBy(host, a.Error)
			}
			if a.Version < Lowest || a.Version > Highest {
				return nil, malformed("host %s chose the version %d", host, a.Version)
			}
			return &a, nil
		}
		f.went(err)
		switch silent := time.Since(began); {
		case ctx.Err() != nil:
			return nil, f.late(ctx)
		case natsGone(err) && !f.broke.IsZero() && silent >= brokenTime:
			return nil, lost(host, "its connection has broken, and it is not connected to NATS")
		case natsGone(err) && !looked:
			looked = true
			if err := f.m.explain(ctx, f.ns, host); err != nil {
				return nil, err
			}
		case silent >= absentTime && f.m.current() != nil:
			return nil, lost(host, "it answers nothing for more than "+absentTime.String())
		case !natsGone(err) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout):
			began = time.Time{} // it is this host's own link
		}
		if err := f.pause(ctx); err != nil {
			return nil, err
		}
	}
}

func (f *fetch) pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return f.late(ctx)
	case <-time.After(againTime):
		return nil
	}
}

// isInstance tells whether a text may be a host's name.
func isInstance(s string) bool {
	h := protocol.Handle{Host: s, DType: "uint8", Shape: []int64{0}, Device: "cpu"}
	return h.Check() == nil
}
