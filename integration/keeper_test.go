package integration

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() { roles["closes"] = closes }

// closes opens two sessions, holds in each what a partner lent and a tensor of its
// own, and closes both: the counts of the second move to the first.
func closes(p *testkit.Child) error {
	var lent protocol.Handle
	if err := p.Config(&lent); err != nil {
		return err
	}
	var held []*client.Tensor
	for range 2 {
		c, err := p.Connect(client.WithName("dying"))
		if err != nil {
			return err
		}
		theirs, err := c.Open(p.Context(), lent)
		if err != nil {
			return err
		}
		own, err := filled(p.Context(), c, 64, 9)
		if err != nil {
			return err
		}
		held = append(held, theirs, own)
		if err := c.Close(); err != nil {
			return err
		}
	}
	for i, x := range held {
		words, err := client.Slice[uint64](x)
		if err == nil {
			err = verify(words, []uint64{1, 9}[i%2])
		}
		if err != nil {
			return err
		}
		x.Release()
	}
	return nil
}

// lend connects a partner that has a tensor and a handle to it.
func lend(t *testing.T, b *testkit.Broker) (*client.Client, *client.Tensor, protocol.Handle) {
	t.Helper()
	c := b.Connect(client.WithName("partner"))
	lent, err := filled(testkit.Context(t), c, 64, 1)
	require.NoError(t, err)
	h, err := lent.Handle(testkit.Context(t))
	require.NoError(t, err)
	return c, lent, h
}

// A process is killed at each step of the way of its counts from one session to the
// other. Nothing of it is left, and what others hold is as it was.
func TestKilledWhileCountsMoveLeavesNothing(t *testing.T) {
	program := testkit.CrashBinary(t)
	for _, point := range crashpoint.KeeperPoints {
		t.Run(point.Name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			c, lent, h := lend(t, b)
			dying := b.Start("closes", h, testkit.Program(program), testkit.Env(crashpoint.Env, point.Name))
			dying.Killed()
			testkit.Gone(t, b, dying.PID())
			testkit.Audit(t, b)
			words, err := client.Slice[uint64](lent)
			require.NoError(t, err)
			require.NoError(t, verify(words, 1))
			lent.Release()
			require.NoError(t, c.ReleaseHandle(testkit.Context(t), h))
			testkit.Until(t, "nothing is held", func() (bool, string) {
				c.Collect()
				look := testkit.Look(t, b)
				return len(look.Storages) == 0, look.String()
			})
		})
	}
}

func TestProcessThatClosesTwoSessionsEndsBoth(t *testing.T) {
	b := testkit.StartBroker(t)
	c, lent, h := lend(t, b)
	p := b.Start("closes", h)
	p.Wait()
	require.NoError(t, p.Result(), p.Log())
	testkit.Gone(t, b, p.PID())
	lent.Release()
	require.NoError(t, c.ReleaseHandle(testkit.Context(t), h))
	testkit.Audit(t, b)
}
