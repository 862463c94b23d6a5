package machines

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

// byTLS has a host take NATS for one that is reached by TLS.
func byTLS(c *Config) { c.Encrypted = true }

// entry is what the directory has of a host.
func entry(t *testing.T, h *testHost, host string) Host {
	t.Helper()
	e, found, err := h.dir.find(within(t, patience), host)
	require.NoError(t, err)
	require.True(t, found)
	return e
}

func TestDirectConnectionsAreEncryptedWhereNATSIs(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	want := bytes.Repeat([]byte("not to be read on the way "), 1<<16)
	for name, k := range map[string]struct {
		set       func(*Config)
		encrypted bool
	}{
		"NATS by TLS":       {byTLS, true},
		"directly alone":    {func(c *Config) { c.Encrypted, c.Data = true, DataTCP }, true},
		"plain NATS":        {nil, false},
		"demanded":          {func(c *Config) { c.TLS = TLSOn }, true},
		"forbidden":         {func(c *Config) { c.Encrypted, c.TLS = true, TLSOff }, false},
		"demanded anyway":   {func(c *Config) { c.Encrypted, c.TLS = true, TLSOn }, true},
		"automatic as well": {func(c *Config) { c.Encrypted, c.TLS = true, TLSAuto }, true},
	} {
		t.Run(name, func(t *testing.T) {
			tag := strings.ReplaceAll(name, " ", "-")
			a, b := startHost(t, url, "a-"+tag, k.set), startHost(t, url, "b-"+tag, k.set)
			var mu sync.Mutex
			var seen []byte
			startProxy(t, a, func(_ int, _ int64, b []byte) bool {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, b...)
				return true
			})
			brings(t, b, a.memory.put(want, 0), want)
			atRest(t, a, b)
			require.Equal(t, k.encrypted, a.Status().TLS)
			require.Empty(t, b.Status().OverNATS)
			require.Equal(t, k.encrypted, entry(t, b, a.cfg.Instance).Certificate != "")
			mu.Lock()
			defer mu.Unlock()
			require.Greater(t, len(seen), len(want))
			require.Equal(t, k.encrypted, !bytes.Contains(seen, []byte("to be read")))
		})
	}
}

// givesNothing waits until hosts, which may have fetched as well, hold nothing for others.
func givesNothing(t *testing.T, all ...*testHost) {
	t.Helper()
	for _, h := range all {
		until(t, "the source holds nothing", func() bool { return h.source.holding() == 0 && h.Status().Serving == 0 })
	}
}

// stranger is a host that is in no directory. It says what a test has it say.
type stranger struct {
	t    *testing.T
	at   *testHost // the source
	id   *identity
	conn *tls.Conn
}

func newStranger(t *testing.T, at *testHost) *stranger {
	id, err := newIdentity("stranger")
	require.NoError(t, err)
	return &stranger{t: t, at: at, id: id}
}

// opens connects, with a ticket, and returns the answer to it.
func (s *stranger) opens(config *tls.Config, ticket []byte, frames ...Frame) (Frame, error) {
	c, err := net.Dial("tcp", s.at.tcp.listens()[0])
	require.NoError(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	config.InsecureSkipVerify = true
	s.conn = tls.Client(c, config)
	if err := s.conn.Handshake(); err != nil {
		return Frame{}, err
	}
	p := newTCPPassage(c, &encrypted{Conn: s.conn}, func(net.Conn) {})
	if err := s.writes(Frame{Kind: kindHello, Version: Highest, Body: ticketBytes}, ticket); err != nil {
		return Frame{}, err
	}
	for _, f := range frames {
		if err := s.writes(f, nil); err != nil {
			return Frame{}, err
		}
	}
	f, err := p.Receive(patience)
	if err == nil && f.Kind == kindRefused {
		body := make([]byte, f.Body)
		require.NoError(s.t, p.Body(body))
		return f, readRefusal("a", body)
	}
	return f, err
}

func (s *stranger) writes(f Frame, body []byte) error {
	b := make([]byte, headBytes, headBytes+len(body))
	f.put(b)
	_, err := s.conn.Write(append(b, body...))
	return err
}

func (s *stranger) shows() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{s.id.certificate}}
}

