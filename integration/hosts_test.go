package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// hostsOf are two brokers on one NATS: two hosts over loopback.
type hostsOf struct {
	t    *testing.T
	ctx  context.Context
	nats *operatorsNATS
	a, b *testkit.Broker

	server *testkit.Process
}

// plainServer is an operator's NATS without TLS.
func plainServer(t *testing.T) *operatorsNATS {
	o := &operatorsNATS{t: t, dir: t.TempDir()}
	o.config = natsServerConfig{Port: testkit.HeldPort(t), Store: filepath.Join(o.dir, "store")}
	return o
}

func (o *operatorsNATS) spanning(flags ...string) []string {
	if o.config.Cert != "" {
		return append(o.flags(), flags...)
	}
	return append([]string{"--nats", fmt.Sprintf("nats://127.0.0.1:%d", o.config.Port)}, flags...)
}

// startHosts starts the server and both brokers, and waits until they answer each other.
func startHosts(t *testing.T, flags ...string) *hostsOf {
	t.Helper()
	return startHostsWith(t, func(*hostsOf) []*testkit.Broker { return nil }, flags...)
}

// startHostsWith starts more brokers as well, before any client connects.
func startHostsWith(t *testing.T, more func(*hostsOf) []*testkit.Broker, flags ...string) *hostsOf {
	t.Helper()
	return startHostsOn(t, plainServer(t), more, flags...)
}

// startHostsByTLS has both reach NATS by TLS, and so each other.
func startHostsByTLS(t *testing.T, flags ...string) *hostsOf {
	t.Helper()
	return startHostsOn(t, newOperatorsNATS(t), func(*hostsOf) []*testkit.Broker { return nil }, flags...)
}

func startHostsOn(t *testing.T, nats *operatorsNATS, more func(*hostsOf) []*testkit.Broker, flags ...string) *hostsOf {
	t.Helper()
	h := &hostsOf{t: t, nats: nats}
	if len(flags) == 0 {
		flags = []string{"--span"}
	}
	join := func(c *testkit.BrokerConfig) { c.JoinNATS = h.nats.spanning(flags...) }
	h.a = testkit.StartBroker(t, join)
	h.server = h.nats.start(h.a)
	t.Cleanup(func() {
		if h.server.Alive() {
			h.server.Kill()
		}
	})
	h.b = testkit.StartBroker(t, join)
	all := append(more(h), h.a, h.b)
	h.ctx = testkit.Context(t)
	for _, b := range all {
		h.spans(b)
	}
	return h
}

func (h *hostsOf) spans(b *testkit.Broker) {
	h.t.Helper()
	c := b.Connect()
	hostStatusUntil(h.t, h.ctx, c, "the host answers others", func(s machines.Status) bool { return s.State == machines.StateSpanning })
}

// hostStatus is what a broker says of other hosts.
func hostStatus(t *testing.T, ctx context.Context, c *client.Client) (s machines.Status) {
	t.Helper()
	var raw struct {
		Extra struct{ Hosts machines.Status }
	}
	require.NoError(t, c.Broker(ctx, protocol.OpStatus, nil, &raw))
	return raw.Extra.Hosts
}

func hostStatusUntil(t *testing.T, ctx context.Context, c *client.Client, what string, so func(machines.Status) bool) {
	t.Helper()
	testkit.Until(t, what, func() (bool, string) {
		s := hostStatus(t, ctx, c)
		text, _ := json.Marshal(s)
		return so(s), string(text)
	})
}

// connect opens a session of the test at each host, in one namespace.
func (h *hostsOf) connect(opts ...client.Option) (a, b *client.Client) {
	h.t.Helper()
	opts = append([]client.Option{client.WithNamespace("team")}, opts...)
	return h.a.Connect(opts...), h.b.Connect(opts...)
}

// random makes a tensor of bytes.
func random(t *testing.T, ctx context.Context, c *client.Client, n int, seed uint64) (*client.Tensor, []byte) {
	t.Helper()
	x, err := c.Alloc(ctx, dlpack.Uint8, []int64{int64(n)})
	require.NoError(t, err)
	b, err := x.Bytes()
	require.NoError(t, err)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(b)
	return x, b
}

func (h *hostsOf) handle(x *client.Tensor, opts ...client.LeaseOption) protocol.Handle {
	h.t.Helper()
	handle, err := x.Handle(h.ctx, opts...)
	require.NoError(h.t, err)
	return handle
}

