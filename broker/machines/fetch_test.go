package machines

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// brings has a host fetch a handle, and compares.
func brings(t *testing.T, h *testHost, far protocol.Handle, want []byte) {
	t.Helper()
	near, err := h.Fetch(within(t, patience), "ns", far)
	require.NoError(t, err)
	require.Equal(t, h.cfg.Instance, near.Host)
	require.True(t, near.ReadOnly)
	require.True(t, bytes.Equal(want, h.memory.bytes(&near)), "%d bytes", len(want))
}

// atRest waits until nothing is under way between hosts, and nothing is held at the source.
func atRest(t *testing.T, source *testHost, receivers ...*testHost) {
	t.Helper()
	until(t, "the source holds nothing", func() bool {
		return source.source.holding() == 0 && source.memory.held() == 0 && source.Status().Serving == 0
	})
	for _, r := range receivers {
		until(t, "nothing is under way", func() bool { s := r.Status(); return s.UnderWay == 0 && s.Fetching == 0 })
	}
}

func TestStoragesArriveWhole(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	for way, set := range map[string]func(*Config){
		DataTCP:  func(c *Config) { c.Data = DataTCP },
		"tls":    func(c *Config) { c.TLS = TLSOn },
		DataNATS: func(c *Config) { c.Data, c.Listen = DataNATS, "" },
	} {
		t.Run(way, func(t *testing.T) {
			a, b := startHost(t, url, "a"+way, set), startHost(t, url, "b"+way, set)
			for i, n := range []int{1, leastPiece, mostPiece - 1, mostPiece, mostPiece + 1, 3<<20 + 7} {
				want := noise(n, byte(i))
				far := a.memory.put(want, uint64(i+1))
				if n > 10 {
					far.ByteOffset, far.Shape = 3, []int64{5}
					want = want[3:8]
				}
				brings(t, b, far, want)
				require.Equal(t, 1, a.memory.claims(uint64(i+1)), "the lease is redeemed once all is there")
			}
			atRest(t, a, b)
			require.Equal(t, uint64(6), b.Status().Fetched)
			require.Equal(t, a.Status().ServedBytes, b.Status().FetchedBytes)
		})
	}
}

func TestStorageIsFetchedOnceWhileItIsKept(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", nil), startHost(t, url, "b", nil)
	want := noise(2<<20, 1)
	far := a.memory.put(want, 1)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() { brings(t, b, far, want) })
	}
	all.Wait()
	require.Equal(t, uint64(1), b.Status().Fetched)

	b.kept.sweep(context.Background(), 0) // no program has it, and its memory is used anew
	require.Zero(t, b.Status().Kept.Storages)
	require.Zero(t, b.Status().Kept.Bytes)
	brings(t, b, far, want)
	require.Equal(t, uint64(2), b.Status().Fetched)

	near, err := b.Fetch(within(t, patience), "ns", far)
	require.NoError(t, err)
	require.NoError(t, b.memory.take(near.Index)) // a program has it
	b.kept.sweep(context.Background(), 0)
	brings(t, b, far, want)
	require.Equal(t, uint64(2), b.Status().Fetched)

	again := far
	lease := uint64(2)
	again.Lease = &lease
	brings(t, b, again, want)
	until(t, "the lease of another handle is redeemed", func() bool { return a.memory.claims(2) == 1 })
	atRest(t, a, b)
}

func TestPieceWithAWrongSumIsFetchedAgain(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", nil), startHost(t, url, "b", nil)
	want := noise(2<<20, 1)
	var left atomic.Int64
	startProxy(t, a, func(_ int, at int64, b []byte) bool {
		if at > 0 && left.Add(-1) >= 0 {
			b[len(b)/2]++ // of a piece: heads are few of the want
		}
		return true
	})
	left.Store(1)
	brings(t, b, a.memory.put(want, 0), want)
	require.LessOrEqual(t, b.Status().BadPieces, uint64(1))

	left.Store(math.MaxInt64)
	_, err := b.Fetch(within(t, patience), "ns", a.memory.put(want, 0))
	require.ErrorIs(t, err, protocol.ErrProtocol)
	_, err = b.Fetch(within(t, patience), "ns", a.memory.put(want[:100<<10], 0)) // its last piece as well
	require.ErrorIs(t, err, protocol.ErrProtocol)
	require.GreaterOrEqual(t, b.Status().BadPieces, uint64(mostBad))
	atRest(t, a, b)
	require.Equal(t, 1, b.memory.held(), "of what did not arrive nothing stays")
}