// A connection without the right to a ticket gets nothing by it, and others do not notice.
func TestConnectionsThatShowNoRightCertificateAreRefused(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b, c := startHost(t, url, "a", byTLS), startHost(t, url, "b", byTLS), startHost(t, url, "c", byTLS)
	far := a.memory.put(noise(100, 1), 0)
	offered := func(h *testHost) (answer, []byte) {
		o := asks(t, a, question{Lowest: Lowest, Highest: Highest, Host: h.cfg.Instance, Handle: far, Piece: mostPiece, Certificate: h.identity.print.String()})
		require.Nil(t, o.Error)
		require.Equal(t, a.identity.print.String(), o.Certificate)
		require.Len(t, o.Addresses, 1)
		ticket, err := hex.DecodeString(o.Ticket)
		require.NoError(t, err)
		return o, ticket
	}
	_, tickets := offered(b)
	offered(c) // so that it is expected
	s := newStranger(t, a)
	before := a.Status().Refused
	counted := func(what string) {
		t.Helper()
		before++
		until(t, what+" is counted", func() bool { return a.Status().Refused == before })
	}

	_, err := s.opens(s.shows(), tickets)
	require.ErrorContains(t, err, "bad certificate")
	counted("a stranger's certificate")
	_, err = s.opens(&tls.Config{}, tickets)
	require.ErrorContains(t, err, "certificate required")
	counted("no certificate")
	_, err = s.opens(&tls.Config{Certificates: s.shows().Certificates, MaxVersion: tls.VersionTLS12}, tickets)
	require.ErrorContains(t, err, "protocol version")
	counted("an older TLS")
	asC := &tls.Config{Certificates: []tls.Certificate{c.identity.certificate}}
	_, err = s.opens(asC, tickets)
	require.ErrorIs(t, err, protocol.ErrPermissionDenied, "the ticket is another host's")
	counted("the ticket of another host")

	plain, err := net.Dial("tcp", a.tcp.listens()[0])
	require.NoError(t, err)
	defer plain.Close()
	var head [headBytes]byte
	f := Frame{Kind: kindHello, Version: Highest, Body: ticketBytes}
	f.put(head[:])
	_, err = plain.Write(append(head[:], tickets...))
	require.NoError(t, err)
	counted("a connection without TLS")
	silent, err := net.Dial("tcp", a.tcp.listens()[0])
	require.NoError(t, err)
	silent.Close() // as one that looks whether the port is open

	asB := &tls.Config{Certificates: []tls.Certificate{b.identity.certificate}}
	_, second := offered(b)
	got, err := s.opens(asB, tickets, Frame{Kind: kindWant, Version: Highest, Length: 100})
	require.NoError(t, err, "none of them has used the ticket up")
	require.Equal(t, uint16(kindPiece), got.Kind)
	_, err = s.opens(asB, tickets)
	require.ErrorIs(t, err, protocol.ErrPermissionDenied)
	counted("a ticket that was used")
	_, err = s.opens(asB, second, Frame{Kind: kindWant, Version: Highest + 1, Length: 100})
	require.ErrorIs(t, err, protocol.ErrVersion)
	counted("a frame of another version")
	want := noise(1<<20, 2)
	brings(t, b, a.memory.put(want, 0), want)
	require.Empty(t, b.Status().OverNATS)
	require.Equal(t, 1, strings.Count(a.log.String(), "was refused"), "a line a minute: %s", a.log.String())
}

// A source that shows another certificate than the directory has gets no ticket.
func TestSourceWithAnotherCertificateGetsNoTicket(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", byTLS), startHost(t, url, "b", byTLS)
	other, err := newIdentity("other")
	require.NoError(t, err)
	own := a.tcp.security.own
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{other.certificate}, ClientAuth: tls.RequireAnyClientCert})
	require.NoError(t, err)
	defer l.Close()
	var read atomic.Int64
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				n, _ := c.Read(make([]byte, 1))
				read.Add(int64(n))
			}()
		}
	}()
	a.tcp.mu.Lock()
	right := a.tcp.addresses
	a.tcp.addresses = []string{l.Addr().String()}
	a.tcp.mu.Unlock()
	want := noise(100, 1)
	brings(t, b, a.memory.put(want, 0), want)
	require.Equal(t, []string{"a"}, b.Status().OverNATS)
	require.Equal(t, uint64(1), b.Status().Refused)
	require.Zero(t, read.Load(), "nothing was said to it")

	a.tcp.mu.Lock()
	a.tcp.addresses = append([]string{l.Addr().String()}, right...) // an address that is another machine's in its place
	a.tcp.mu.Unlock()
	brings(t, b, a.memory.put(want, 0), want)
	require.Empty(t, b.Status().OverNATS)
	require.Equal(t, own, a.identity)
	atRest(t, a, b)
}

