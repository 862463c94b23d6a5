package link

import (
	"context"
	"encoding/json"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// brokers accepts connections, one after another, and answers each hello.
type brokers struct {
	t      *testing.T
	listen *net.UnixListener
}

// peer is the broker's end of one connection.
type peer struct {
	t    *testing.T
	conn *wire.Conn
}

func newLink(t *testing.T, event func(string)) (*Link, *life.Life, *brokers) {
	t.Helper()
	socket := shortdir.New(t) + "/s"
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	of := &life.Life{}
	return New(of, Place{Socket: socket, Named: true}, protocol.Hello{Namespace: "n"}, event), of, &brokers{t, l}
}

// accept takes the next connection and answers its hello.
func (b *brokers) accept(reply protocol.HelloReply) *peer {
	u, err := b.listen.AcceptUnix()
	require.NoError(b.t, err)
	p := &peer{b.t, wire.New(u)}
	b.t.Cleanup(func() { p.conn.Close() })
	require.Equal(b.t, protocol.OpHello, p.answer(reply))
	return p
}

// answer answers the next request and returns its op.
func (p *peer) answer(ok any) string {
	id, op := p.read()
	p.write(map[string]any{"id": id, "ok": ok})
	return op
}

func (p *peer) read() (id uint64, op string) {
	data, fds, err := p.conn.Read()
	require.NoError(p.t, err)
	wire.CloseAll(fds)
	var e struct {
		ID uint64
		Op string
	}
	require.NoError(p.t, json.Unmarshal(data, &e))
	return e.ID, e.Op
}

func (p *peer) write(v any) {
	require.NoError(p.t, p.conn.Write(v))
}

func open(t *testing.T, l *Link, b *brokers) *peer {
	t.Helper()
	opened := make(chan error, 1)
	go func() {
		_, _, err := l.Open(context.Background())
		opened <- err
	}()
	p := b.accept(protocol.HelloReply{Serial: 7})
	require.NoError(t, <-opened)
	t.Cleanup(l.End)
	return p
}

func TestCallIsAskedAgainOfTheNextBroker(t *testing.T) {
	l, _, b := newLink(t, func(string) {})
	first := open(t, l, b)
	answered := make(chan error, 1)
	var before bool
	go func() {
		var err error
		before, err = l.CallNoting(context.Background(), "status", nil, nil)
		answered <- err
	}()
	_, op := first.read()
	require.Equal(t, "status", op)
	first.conn.Close()
	<-l.Away()
	require.True(t, l.IsAway())
	resumed := make(chan bool, 1)
	go func() {
		ctl, err := l.Resume(context.Background(), &protocol.Resume{Serial: 7}, nil)
		resumed <- err == nil && l.SwitchTo(ctl)
	}()
	second := b.accept(protocol.HelloReply{Resumed: true})
	require.True(t, <-resumed)
	require.Equal(t, "status", second.answer(nil))
	require.NoError(t, <-answered)
	require.True(t, before, "another broker was asked")
	require.EqualValues(t, 1, l.Epoch())
}

func TestNewBrokerIsGivenWhatItAsksForBeforeTheLinkGoesOn(t *testing.T) {
	l, _, b := newLink(t, func(string) {})
	open(t, l, b).conn.Close()
	<-l.Away()
	resumed := make(chan error, 1)
	go func() {
		_, err := l.Resume(context.Background(), &protocol.Resume{}, func(ctx context.Context, ask Request) error {
			_, err := ask(ctx, protocol.OpRestored, protocol.Restored{}, nil)
			return err
		})
		resumed <- err
	}()
	require.Equal(t, protocol.OpRestored, b.accept(protocol.HelloReply{Restore: true}).answer(nil))
	require.NoError(t, <-resumed)
	require.True(t, l.IsAway(), "it goes on by the connection that it switched to")
}

func TestCallsThatWaitForABrokerEndWithTheSession(t *testing.T) {
	lost := protocol.Errorf(protocol.CodeSessionLost, "", "over")
	for what, end := range map[string]func(*Link){
		"closed": func(l *Link) { require.True(t, l.Close()); require.False(t, l.Close()) },
		"lost":   func(l *Link) { require.True(t, l.Lose(lost)); require.False(t, l.Lose(lost)) },
	} {
		t.Run(what, func(t *testing.T) {
			l, _, b := newLink(t, func(string) {})
			open(t, l, b).conn.Close()
			<-l.Away()
			answered := make(chan error, 1)
			go func() {
				_, err := l.CallUntil(context.Background(), "status", nil, nil)
				answered <- err
			}()
			end(l)
			err := <-answered
			if what == "closed" {
				require.ErrorIs(t, err, protocol.ErrClosed)
			} else {
				require.Equal(t, error(lost), err)
			}
		})
	}
}

// A grant that is not awaited any more would stay until the session ends.
func TestLateGrantIsReturned(t *testing.T) {
	l, _, b := newLink(t, func(string) {})
	p := open(t, l, b)
	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error, 1)
	go func() {
		_, err := l.Call(ctx, protocol.OpGrant, protocol.Grant{Bytes: 1}, &protocol.GrantReply{})
		answered <- err
	}()
	id, op := p.read()
	require.Equal(t, protocol.OpGrant, op)
	cancel()
	require.ErrorIs(t, <-answered, context.Canceled)
	p.write(map[string]any{"id": id, "ok": protocol.GrantReply{Segment: 3, SegmentSerial: 4}})
	require.Equal(t, protocol.OpReturn, p.answer(nil))
}

func TestEventsAreTold(t *testing.T) {
	told := make(chan string, 1)
	l, _, b := newLink(t, func(event string) { told <- event })
	open(t, l, b).write(map[string]any{"event": protocol.EventRoom})
	require.Equal(t, protocol.EventRoom, <-told)
}