func TestBrokenLinkCostsThePiecesUnderWay(t *testing.T) {
	t.Parallel()
	for _, tls := range []string{TLSOff, TLSOn} {
		t.Run("TLS "+tls, func(t *testing.T) {
			t.Parallel()
			brokenLink(t, func(c *Config) { c.TLS = tls })
		})
	}
}

func brokenLink(t *testing.T, set func(*Config)) {
	url := startNATS(t)
	a, b := startHost(t, url, "a", set), startHost(t, url, "b", set)
	const size = 64 << 20
	want := noise(size, 1)
	const cuts = 5
	p := startProxy(t, a, func(connection int, at int64, _ []byte) bool { return connection >= cuts || at < 8<<20 })
	brings(t, b, a.memory.put(want, 0), want)
	require.LessOrEqual(t, p.moved(), int64(size+size/20+cuts*windowPieces*mostPiece))
	require.GreaterOrEqual(t, b.Status().FetchedBytes, uint64(size))
	until(t, "the source holds nothing", func() bool { return a.source.holding() == 0 })
	atRest(t, a, b)
}

// holdBack has a source send a megabyte, and what follows once goOn is closed; reached is closed where it waits.
func holdBack(t *testing.T, source *testHost) (p *proxy, reached, goOn chan struct{}) {
	t.Helper()
	reached, goOn = make(chan struct{}), make(chan struct{})
	var once sync.Once
	p = startProxy(t, source, func(_ int, at int64, _ []byte) bool {
		if at > 1<<20 {
			once.Do(func() { close(reached) })
			<-goOn
		}
		return true
	})
	return p, reached, goOn
}

func TestHostThatEndsDuringAFetchIsLost(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", nil), startHost(t, url, "b", nil)
	far := a.memory.put(noise(8<<20, 1), 0)
	p, reached, goOn := holdBack(t, a)
	failed := make(chan error, 1)
	go func() {
		_, err := b.Fetch(within(t, patience), "ns", far)
		failed <- err
	}()
	<-reached
	a.nats.nc.Close()
	p.listener.Close()
	p.cut()
	close(goOn)
	err := <-failed
	require.ErrorIs(t, err, protocol.ErrHostLost)
	require.ErrorContains(t, err, "connection has broken")
	atRest(t, a, b)
	require.Zero(t, b.memory.held())
	require.Zero(t, b.Status().Kept.Bytes)

	_, err = b.Fetch(within(t, patience), "ns", far)
	require.ErrorIs(t, err, protocol.ErrHostLost, "it is in the directory, and answers nothing")
}

func TestReceiverThatGivesUpLeavesNothing(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", nil), startHost(t, url, "b", nil)
	far := a.memory.put(noise(8<<20, 1), 0)
	_, reached, goOn := holdBack(t, a)
	ctx, giveUp := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := b.Fetch(ctx, "ns", far)
		failed <- err
	}()
	<-reached
	giveUp()
	require.ErrorIs(t, <-failed, protocol.ErrUnreachable)
	close(goOn)
	atRest(t, a, b)
	require.Zero(t, b.memory.held())
	require.Zero(t, b.Status().Kept.Bytes)
	brings(t, b, far, a.memory.bytes(&far))
}

