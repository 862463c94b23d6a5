package machines

import (
	"bytes"
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/baton-ipc/baton/protocol"
)

// ways are two ends of each transport: the frames of all pass the same tests.
func ways(t *testing.T, test func(t *testing.T, source, receiver Transport)) {
	for name, secure := range map[string]bool{"tcp": false, "tls": true} {
		t.Run(name, func(t *testing.T) {
			source, err := newTCP("127.0.0.1:0", secured(t, secure))
			require.NoError(t, err)
			receiver, err := newTCP("", secured(t, secure))
			require.NoError(t, err)
			t.Cleanup(receiver.Close)
			t.Cleanup(source.Close)
			test(t, certified{source}, receiver)
		})
	}
	t.Run("nats", func(t *testing.T) {
		url := startNATS(t)
		source, receiver := newOverNATS("source", connected(t, url)), newOverNATS("receiver", connected(t, url))
		_, err := source.current().Subscribe(protocol.HostSubject("ns", "source", subjectData), source.came)
		require.NoError(t, err)
		require.NoError(t, source.current().Flush())
		t.Cleanup(receiver.Close)
		t.Cleanup(source.Close)
		test(t, source, receiver)
	})
}

// secured are direct connections of a host that knows no other, encrypted or not.
func secured(t *testing.T, encrypted bool) *security {
	t.Helper()
	own, err := newIdentity("test")
	require.NoError(t, err)
	return &security{own: own, wanted: func() bool { return encrypted }, expects: func(fingerprint) bool { return true },
		refused: func(err error) { t.Errorf("refused: %v", err) }}
}

// certified offers the certificate as well, as a source does.
type certified struct{ *tcp }

func (c certified) Offer(o *Offer) {
	c.tcp.Offer(o)
	if c.security.wanted() {
		o.Certificate = c.security.own.print.String()
	}
}

func connected(t *testing.T, url string) func() *nats.Conn {
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return func() *nats.Conn { return nc }
}

const patience = 30 * time.Second

// passage opens a passage, says hello, and returns both ends.
func passage(t *testing.T, source, receiver Transport, came <-chan Passage) (at, from Passage) {
	t.Helper()
	var o Offer
	source.Offer(&o)
	at, err := receiver.Open(context.Background(), "ns", "source", &o)
	require.NoError(t, err)
	ticket := bytes.Repeat([]byte{7}, ticketBytes)
	require.NoError(t, at.Send(Frame{Kind: kindHello, Version: Highest, Body: ticketBytes}, ticket))
	from = <-came
	f, err := from.Receive(patience)
	require.NoError(t, err)
	require.Equal(t, Frame{Kind: kindHello, Version: Highest, Body: ticketBytes}, f)
	got := make([]byte, ticketBytes)
	require.NoError(t, from.Body(got))
	require.Equal(t, ticket, got)
	return at, from
}

// accepted has the passages of a source come, and stay until the test ends.
func accepted(t *testing.T, source Transport) <-chan Passage {
	came, over := make(chan Passage), make(chan struct{})
	source.Accept(func(p Passage) {
		select {
		case came <- p:
		case <-over:
		}
		<-over
	})
	t.Cleanup(func() { close(over) })
	return came
}

func TestTransportsCarryFramesWholeAndInOrder(t *testing.T) {
	ways(t, func(t *testing.T, source, receiver Transport) {
		at, from := passage(t, source, receiver, accepted(t, source))
		defer at.Close()
		sizes := []int{0, 1, leastPiece - 1, mostPiece}
		for i := range 20 {
			body := bytes.Repeat([]byte{byte(i)}, sizes[i%len(sizes)])
			want := Frame{Kind: kindWant, Version: Highest, Offset: uint64(i) << 30, Length: uint32(i + 1)}
			require.NoError(t, at.Send(want, nil))
			f, err := from.Receive(patience)
			require.NoError(t, err)
			require.Equal(t, want, f)
			sent := Frame{Kind: kindPiece, Version: Highest, Body: uint32(len(body)), Offset: f.Offset, Sum: xxh3.Hash128(body)}
			require.NoError(t, from.Send(sent, body))
			f, err = at.Receive(patience)
			require.NoError(t, err)
			require.Equal(t, sent, f)
			got := make([]byte, f.Body)
			require.NoError(t, at.Body(got))
			require.Equal(t, f.Sum, xxh3.Hash128(got))
		}
	})
}

