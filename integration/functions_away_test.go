package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// The provider has never replied to this caller, and needs no broker for it once the function runs.
func TestTheFirstCallHasItsResultWhereTheBrokerDiesWhileItRuns(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	held := hold(ctx, c, p)
	b.Kill()
	p.Tell("go on")
	by(t, p, <-held)
	b.Restart()
	p.Done()
	nothingIsLeft(t, b, c)
}

// A call for whose reply the provider has to open a topic waits for a broker. It is left where it is, so that others have
// their turn.
func TestACallThatNeedsABrokerBeforeItCanBeginWaitsForOneAndHoldsUpNoOther(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c, other := testkit.Context(t), b.Connect(), b.Connect()
	p := provides(b, provideConfig{})
	by(t, p, <-call(ctx, other))
	p.Next(new(begun))
	held := hold(ctx, c, p)
	waiting := call(ctx, c)
	testkit.Until(t, "one waits", func() (bool, string) { r := row(t, b); return r.Waiting == 1, "" })
	b.Kill()
	p.Tell("go on")
	by(t, p, <-held)
	for range 10 {
		by(t, p, <-call(ctx, other))
		p.Next(new(begun))
	}
	b.Restart()
	by(t, p, <-waiting)
	p.Next(new(begun))
	p.Done()
	require.NoError(t, other.Close())
	nothingIsLeft(t, b, c)
}

// Each function replies in a topic of its own, which its next call has again.
func TestFunctionsThatWereCalledBeforeByTurnsGoOnWithoutABroker(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	names := []string{"a", "b", "c"}
	began, goOn := make(chan bool, 16), make(chan struct{})
	for _, name := range names {
		p := b.Connect()
		_, err := client.Handle(p, name, func(context.Context, struct{}) (string, error) {
			began <- true
			<-goOn
			return name, nil
		})
		require.NoError(t, err)
	}
	results := make(chan error)
	for _, name := range names {
		go func() { _, err := client.Call[string](ctx, c, name); results <- err }()
		<-began
	}
	close(goOn)
	for range names {
		require.NoError(t, <-results)
	}
	b.Kill()
	for _, i := range []int{0, 1, 2, 2, 1, 0} {
		got, err := client.Call[string](ctx, c, names[i])
		require.NoError(t, err)
		require.Equal(t, names[i], got)
	}
	b.Restart()
	testkit.Until(t, "all are back", func() (bool, string) {
		rows := testkit.List[broker.FunctionRow](t, b, protocol.ListFunctions)
		away := func(r broker.FunctionRow) bool { return len(r.Providers) != 1 || r.Callers != 1 }
		return len(rows) == len(names) && !slices.ContainsFunc(rows, away), fmt.Sprintf("%+v", rows)
	})
}
