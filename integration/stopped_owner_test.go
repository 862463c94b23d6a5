package integration

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() { roles["owner of what is held"] = ownerOfHeld }

const heldWords = 4096

// ownerOfHeld puts an item and then allocates, fills and recycles memory of the same size
// until its session is lost. It goes on in another one until it is told to end.
//
// It has one thread, so that what it hears is read late.
func ownerOfHeld(p *testkit.Child) error {
	runtime.GOMAXPROCS(1)
	ctx := p.Context()
	c, err := p.Connect()
	if err != nil {
		return err
	}
	q, err := c.Queue(ctx, "held")
	if err != nil {
		return err
	}
	x, err := filled(ctx, c, heldWords, 7)
	if err != nil {
		return err
	}
	if err := q.Put(ctx, x); err != nil {
		return err
	}
	x.Release()
	if err := p.Say("put"); err != nil {
		return err
	}
	for told := false; err == nil && !told; {
		for k := 0; err == nil && k < 64; k++ {
			if x, err = filled(ctx, c, heldWords, 9); err == nil {
				x.Release()
				c.Collect()
			}
		}
		if err == nil {
			told, err = p.TryHear(new(string))
		}
	}
	for _, end := range []error{protocol.ErrSessionLost, protocol.ErrBrokerLost, context.Canceled} {
		if errors.Is(err, end) {
			err = nil
		}
	}
	return errors.Join(err, c.Close())
}

// What a process holds stays as it is though the broker was stopped for good and another
// one took its files over, while the owner of the memory goes on: it has not learned of the
// end, because it was suspended, or because it had no connection.
func TestHeldBytesStayWhereTheirOwnerMissesTheStop(t *testing.T) {
	for name, stop := range map[string]func(*testkit.Broker, *testkit.Process){
		"it hears": func(b *testkit.Broker, _ *testkit.Process) { b.End() },
		"it is suspended": func(b *testkit.Broker, owner *testkit.Process) {
			owner.Stop()
			b.End()
		},
		"it is suspended since the previous broker": func(b *testkit.Broker, owner *testkit.Process) {
			owner.Stop()
			b.Kill()
			b.Restart()
			b.End()
		},
		"it looks for the broker": func(b *testkit.Broker, _ *testkit.Process) {
			b.Kill()
			b.Restart()
			b.End()
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = t.TempDir() })
			ctx := testkit.Context(t)
			owner := b.Start("owner of what is held", nil)
			owner.Next(new(string))
			c := b.Connect()
			q, err := c.Queue(ctx, "held")
			require.NoError(t, err)
			m, err := q.Get(ctx)
			require.NoError(t, err)
			words, err := client.Slice[uint64](m.Tensor())
			require.NoError(t, err)

			stop(b, owner)
			b.Restart()
			if b.Connect().Instance() == c.Instance() {
				holds := func(r broker.SessionRow) bool { return r.Serial == c.Session() && r.Held >= 8*heldWords }
				require.True(t, slices.ContainsFunc(testkit.List[broker.SessionRow](t, b, protocol.ListSessions), holds))
			}
			owner.Cont()
			for range 200 {
				require.NoError(t, verify(words, 7))
				d := b.Connect() // which takes what is free
				x, err := filled(ctx, d, heldWords, 11)
				require.NoError(t, err)
				x.Release()
				require.NoError(t, d.Close())
			}
			require.NoError(t, verify(words, 7))
			m.Release()
			owner.Tell("end")
			owner.Done()
		})
	}
}

// A client that was not connected when the broker was stopped loses its session as well: no
// other broker need come and say so.
func TestWhoMissesTheStopLosesItsSession(t *testing.T) {
	for name, dir := range map[string]string{"memfds": "", "files": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = dir })
			waiting := startGoingOn(b, append(kindsThatGoOn, kindsThatWait...)...)
			c := b.Connect()
			for _, p := range waiting {
				p.Stop()
			}
			b.Kill()
			b.Restart()
			require.NoError(t, c.Broker(testkit.Context(t), protocol.OpStatus, nil, &struct{}{}))
			b.Discard()
			for kind, p := range waiting {
				p.Cont()
				var s string
				p.Next(&s)
				require.Equal(t, "lost", s, kind)
			}
			b.Restart()
			for kind, p := range waiting {
				var s string
				p.Tell("again")
				p.Next(&s)
				require.Equal(t, "again", s, kind)
				p.Done()
			}
		})
	}
}