func TestTransportsTellSilenceFromTheEnd(t *testing.T) {
	ways(t, func(t *testing.T, source, receiver Transport) {
		came := accepted(t, source)
		at, from := passage(t, source, receiver, came)
		_, err := at.Receive(time.Millisecond)
		require.ErrorIs(t, err, errSilence)
		require.NoError(t, from.Send(Frame{Kind: kindReleased, Version: Highest}, nil))
		f, err := at.Receive(patience)
		require.NoError(t, err, "silence ends nothing")
		require.Equal(t, uint16(kindReleased), f.Kind)

		var waiting sync.WaitGroup // an abort ends a wait of this side
		waiting.Go(func() {
			_, err := at.Receive(patience)
			if err == nil || errors.Is(err, errSilence) {
				t.Errorf("a closed passage: %v", err)
			}
		})
		require.NoError(t, at.Close())
		waiting.Wait()

		other, _ := passage(t, source, receiver, came) // others go on
		require.NoError(t, other.Close())
	})
}

func TestTransportsRefuseFramesThatAreNone(t *testing.T) {
	for name, change := range map[string]func(*Frame){
		"kind":    func(f *Frame) { f.Kind = 99 },
		"version": func(f *Frame) { f.Version = Highest + 1 },
		"offset":  func(f *Frame) { f.Offset = math.MaxUint64 },
		"length":  func(f *Frame) { f.Length = mostPiece + 1 },
		"nothing": func(f *Frame) { f.Length = 0 },
		"body":    func(f *Frame) { f.Body = math.MaxUint32 },
	} {
		t.Run(name, func(t *testing.T) {
			ways(t, func(t *testing.T, source, receiver Transport) {
				at, from := passage(t, source, receiver, accepted(t, source))
				defer at.Close()
				f := Frame{Kind: kindWant, Version: Highest, Length: 1}
				change(&f)
				require.NoError(t, at.Send(f, nil))
				_, err := from.Receive(patience)
				code := protocol.CodeOf(err)
				require.True(t, code == protocol.CodeProtocol || code == protocol.CodeVersion, "%v", err)
			})
		})
	}
}

func TestTransportsKnowTheirWay(t *testing.T) {
	ways(t, func(t *testing.T, source, receiver Transport) {
		_, err := receiver.Open(context.Background(), "ns", "source", &Offer{})
		require.ErrorIs(t, err, errNoWay)
	})
	receiver, err := newTCP("", secured(t, false))
	require.NoError(t, err)
	defer receiver.Close()
	for _, hostile := range []string{"example.org:80", "127.0.0.1:0", "224.0.0.1:80", "nothing", ""} {
		_, err := receiver.Open(context.Background(), "ns", "h", &Offer{Addresses: []string{hostile}})
		require.ErrorIs(t, err, errNoWay, hostile)
	}
}

func TestGateLetsSmallTransfersInBetween(t *testing.T) {
	var g gate
	for range mostOfPeer / mostPiece {
		require.True(t, g.try("a", mostPiece))
	}
	require.False(t, g.try("a", mostPiece), "the host has all that it may have")
	require.True(t, g.try("b", mostPiece), "another one has not")
	in := make(chan int)
	for i := range 3 { // in their order
		go func() {
			if err := g.take(context.Background(), "a", mostPiece); err != nil {
				t.Error(err)
			}
			in <- i
		}()
		for waits := 0; waits <= i; {
			g.mu.Lock()
			waits = len(g.waiters)
			g.mu.Unlock()
		}
	}
	require.False(t, g.try("a", 1), "those that wait come first")
	for i := range 3 {
		g.give("a", mostPiece)
		require.Equal(t, i, <-in)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, g.take(ended, "a", mostPiece), context.Canceled)
	for range mostOfPeer / mostPiece {
		g.give("a", mostPiece)
	}
	g.give("b", mostPiece)
	require.Zero(t, g.underWay())
	require.Empty(t, g.waiters)
}