func TestBytesGoOverNATSWhereNoDataAddressAnswers(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", nil), startHost(t, url, "b", nil)
	closed, err := newTCP("127.0.0.1:0", secured(t, false))
	require.NoError(t, err)
	closed.Close()
	a.tcp.mu.Lock()
	open := a.tcp.addresses
	a.tcp.addresses = closed.addresses
	a.tcp.mu.Unlock()
	want := noise(1<<20, 1)
	brings(t, b, a.memory.put(want, 0), want)
	require.Equal(t, []string{"a"}, b.Status().OverNATS)
	require.Contains(t, b.log.String(), "bytes go over NATS")

	only := startHost(t, url, "only", func(c *Config) { c.Data = DataTCP })
	_, err = only.Fetch(within(t, time.Second), "ns", a.memory.put(want, 0))
	require.ErrorIs(t, err, protocol.ErrUnreachable)
	require.ErrorContains(t, err, "--data=tcp")

	a.tcp.mu.Lock()
	a.tcp.addresses = open
	a.tcp.mu.Unlock()
	brings(t, b, a.memory.put(want, 0), want)
	require.Empty(t, b.Status().OverNATS)
	atRest(t, a, b, only)
}

// A host that is reached directly alone is tried again, however often that brought nothing.
func TestDirectConnectionsAreTriedAgainWhereThereIsNoOtherWay(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	for name, set := range map[string]func(*Config){"tcp": func(c *Config) { c.Data = DataTCP }, "tls": func(c *Config) { c.TLS = TLSOn }} {
		a, b := startHost(t, url, "a-"+name, set), startHost(t, url, "b-"+name, set)
		const cuts = 7
		startProxy(t, a, func(connection int, _ int64, _ []byte) bool { return connection >= cuts })
		want := noise(100, 1)
		brings(t, b, a.memory.put(want, 0), want)
		givesNothing(t, a)
	}
}

func TestNothingIsKnownOfOthersWhileTheOwnLinkIsDown(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", nil), startHost(t, url, "b", nil)
	b.nats.cut()
	_, err := b.Fetch(within(t, 200*time.Millisecond), "ns", a.memory.put(noise(10, 1), 0))
	require.ErrorIs(t, err, protocol.ErrUnreachable)
	require.ErrorContains(t, err, "NATS is down")
	all, err := b.Hosts(context.Background())
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Contains(t, all[0].Reason, "nothing is known")
}

func TestRoomForOtherHostsIsBounded(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a, b := startHost(t, url, "a", nil), startHost(t, url, "b", func(c *Config) { c.RemoteMemory = 2 << 20 })
	_, err := b.Fetch(within(t, patience), "ns", a.memory.put(make([]byte, 2<<20+1), 0))
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	require.Zero(t, a.Status().Served, "the source was not asked")
	want := noise(1<<20, 1)
	var used []uint32
	for range 2 {
		near, err := b.Fetch(within(t, patience), "ns", a.memory.put(want, 0))
		require.NoError(t, err)
		require.NoError(t, b.memory.take(near.Index))
		used = append(used, near.Index)
	}
	waits := a.memory.put(want, 0)
	_, err = b.Fetch(within(t, 200*time.Millisecond), "ns", waits)
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	require.ErrorContains(t, err, "of host a")
	b.memory.drop(used[0])
	brings(t, b, waits, want)
	require.Equal(t, uint64(2<<20), b.Status().Kept.Bytes)
	b.memory.drop(used[1])

	b.memory.mu.Lock()
	b.memory.room = 0
	b.memory.mu.Unlock()
	_, err = b.Fetch(within(t, patience), "ns", a.memory.put(want, 0))
	require.ErrorIs(t, err, protocol.ErrOutOfMemory, "that of the machine is full")
	until(t, "the reference of the source ends by itself, or by the passage that never came", func() bool { return a.memory.held() <= 1 })
}

// asks puts a question to a source.
func asks(t *testing.T, h *testHost, q any) (a answer) {
	t.Helper()
	data, err := json.Marshal(q)
	require.NoError(t, err)
	m, err := h.nats.nc.Request(protocol.HostSubject("ns", h.cfg.Instance, subjectFetch), data, patience)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(m.Data, &a))
	return a
}

