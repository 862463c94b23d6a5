package integration

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// Each call has the place of its reply from the start: what a suspended caller does not read holds up no provider.
func TestASuspendedCallerHoldsUpNoOther(t *testing.T) {
	const due = protocol.DefaultQueueDepth - 1 // as many as one session may have under way
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{Concurrency: due + 1})
	caller := b.Start("call", callConfig{Name: work, Calls: due, Hold: true})
	for range due {
		p.Next(new(begun))
	}
	caller.Stop()
	for range due {
		p.Tell("go on")
	}
	for range due {
		by(t, p, <-call(ctx, c))
	}
	testkit.Until(t, "all are answered", func() (bool, string) { r := row(t, b); return r.Running == 0, "some run" })
	caller.Cont()
	for range due {
		var o outcome
		caller.Next(&o)
		by(t, p, o)
	}
	caller.Done()
	p.Done()
	nothingIsLeft(t, b, c)
}

func TestACallOfASuspendedProviderEndsAtItsDeadline(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	held := hold(ctx, c, p)
	p.Stop()
	late, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	require.Equal(t, protocol.CodeTimeout, (<-call(late, c)).Code)
	_, _, providers := shown(t, b)
	require.Equal(t, true, providers[0].(map[string]any)["stopped"])
	p.Cont()
	p.Tell("go on")
	by(t, p, <-held)
	by(t, p, <-call(ctx, c))
	p.Done()
	nothingIsLeft(t, b, c)
}

func TestAFunctionThatReplacesItsProgramHasDied(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	_, err := client.Call[done](ctx, c, work, client.Arg("exec", true))
	require.EqualValues(t, p.PID(), died(t, err)["pid"])
	p.Ended()
	nothingIsLeft(t, b, c)
}

// A deadline that passes while no broker is there ends a call as any deadline does.
func TestDeadlineThatPassesWithoutABrokerIsATimeout(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	c, p := b.Connect(), b.Connect()
	_, err := client.Handle(p, "same", func(_ context.Context, in struct{ X int }) (int, error) { return in.X, nil })
	require.NoError(t, err)
	f, err := c.Function(ctx, "same")
	require.NoError(t, err)
	b.Kill()
	for what, call := range map[string]func(context.Context) error{
		"open":     func(ctx context.Context) error { _, err := f.Call(ctx, 1); return err },
		"not open": func(ctx context.Context) error { _, err := client.Call[int](ctx, c, "other", 1); return err },
		"parts": func(ctx context.Context) error {
			for _, err := range f.Parts(ctx, 1) {
				return err
			}
			return nil
		},
	} {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		err := call(short)
		cancel()
		if what == "parts" { // it gives none, which is known without a broker
			require.ErrorIs(t, err, protocol.ErrInvalid)
			continue
		}
		require.ErrorIs(t, err, protocol.ErrTimeout, what)
		require.NotErrorIs(t, err, protocol.ErrBrokerLost, what)
	}
	b.Restart()
}

// A call that was given up takes no room, though the provider that has it is suspended: those that follow go to another
// provider, as many as there are.
func TestACallThatWasGivenUpHoldsUpNoOther(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	var still []*testkit.Process
	for range 2 {
		p := provides(b, provideConfig{})
		late, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		held := call(late, c, client.Arg("hold", true))
		p.Next(new(begun))
		p.Stop()
		still = append(still, p)
		require.Equal(t, protocol.CodeTimeout, (<-held).Code)
		cancel()
	}
	p := provides(b, provideConfig{})
	for range 5 * protocol.DefaultQueueDepth {
		by(t, p, <-call(ctx, c))
	}
	for _, p := range still {
		p.Cont()
		var said begun
		for !said.Held {
			p.Next(&said)
		}
	}
	for range 5 * protocol.DefaultQueueDepth {
		require.Empty(t, (<-call(ctx, c)).Code)
	}
	for _, p := range append(still, p) {
		p.Done()
	}
	nothingIsLeft(t, b, c)
}
