package machines

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// tcp carries frames over direct connections, one for each passage.
type tcp struct {
	security *security

	mu        sync.Mutex
	listener  net.Listener // nil: this host only opens passages
	addresses []string
	closed    bool
	open      map[net.Conn]bool
	serving   sync.WaitGroup
}

// newTCP listens at an address; "" means that it does not.
func newTCP(listen string, security *security) (*tcp, error) {
	t := &tcp{security: security, open: map[net.Conn]bool{}}
	if listen == "" {
		return t, nil
	}
	return t, t.listen(listen)
}

// listen opens the data port. Accept comes after it.
func (t *tcp) listen(at string) error {
	l, err := net.Listen("tcp", at)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		l.Close()
		return errClosed
	}
	t.listener, t.addresses = l, reachable(l.Addr())
	return nil
}

// reachable lists the addresses by which a listener is reached: of one at all addresses those of the interfaces, those of
// loopback only if there are no others.
func reachable(a net.Addr) []string {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return nil
	}
	if !at.Addr().IsUnspecified() {
		return []string{at.String()}
	}
	var out, loopback []string
	all, _ := net.InterfaceAddrs()
	for _, one := range all {
		n, is := one.(*net.IPNet)
		if !is {
			continue
		}
		ip, ok := netip.AddrFromSlice(n.IP)
		if ip = ip.Unmap(); !ok || ip.IsLinkLocalUnicast() || at.Addr().Is4() && !ip.Is4() {
			continue
		}
		text := netip.AddrPortFrom(ip, at.Port()).String()
		if ip.IsLoopback() {
			loopback = append(loopback, text)
		} else if len(out) < mostAddresses {
			out = append(out, text)
		}
	}
	if out == nil {
		return loopback
	}
	return out
}

func (t *tcp) Name() string { return "tcp" }

func (t *tcp) Offer(o *Offer) { o.Addresses = append(o.Addresses, t.listens()...) }

func (t *tcp) listens() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addresses
}

func (t *tcp) Accept(serve func(Passage)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.listener
	if l == nil || t.closed {
		return
	}
	t.serving.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // no descriptors: some may be free soon
				time.Sleep(50 * time.Millisecond)
				continue
			}
			if !t.enter(c) {
				c.Close()
				continue
			}
			t.serving.Go(func() {
				if p := t.greet(c); p != nil {
					defer p.Close()
					serve(p)
				}
			})
		}
	})
}

// greet makes a passage of a connection that has come; nil: it is none.
func (t *tcp) greet(c net.Conn) *tcpPassage {
	if !t.security.wanted() {
		return newTCPPassage(c, nil, t.leave)
	}
	ctx, cancel := context.WithTimeout(context.Background(), helloTime)
	defer cancel()
	e, err := t.security.serve(ctx, c)
	if err == nil {
		return newTCPPassage(c, e, t.leave)
	}
	if atFault(err) {
		t.security.refused(err)
		linger(c)
	}
	c.Close()
	t.leave(c)
	return nil
}

// linger lets the other end read why its connection ends: the kernel drops that where it is closed with bytes unread.
func linger(c net.Conn) {
	if half, is := c.(*net.TCPConn); is && half.CloseWrite() == nil {
		c.SetReadDeadline(time.Now().Add(directTime))
		io.CopyN(io.Discard, c, mostPiece)
	}
}

func (t *tcp) enter(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.open) >= mostPassages {
		return false
	}
	t.open[c] = true
	return true
}

func (t *tcp) leave(c net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, c)
}