func TestTicketIsGoodOnceAndRangesEndWithTheStorage(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a := startHost(t, url, "a", nil)
	far := a.memory.put(noise(100, 1), 0)
	q := question{Lowest: Lowest, Highest: Highest, Host: "b", Handle: far, Piece: mostPiece}
	dial := func(offer *answer) (Passage, []byte) {
		r, err := newTCP("", secured(t, false))
		require.NoError(t, err)
		t.Cleanup(r.Close)
		p, err := r.Open(context.Background(), "ns", "a", &offer.Offer)
		require.NoError(t, err)
		ticket, err := hex.DecodeString(offer.Ticket)
		require.NoError(t, err)
		return p, ticket
	}
	hello := Frame{Kind: kindHello, Version: Highest, Body: ticketBytes}
	refused := func(p Passage, code protocol.Code) {
		t.Helper()
		f, err := p.Receive(patience)
		require.NoError(t, err)
		require.Equal(t, uint16(kindRefused), f.Kind)
		body := make([]byte, f.Body)
		require.NoError(t, p.Body(body))
		require.Equal(t, code, protocol.CodeOf(readRefusal("a", body)))
	}
	offer := asks(t, a, q)
	require.Equal(t, uint64(100), offer.Bytes)
	first, ticket := dial(&offer)
	require.NoError(t, first.Send(hello, ticket))
	require.NoError(t, first.Send(Frame{Kind: kindWant, Version: Highest, Length: 100}, nil))
	f, err := first.Receive(patience)
	require.NoError(t, err)
	require.Equal(t, uint16(kindPiece), f.Kind)
	require.NoError(t, first.Body(make([]byte, 100)))
	second, _ := dial(&offer)
	require.NoError(t, second.Send(hello, ticket))
	refused(second, protocol.CodePermission)
	third, _ := dial(&offer)
	require.NoError(t, third.Send(hello, noise(ticketBytes, 1)))
	refused(third, protocol.CodePermission)

	for _, bad := range []Frame{{Offset: 100, Length: 1}, {Offset: 1, Length: 100}, {Offset: math.MaxInt64 - mostPiece, Length: mostPiece}} {
		offer := asks(t, a, q)
		p, ticket := dial(&offer)
		require.NoError(t, p.Send(hello, ticket))
		bad.Kind, bad.Version = kindWant, Highest
		require.NoError(t, p.Send(bad, nil))
		refused(p, protocol.CodeProtocol)
	}
	require.NoError(t, first.Send(Frame{Kind: kindDone, Version: Highest}, nil)) // it was not disturbed
	f, err = first.Receive(patience)
	require.NoError(t, err)
	require.Equal(t, uint16(kindReleased), f.Kind)
	require.Equal(t, uint64(5), a.Status().Refused)
}

func TestSourceRefusesQuestionsThatAreNone(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	a := startHost(t, url, "a", func(c *Config) { c.Namespaces = []string{"ns"} })
	far := a.memory.put(noise(100, 1), 0)
	good := question{Lowest: Lowest, Highest: Highest, Host: "b", Handle: far, Piece: mostPiece}
	for name, k := range map[string]struct {
		change func(*question)
		code   protocol.Code
	}{
		"newer":     {func(q *question) { q.Lowest, q.Highest = Highest+1, Highest+2 }, protocol.CodeVersion},
		"older":     {func(q *question) { q.Lowest, q.Highest = 0, Lowest-1 }, protocol.CodeVersion},
		"reversed":  {func(q *question) { q.Lowest, q.Highest = 2, 1 }, protocol.CodeVersion},
		"no host":   {func(q *question) { q.Host = "" }, protocol.CodeProtocol},
		"wildcard":  {func(q *question) { q.Host = "a.>" }, protocol.CodeProtocol},
		"another's": {func(q *question) { q.Handle.Host = "c" }, protocol.CodeHandle},
		"device":    {func(q *question) { q.Handle.Device = "cuda:1" }, protocol.CodeUnsupported},
		"piece":     {func(q *question) { q.Piece = 0 }, protocol.CodeProtocol},
		"unknown":   {func(q *question) { q.Handle.Index++ }, protocol.CodeExpired},
	} {
		q := good
		k.change(&q)
		offer := asks(t, a, q)
		require.NotNil(t, offer.Error, name)
		require.Equal(t, k.code, offer.Error.Code, name)
	}
	for _, text := range []string{"", "[]", "{", `{"lowest":1,"highest":1,"host":"b","piece":262144,"handle":{}}`} {
		m, err := a.nats.nc.Request(protocol.HostSubject("ns", "a", subjectFetch), []byte(text), patience)
		require.NoError(t, err)
		var offer answer
		require.NoError(t, json.Unmarshal(m.Data, &offer))
		require.NotNil(t, offer.Error, text)
	}
	_, err := a.nats.nc.Request(protocol.HostSubject("other", "a", subjectFetch), nil, patience)
	require.True(t, natsGone(err), "a namespace that is not spanned has no subscriber: %v", err)

	for range mostTransfersOfPeer {
		require.Nil(t, asks(t, a, good).Error)
	}
	require.Equal(t, protocol.CodeBusy, asks(t, a, good).Error.Code)
	other := good
	other.Host = "c"
	require.Nil(t, asks(t, a, other).Error, "another host is not held up")
}

