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
