package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() { roles["provide-caller"] = playProvideCaller }

// callerConfig is what the role provide-caller is told: it provides a function of concurrency 1 that calls another
// one, with one less, until that is 0.
type callerConfig struct{ Name, Calls string }

func playProvideCaller(p *testkit.Child) error {
	var cfg callerConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect(client.WithName(cfg.Name))
	if err != nil {
		return err
	}
	_, ended := lines(p)
	r, err := client.Handle(c, cfg.Name, func(ctx context.Context, n int) (int, error) {
		if n == 0 {
			return 0, nil
		}
		below, err := client.Call[int](ctx, c, cfg.Calls, n-1)
		return below + 1, err
	})
	if err != nil {
		return err
	}
	if err := p.Say(begun{Ready: true}); err != nil {
		return err
	}
	return endProvider(c, r, <-ended)
}

// A cycle goes through processes that know nothing of each other: what is called is in the request.
func TestACycleThroughTwoProcessesIsFoundAndNamed(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	var all []*testkit.Process
	for _, cfg := range []callerConfig{{"a", "b"}, {"b", "a"}} {
		p := b.Start("provide-caller", cfg)
		p.Next(new(begun))
		all = append(all, p)
	}
	for first, cycle := range map[string]string{"a": "a > b > a", "b": "b > a > b"} {
		n, err := client.Call[int](ctx, c, first, 1)
		require.NoError(t, err)
		require.Equal(t, 1, n, "one calls the other")
		_, err = client.Call[int](ctx, c, first, 2)
		require.ErrorIs(t, err, protocol.ErrRemote)
		require.ErrorContains(t, err, fmt.Sprintf("the call would wait for itself: %s", cycle))
		n, err = client.Call[int](ctx, c, first, 1)
		require.NoError(t, err)
		require.Equal(t, 1, n, "both go on")
	}
	for _, p := range all {
		p.Done()
	}
	nothingIsLeft(t, b, c)
}