// opens opens a handle and compares the bytes.
func (h *hostsOf) opens(c *client.Client, handle protocol.Handle, want []byte) {
	h.t.Helper()
	y, err := c.Open(h.ctx, handle)
	require.NoError(h.t, err)
	defer y.Release()
	require.True(h.t, y.ReadOnly())
	got, err := y.Bytes()
	require.NoError(h.t, err)
	require.True(h.t, bytes.Equal(want, got), "%d bytes", len(want))
}

// nothingHeld waits until a host holds nothing for another.
func (h *hostsOf) nothingHeld(c *client.Client) {
	h.t.Helper()
	hostStatusUntil(h.t, h.ctx, c, "nothing is held for other hosts", func(s machines.Status) bool {
		return s.Referenced == 0 && s.Serving == 0 && s.Fetching == 0 && s.UnderWay == 0
	})
}

// nothingStored waits until no storage of a host is held.
func (h *hostsOf) nothingStored(c *client.Client) {
	h.t.Helper()
	testkit.Until(h.t, "no storage is held", func() (bool, string) {
		var rows protocol.ListReply
		require.NoError(h.t, c.Broker(h.ctx, protocol.OpList, protocol.List{What: protocol.ListStorages}, &rows))
		return len(rows.Rows) == 0, fmt.Sprintf("%s", rows.Rows)
	})
}

func TestHandleOfAnotherHostOpensWithItsBytes(t *testing.T) {
	const byTLS = "by TLS"
	for _, flags := range [][]string{{"--span"}, {"--span", "--data=tcp", "--data-listen=127.0.0.1:0"}, {"--span", "--data=nats"}, {byTLS, "--span"},
		{byTLS, "--span", "--data=tcp", "--data-listen=127.0.0.1:0"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			var h *hostsOf
			if flags[0] == byTLS {
				h = startHostsByTLS(t, flags[1:]...)
			} else {
				h = startHosts(t, flags...)
			}
			a, b := h.connect()
			var fetched uint64
			for i := range 64 {
				n := i
				if i > 8 {
					n = 1<<(i%22) + i // up to 4 MiB
				}
				x, want := random(t, h.ctx, a, n, uint64(i))
				h.opens(b, h.handle(x), want)
				if n > 0 {
					fetched++
				}
				x.Release()
			}
			s := hostStatus(t, h.ctx, b)
			require.Equal(t, fetched, s.Fetched)
			require.Zero(t, s.Failed+s.BadPieces+s.Refused)
			require.Empty(t, s.OverNATS)
			require.Equal(t, flags[0] == byTLS, s.TLS)
			h.nothingHeld(a)
		})
	}
}

func TestStorageOfAnotherHostIsFetchedOnce(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	x, want := random(t, h.ctx, a, 8<<20, 1)
	defer x.Release()
	half, err := x.Slice(0, 1<<20, 5<<20)
	require.NoError(t, err)
	defer half.Release()
	handles := []protocol.Handle{h.handle(x), h.handle(half)}
	var opening sync.WaitGroup
	for i := range 16 {
		opening.Go(func() {
			y, err := b.Open(h.ctx, handles[i%2])
			if err != nil {
				t.Errorf("open: %v", err)
				return
			}
			defer y.Release()
			got, err := y.Bytes()
			if err != nil || !bytes.Equal(got, [][]byte{want, want[1<<20 : 5<<20]}[i%2]) {
				t.Errorf("other bytes: %v", err)
			}
		})
	}
	opening.Wait()
	h.opens(b, handles[0], want)
	s := hostStatus(t, h.ctx, b)
	require.Equal(t, uint64(1), s.Fetched)
	require.GreaterOrEqual(t, s.FetchedBytes, uint64(8<<20))
	require.Less(t, s.FetchedBytes, uint64(9<<20))
	require.Equal(t, 1, s.Kept.Storages)
	h.nothingHeld(a)
}

func leases(t *testing.T, ctx context.Context, c *client.Client) int {
	t.Helper()
	var s broker.Status
	require.NoError(t, c.Broker(ctx, protocol.OpStatus, nil, &s))
	return s.Counts.Leases
}