// Open tries all addresses at once, and takes the first that answers, with the certificate of the offer if it has one.
func (t *tcp) Open(ctx context.Context, _, host string, o *Offer) (Passage, error) {
	var targets []string
	for _, a := range o.Addresses {
		at, err := netip.ParseAddrPort(a)
		if err == nil && at.Port() != 0 && at.Addr().IsValid() && !at.Addr().IsMulticast() && len(targets) < mostAddresses {
			targets = append(targets, at.String())
		}
	}
	if len(targets) == 0 {
		return nil, errNoWay
	}
	want, named := readFingerprint(o.Certificate)
	encrypts := t.security.wanted()
	if encrypts && !named {
		return nil, errUnencrypted(host, true)
	}
	ctx, cancel := context.WithTimeout(ctx, directTime)
	defer cancel()
	type dialed struct {
		c   net.Conn
		e   *encrypted
		err error
	}
	came := make(chan dialed, len(targets))
	for _, at := range targets {
		go func() {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", at)
			var e *encrypted
			if err == nil && encrypts {
				if e, err = t.security.open(ctx, c, want); err != nil {
					c.Close()
				}
			}
			came <- dialed{c, e, err}
		}()
	}
	var first dialed
	var err error
	for range targets {
		d := <-came
		switch {
		case d.err != nil:
			if !errors.Is(err, errCertificate) { // of several reasons the one that tells most
				err = d.err
			}
		case first.c != nil:
			d.c.Close()
		default:
			first = d
			cancel() // the others
		}
	}
	if first.c == nil {
		if errors.Is(err, errCertificate) {
			t.security.refused(err)
		}
		return nil, fmt.Errorf("no data address of host %s answers within %s: %w", host, directTime, err)
	}
	if !t.enter(first.c) {
		first.c.Close()
		return nil, errClosed
	}
	return newTCPPassage(first.c, first.e, t.leave), nil
}

func (t *tcp) Close() {
	t.mu.Lock()
	t.closed = true
	for c := range t.open {
		c.Close()
	}
	l := t.listener
	t.mu.Unlock()
	if l != nil {
		l.Close()
	}
	t.serving.Wait()
}

// tcpPassage is a connection.
type tcpPassage struct {
	c     net.Conn   // to the kernel
	e     *encrypted // nil: what it carries is not encrypted
	r     *bufio.Reader
	head  [headBytes]byte
	got   int // bytes of the head that is being received
	left  uint32
	leave func(net.Conn)
	once  sync.Once
}

func newTCPPassage(c net.Conn, e *encrypted, leave func(net.Conn)) *tcpPassage {
	var from io.Reader = c
	if e != nil {
		from = e
	}
	// For heads: a body goes from the socket to where it belongs.
	return &tcpPassage{c: c, e: e, r: bufio.NewReaderSize(from, 4<<10), leave: leave}
}

// shows tells whether the other end has shown a certificate; nil: that it has shown none.
func (p *tcpPassage) shows(certificate *fingerprint) bool {
	if p.e == nil || certificate == nil {
		return p.e == nil && certificate == nil
	}
	return p.e.peer == *certificate
}

func (p *tcpPassage) Send(f Frame, body []byte) error {
	var head [headBytes]byte
	f.put(head[:])
	p.c.SetWriteDeadline(time.Now().Add(progressTime))
	if p.e != nil {
		return p.e.send(head[:], body)
	}
	buffers := net.Buffers{head[:], body}
	_, err := buffers.WriteTo(p.c)
	return err
}

func (p *tcpPassage) Receive(within time.Duration) (Frame, error) {
	p.c.SetReadDeadline(time.Now().Add(within))
	for p.got < headBytes {
		n, err := p.r.Read(p.head[p.got:])
		p.got += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return Frame{}, errSilence
		}
		if err != nil {
			return Frame{}, err
		}
	}
	p.got = 0
	f, err := readFrame(p.head[:])
	p.left = f.Body
	return f, err
}

func (p *tcpPassage) Body(to []byte) error {
	if uint32(len(to)) != p.left {
		return malformed("a body of %d bytes, not %d", p.left, len(to))
	}
	p.c.SetReadDeadline(time.Now().Add(progressTime))
	_, err := io.ReadFull(p.r, to)
	return err
}

func (p *tcpPassage) Close() error {
	p.once.Do(func() { p.leave(p.c) })
	return p.c.Close()
}
