package langs

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
)

// What a function in C waits for ends with its call, whatever that is and whichever session waits.
func TestWhatAFunctionInCWaitsForEndsWithItsCall(t *testing.T) {
	inC, inGo := functionLanguages("nested", "c")[0], functionLanguages("deaths", "go")[0]
	inC.options(t) // it is built before a broker runs that waits for it
	b := testkit.StartBroker(t)
	ctx := testkit.Context(t)
	others := b.Connect()
	_, err := client.Handle(others, "ne/waits", func(ctx context.Context, _ struct{}) (int, error) {
		<-ctx.Done()
		return 0, ctx.Err()
	}, client.Concurrency(1000))
	require.NoError(t, err)
	_, err = client.HandleStream(others, "ne/parts", func(ctx context.Context, _ struct{}, _ func(int) error) error {
		<-ctx.Done()
		return ctx.Err()
	}, client.Concurrency(100))
	require.NoError(t, err)
	_, err = client.Handle(others, "ne/calls", func(ctx context.Context, f *client.Function) (any, error) {
		return client.CallOf[any](ctx, f)
	}, client.Concurrency(100))
	require.NoError(t, err)
	gone, err := client.Handle(others, "ne/gone", func(context.Context, struct{}) (int, error) { return 0, nil })
	require.NoError(t, err)
	p := plays(t, b, "deaths", inC, "serve")
	says(t, p, "ready")
	require.NoError(t, gone.Close(ctx))

	c := b.Connect()
	f, err := c.Function(ctx, "de/work")
	require.NoError(t, err)
	defer f.Close()
	caller := func() *testkit.Process {
		caller := plays(t, b, "deaths", inGo, "call")
		says(t, caller, "ready")
		return caller
	}
	late := caller()
	for _, kind := range []string{"call", "name", "room", "provider", "absent", "pending", "stream", "lent"} {
		short, cancel := context.WithCancel(ctx)
		go client.CallOf[any](short, f, kind)
		says(t, p, "waits")
		cancel()
		says(t, p, "Cancelled")

		late.Tell(kind + " 300")
		says(t, p, "waits")
		var ended string
		p.Next(&ended)
		require.True(t, slices.Contains([]string{"Timeout", "Full"}, ended) || kind == "lent" && ended == "Cancelled", "%s: %s", kind, ended)
		says(t, late, "Timeout")

		killed := caller()
		killed.Tell(kind)
		says(t, p, "waits")
		killed.Kill()
		killed.Killed()
		says(t, p, "Cancelled")
	}
	// A broker that does not answer.
	for _, how := range []string{"Cancelled", "Timeout"} {
		b.Process().Stop()
		short, cancel := context.WithCancel(ctx)
		if how == "Timeout" {
			late.Tell("broker 300")
		} else {
			go client.CallOf[any](short, f, "broker")
		}
		says(t, p, "waits")
		if how != "Timeout" {
			cancel()
		}
		says(t, p, how)
		b.Process().Cont()
		cancel()
	}
	says(t, late, "Timeout")
	late.Done()
	p.Done()
}