func TestLeaseThatIsGoodOnceIsRedeemedByAnOpenElsewhere(t *testing.T) {
	h := startHosts(t)
	a, b := h.connect()
	x, want := random(t, h.ctx, a, 1<<20, 1)
	first, second := h.handle(x, client.LeaseOnce()), h.handle(x, client.LeaseOnce())
	x.Release()
	require.Equal(t, 2, leases(t, h.ctx, a))
	h.opens(b, first, want)
	testkit.Until(t, "the first lease is over", func() (bool, string) {
		n := leases(t, h.ctx, a)
		return n == 1, fmt.Sprint(n)
	})
	h.opens(b, second, want) // without a transfer
	testkit.Until(t, "the second lease is over", func() (bool, string) {
		n := leases(t, h.ctx, a)
		return n == 0, fmt.Sprint(n)
	})
	require.Equal(t, uint64(1), hostStatus(t, h.ctx, b).Fetched)
	h.nothingHeld(a)
	h.nothingStored(a)
}

func TestHandlesThatOtherHostsDoNotGive(t *testing.T) {
	h := startHosts(t, "--span=team")
	a, b := h.connect()
	refused := func(c *client.Client, handle protocol.Handle, code protocol.Code, text string) {
		t.Helper()
		_, err := c.Open(h.ctx, handle)
		require.Equal(t, code, protocol.CodeOf(err), "%v", err)
		require.ErrorContains(t, err, text)
	}
	x, _ := random(t, h.ctx, a, 100, 1)
	handle := h.handle(x)

	stranger := h.a.Connect(client.WithNamespace("other"))
	y, _ := random(t, h.ctx, stranger, 100, 1)
	refused(b, h.handle(y), protocol.CodePermission, "another namespace")
	y.Release()
	refused(h.b.Connect(client.WithNamespace("other")), handle, protocol.CodeUnsupported, "this host does not span the namespace other")

	live, _ := random(t, h.ctx, a, 100, 1)
	_, err := a.Set(h.ctx, "live", live, client.Live())
	require.NoError(t, err)
	refused(b, h.handle(live), protocol.CodeUnsupported, "live name")
	live.Release()

	gpu := handle
	gpu.Device = "cuda:0"
	refused(b, gpu, protocol.CodeUnsupported, "cuda:0")
	gone := handle
	gone.Host, gone.Lease = "0123456789abcdef0123456789abcdef", nil
	refused(b, gone, protocol.CodeHostLost, gone.Host)
	other := handle
	other.Bytes++
	refused(b, other, protocol.CodeHandle, "")
	old := handle
	old.Generation++
	refused(b, old, protocol.CodeExpired, "")
	beyond := handle
	beyond.Bytes, beyond.Shape = 1<<50, []int64{1 << 50}
	refused(b, beyond, protocol.CodeOutOfMemory, "--remote-memory")
	x.Release()
	h.nothingHeld(a)
	require.Zero(t, hostStatus(t, h.ctx, b).Kept.Bytes)
}

func TestHandleOfAnotherBrokerWithoutSpan(t *testing.T) {
	a, b := testkit.StartBroker(t), testkit.StartBroker(t)
	ctx := testkit.Context(t)
	x, _ := random(t, ctx, a.Connect(), 100, 1)
	defer x.Release()
	handle, err := x.Handle(ctx)
	require.NoError(t, err)
	_, err = b.Connect().Open(ctx, handle)
	require.ErrorIs(t, err, protocol.ErrInvalidHandle)
	require.ErrorContains(t, err, "--span")
}

func TestRemoteMemoryBoundsWhatIsKept(t *testing.T) {
	h := startHosts(t, "--span", "--remote-memory=3MiB")
	a, b := h.connect()
	var tensors []*client.Tensor
	for i := range 5 { // what is not used any more makes room
		x, want := random(t, h.ctx, a, 1<<20, uint64(i))
		defer x.Release()
		h.opens(b, h.handle(x), want)
	}
	for i := range 2 {
		x, _ := random(t, h.ctx, a, 1<<20, uint64(i))
		defer x.Release()
		y, err := b.Open(h.ctx, h.handle(x))
		require.NoError(t, err)
		tensors = append(tensors, y)
	}
	x, want := random(t, h.ctx, a, 2<<20, 9)
	defer x.Release()
	short, cancel := context.WithTimeout(h.ctx, time.Second)
	defer cancel()
	_, err := b.Open(short, h.handle(x))
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	for _, y := range tensors {
		y.Release()
	}
	h.opens(b, h.handle(x), want)
}
