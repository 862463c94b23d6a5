package machines

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit/natstest"
	"github.com/baton-ipc/baton/protocol"
)

// startNATS starts a server with JetStream.
func startNATS(t *testing.T) string {
	t.Helper()
	return natstest.Start(t, natstest.JetStream(t)).ClientURL()
}

// fakeMemory is the memory of a host without a broker.
type fakeMemory struct {
	host string

	mu       sync.Mutex
	storages map[uint32][]byte
	used     map[uint32]int // references
	expired  map[uint32]bool
	claimed  map[uint64]int
	next     uint32
	room     int64
}

func newFakeMemory(host string) *fakeMemory {
	return &fakeMemory{host: host, storages: map[uint32][]byte{}, used: map[uint32]int{}, expired: map[uint32]bool{}, claimed: map[uint64]int{}, room: 1 << 40}
}

// put makes a storage and a handle of it.
func (m *fakeMemory) put(b []byte, lease uint64) protocol.Handle {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next++
	m.storages[m.next] = b
	return m.handleLocked(m.next, lease)
}

func (m *fakeMemory) handleLocked(index uint32, lease uint64) protocol.Handle {
	n := len(m.storages[index])
	h := protocol.Handle{Host: m.host, Segment: 1, Serial: 1, Index: index, Generation: 1, Bytes: uint64(n), DType: "uint8", Shape: []int64{int64(n)}, Device: "cpu"}
	if lease != 0 {
		h.Lease = &lease
	}
	return h
}

func (m *fakeMemory) take(index uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.expired[index] || m.storages[index] == nil {
		return protocol.Errorf(protocol.CodeExpired, "", "expired")
	}
	m.used[index]++
	return nil
}

func (m *fakeMemory) drop(index uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used[index]--
}

// held counts references.
func (m *fakeMemory) held() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, of := range m.used {
		n += of
	}
	return n
}

func (m *fakeMemory) claims(lease uint64) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.claimed[lease]
}

func (m *fakeMemory) bytes(h *protocol.Handle) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.storages[h.Index][h.ByteOffset : h.ByteOffset+uint64(h.Shape[0])]
}

type fakeReference struct {
	m      *fakeMemory
	index  uint32
	handle protocol.Handle
}

func (m *fakeMemory) Hold(_ context.Context, _ string, h *protocol.Handle) (Held, error) {
	if err := m.take(h.Index); err != nil {
		return nil, err
	}
	return &fakeReference{m, h.Index, *h}, nil
}

func (m *fakeMemory) Make(_ context.Context, _ string, n uint64) (Filling, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if int64(n) > m.room {
		return nil, protocol.Errorf(protocol.CodeOutOfMemory, "", "full")
	}
	m.next++
	m.storages[m.next] = make([]byte, n)
	m.used[m.next] = 1
	return &fakeReference{m: m, index: m.next}, nil
}

// Collect finds all free that has no reference.
func (m *fakeMemory) Collect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for index, n := range m.used {
		if n == 0 {
			m.expired[index] = true
		}
	}
}

func (m *fakeMemory) Close() {}

func (r *fakeReference) Bytes() []byte {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.m.storages[r.index]
}

func (r *fakeReference) Claim(context.Context) error {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	if r.handle.Lease != nil {
		r.m.claimed[*r.handle.Lease]++
	}
	return nil
}

func (r *fakeReference) Release()                    { r.m.drop(r.index) }
func (r *fakeReference) Again(context.Context) error { return r.m.take(r.index) }

func (r *fakeReference) Handle(context.Context) (protocol.Handle, error) {
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.m.handleLocked(r.index, 99), nil
}

// testConnection is a connection to NATS that a test may take away.
type testConnection struct {
	nc *nats.Conn

	mu   sync.Mutex
	gone bool
}

func (c *testConnection) Current() *nats.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil
	}
	return c.nc
}

func (c *testConnection) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
}

func (c *testConnection) LastError() string { return "" }
func (c *testConnection) Refused() []string { return nil }
func (c *testConnection) Close()            { c.nc.Close() }

// testHost is a host without a broker.
type testHost struct {
	*Machines
	memory *fakeMemory
	nats   *testConnection
	log    *lockedText
}

type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// startHost starts a host and waits until it answers others.
func startHost(t *testing.T, url, name string, change func(*Config)) *testHost {
	t.Helper()
	h := startQuietly(t, url, name, change)
	until(t, "the host answers others", func() bool { return h.Status().State == StateSpanning })
	return h
}

func startQuietly(t *testing.T, url, name string, change func(*Config)) *testHost {
	t.Helper()
	h := &testHost{memory: newFakeMemory(name), log: &lockedText{}}
	cfg := Config{Instance: name, HostName: "on-" + name, Machine: "m", PID: 1, Namespaces: []string{AllNamespaces}, Memory: h.memory, Data: DataAuto, Listen: "127.0.0.1:0",
		RemoteMemory: 1 << 30, Log: slog.New(slog.NewTextHandler(h.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Connect: func(up func(*nats.Conn)) (Connection, error) {
			nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
			if err != nil {
				return nil, err
			}
			h.nats = &testConnection{nc: nc}
			go up(nc)
			return h.nats, nil
		}}
	if change != nil {
		change(&cfg)
	}
	m, err := Start(cfg)
	require.NoError(t, err)
	h.Machines = m
	var once sync.Once
	t.Cleanup(func() { once.Do(m.Close) })
	return h
}

func until(t *testing.T, what string, so func() bool) {
	t.Helper()
	late := time.After(patience)
	for !so() {
		select {
		case <-late:
			t.Fatalf("waited without a result until %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func noise(n int, seed byte) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0] = seed
	rand.NewChaCha8(key).Read(b)
	return b
}

// proxy stands between the ends of direct connections.
type proxy struct {
	listener net.Listener
	to       string
	// change sees what the source sends, in the order of connections and bytes; false: the connection is cut.
	change func(connection int, at int64, b []byte) bool

	mu    sync.Mutex
	sent  int64
	conns []net.Conn
}

// startProxy has receivers reach a source by a proxy.
func startProxy(t *testing.T, source *testHost, change func(connection int, at int64, b []byte) bool) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: l, change: change}
	source.tcp.mu.Lock()
	p.to, source.tcp.addresses = source.tcp.addresses[0], []string{l.Addr().String()}
	source.tcp.mu.Unlock()
	t.Cleanup(func() {
		l.Close()
		p.cut()
	})
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", p.to)
			if err != nil {
				c.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, c, s)
			p.mu.Unlock()
			go func() {
				defer s.Close()
				pump(c, s, func([]byte) bool { return true })
			}()
			go func() {
				defer c.Close()
				at := int64(0)
				pump(s, c, func(b []byte) bool {
					ok := p.change(n, at, b)
					at += int64(len(b))
					p.mu.Lock()
					p.sent += int64(len(b))
					p.mu.Unlock()
					return ok
				})
			}()
		}
	}()
	return p
}

func pump(from, to net.Conn, see func([]byte) bool) {
	b := make([]byte, 16<<10)
	for {
		n, err := from.Read(b)
		if n > 0 && !see(b[:n]) {
			return
		}
		if _, e := to.Write(b[:n]); err != nil || e != nil {
			return
		}
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
}

func (p *proxy) moved() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent
}