// A source that says what is not so.
func TestReceiverChecksWhatASourceSays(t *testing.T) {
	t.Parallel()
	url := startNATS(t)
	b := startHost(t, url, "b", nil)
	nc := connected(t, url)()
	far := newFakeMemory("liar").put(noise(100, 1), 0)
	for name, said := range map[string]answer{
		"size":    {Version: Highest, Bytes: 1 << 40, Piece: mostPiece, Ticket: hex.EncodeToString(make([]byte, ticketBytes))},
		"piece":   {Version: Highest, Bytes: 100, Piece: math.MaxUint32, Ticket: hex.EncodeToString(make([]byte, ticketBytes))},
		"ticket":  {Version: Highest, Bytes: 100, Piece: mostPiece, Ticket: "x"},
		"version": {Version: 99, Bytes: 100, Piece: mostPiece},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := json.Marshal(said)
			require.NoError(t, err)
			sub, err := nc.SubscribeSync(protocol.HostSubject("ns", "liar", subjectFetch))
			require.NoError(t, err)
			require.NoError(t, nc.Flush())
			over := make(chan struct{})
			go func() {
				defer close(over)
				for {
					m, err := sub.NextMsg(patience)
					if err != nil {
						return
					}
					m.Respond(data)
				}
			}()
			_, err = b.Fetch(within(t, 300*time.Millisecond), "ns", far)
			require.Error(t, err)
			require.NoError(t, sub.Unsubscribe())
			<-over
			require.Zero(t, b.memory.held())
			until(t, "no room is taken", func() bool { return b.Status().Kept.Bytes == 0 })
		})
	}
}

// Whatever the link does to bytes, none of them is visible.
func TestNoFaultOfTheLinkIsVisible(t *testing.T) {
	t.Parallel()
	for _, tls := range []string{TLSOff, TLSOn} {
		t.Run("TLS "+tls, func(t *testing.T) {
			t.Parallel()
			faultyLink(t, func(c *Config) { c.TLS = tls })
		})
	}
}

func faultyLink(t *testing.T, set func(*Config)) {
	url := startNATS(t)
	a, b := startHost(t, url, "a", set), startHost(t, url, "b", set)
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(1, 2))
	startProxy(t, a, func(_ int, _ int64, b []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		switch n := random.IntN(400); {
		case n < 4:
			b[random.IntN(len(b))] ^= 1 << random.IntN(8)
		case n < 8:
			return false
		}
		return true
	})
	whole := 0
	for i := range 150 {
		mu.Lock()
		n := 1 + random.IntN(1<<20)
		mu.Unlock()
		want := noise(n, byte(i))
		near, err := b.Fetch(within(t, patience), "ns", a.memory.put(want, 0))
		if err != nil {
			t.Logf("%d bytes: %v", n, err)
			continue
		}
		whole++
		require.True(t, bytes.Equal(want, b.memory.bytes(&near)), "%d bytes", n)
	}
	require.Greater(t, whole, 140)
	s := b.Status()
	t.Logf("%d of 150 whole, %d pieces with wrong sums", whole, s.BadPieces)
	require.Equal(t, s.TLS, s.BadPieces == 0, "what TLS carries does not change on the way")
	atRest(t, a, b)
}