func TestHostsOfWhichOneEncryptsGoOverNATSOrAreRefused(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	with, without := startHost(t, url, "with", byTLS), startHost(t, url, "without", nil)
	want := noise(1<<20, 1)
	brings(t, with, without.memory.put(want, 0), want)
	brings(t, without, with.memory.put(want, 0), want)
	require.Equal(t, []string{"without"}, with.Status().OverNATS)
	require.Equal(t, []string{"with"}, without.Status().OverNATS)
	require.Contains(t, with.log.String(), "the direct connections of host without are not encrypted")
	require.Contains(t, without.log.String(), "the direct connections of host with are encrypted")
	listed := func(h *testHost, host string) (state, reason string) {
		all, err := h.Hosts(within(t, patience))
		require.NoError(t, err)
		for _, one := range all {
			if one.Host == host {
				return one.State, one.Reason
			}
		}
		t.Fatalf("host %s is not listed", host)
		return "", ""
	}
	state, reason := listed(with, "without")
	require.Equal(t, StateReachable, state)
	require.Contains(t, reason, "are not encrypted, and those of this host are; bytes go over NATS")
	state, reason = listed(without, "with")
	require.Equal(t, StateReachable, state)
	require.Contains(t, reason, "are encrypted, and those of this host are not; bytes go over NATS")

	for name, set := range map[string]func(*Config){
		"strict": func(c *Config) { c.TLS = TLSOn }, // NATS is plain: nothing goes that way either
		"direct": func(c *Config) { c.Encrypted, c.Data = true, DataTCP },
	} {
		strict := startHost(t, url, name, set)
		_, err := strict.Fetch(within(t, patience), "ns", without.memory.put(want, 0))
		require.ErrorIs(t, err, protocol.ErrUnsupported, name)
		require.ErrorContains(t, err, "are not encrypted")
		_, err = without.Fetch(within(t, patience), "ns", strict.memory.put(want, 0))
		require.ErrorIs(t, err, protocol.ErrUnsupported, name)
		require.ErrorContains(t, err, "are not encrypted")
		state, reason = listed(strict, "without")
		require.Equal(t, StateUnreachable, state)
		require.Contains(t, reason, "are not encrypted")
		brings(t, with, strict.memory.put(want, 0), want)
		require.Equal(t, []string{"without"}, with.Status().OverNATS)
		givesNothing(t, strict)
	}
	givesNothing(t, with, without)
}

// Another process that goes on with an instance has another certificate.
func TestAnotherProcessOfAHostHasAnotherCertificate(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", byTLS), startHost(t, url, "b", byTLS)
	want := noise(1<<20, 1)
	brings(t, b, a.memory.put(want, 0), want)
	brings(t, a, b.memory.put(want, 0), want)
	before := entry(t, b, "a").Certificate
	a.Close()
	next := startHost(t, url, "a", byTLS)
	brings(t, b, next.memory.put(want, 0), want)
	brings(t, next, b.memory.put(want, 0), want)
	require.NotEqual(t, before, entry(t, b, "a").Certificate)
	require.Empty(t, b.Status().OverNATS)
	require.Empty(t, next.Status().OverNATS)
	require.Zero(t, b.Status().Refused)
	givesNothing(t, next, b)
}

// Without the directory those that know each other go on, and others take the way that needs no certificate.
func TestCertificatesThatAreKnownNeedNoDirectory(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b, c := startHost(t, url, "a", byTLS), startHost(t, url, "b", byTLS), startHost(t, url, "c", byTLS)
	want := noise(1<<20, 1)
	brings(t, b, a.memory.put(want, 0), want)
	js, err := jetstream.New(a.nats.nc)
	require.NoError(t, err)
	require.NoError(t, js.DeleteKeyValue(context.Background(), Bucket))
	brings(t, b, a.memory.put(want, 0), want)
	require.Empty(t, b.Status().OverNATS)
	for _, h := range []*testHost{a, b} { // what was told long ago is asked for again, and cannot be
		h.dir.certificates.mu.Lock()
		require.NotEmpty(t, h.dir.certificates.of)
		for host, known := range h.dir.certificates.of {
			known.at = known.at.Add(-2 * entryAge)
			h.dir.certificates.of[host] = known
		}
		h.dir.certificates.mu.Unlock()
	}
	brings(t, b, a.memory.put(want, 0), want)
	require.Empty(t, b.Status().OverNATS)
	brings(t, c, a.memory.put(want, 0), want)
	require.Equal(t, []string{"a"}, c.Status().OverNATS)
	require.Contains(t, c.log.String(), "the directory of hosts does not tell the certificate of host a")
	for _, h := range []*testHost{a, c} {
		h.dir.wake()
	}
	until(t, "bytes go directly again", func() bool {
		brings(t, c, a.memory.put(want, 0), want)
		return len(c.Status().OverNATS) == 0
	})
	atRest(t, a, b, c)
}

// What another host says of a certificate is checked before it is used.
func TestCertificatesThatAreNoneAreNotUsed(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a := startHost(t, url, "a", byTLS)
	far := a.memory.put(noise(100, 1), 0)
	stranger, err := newIdentity("stranger")
	require.NoError(t, err)
	kv, err := a.dir.bucket(context.Background(), a.nats.nc, false)
	require.NoError(t, err)
	data, err := json.Marshal(Host{Host: "b", Lowest: Lowest, Highest: Highest, Certificate: "00"})
	require.NoError(t, err)
	_, err = kv.Put(context.Background(), "b", data)
	require.NoError(t, err)
	for _, said := range []string{"00", "x", strings.Repeat("0", 1<<10), stranger.print.String(), strings.ToUpper(a.identity.print.String())} {
		o := asks(t, a, question{Lowest: Lowest, Highest: Highest, Host: "b", Handle: far, Piece: mostPiece, Certificate: said})
		require.Nil(t, o.Error)
		require.Empty(t, o.Addresses, "%s", said)
		require.True(t, o.NATS)
	}
	require.False(t, a.source.expects(stranger.print))
}
