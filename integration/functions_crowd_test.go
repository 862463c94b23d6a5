package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() { roles["callers"] = playCallers }

// callersConfig is what the role callers is told: half of so many goroutines call a function of a number side by side.
// When it hears a line, the other half calls with a deadline; it says how those calls ended. The first ones have to have
// their results in the end.
type callersConfig struct {
	Name    string
	Callers int
}

func playCallers(p *testkit.Child) error {
	var cfg callersConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect(client.WithName("callers"))
	if err != nil {
		return err
	}
	f, err := c.Function(p.Context(), cfg.Name)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var failed error
	ends := map[protocol.Code]int{}
	var served, late sync.WaitGroup
	for n := range cfg.Callers / 2 {
		served.Go(func() {
			got, err := client.CallOf[int](context.Background(), f, n)
			if err == nil && got != n {
				err = fmt.Errorf("call %d gave %d", n, got)
			}
			mu.Lock()
			failed = errors.Join(failed, err)
			mu.Unlock()
		})
	}
	var line string
	if err := p.Hear(&line); err != nil {
		return err
	}
	for n := range cfg.Callers / 2 {
		late.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			_, err := client.CallOf[int](ctx, f, n)
			mu.Lock()
			ends[protocol.CodeOf(err)]++
			mu.Unlock()
		})
	}
	late.Wait()
	if err := p.Say(ends); err != nil {
		return err
	}
	served.Wait()
	f.Close()
	return errors.Join(failed, c.Close())
}

// Ten thousand callers of a function that gets nowhere wait, or are told so at their deadlines: what their calls take is
// bounded. All others have their result once it goes on.
func TestTenThousandCallersOfASlowFunction(t *testing.T) {
	const processes, callers = 10, 1000
	const underWay = protocol.DefaultQueueDepth // calls of one function that a session has under way
	b := testkit.StartBroker(t)
	provider := b.Connect()
	goOn := make(chan struct{})
	r, err := client.Handle(provider, "slow", func(_ context.Context, n int) (int, error) { <-goOn; return n, nil }, client.Concurrency(4))
	require.NoError(t, err)
	var all []*testkit.Process
	for range processes {
		all = append(all, b.Start("callers", callersConfig{"slow", callers}))
	}
	sent := func() (is, most bool, what string) {
		f := row(t, b)
		n := int(f.Running + f.Waiting)
		return n == processes*underWay, n > processes*underWay, fmt.Sprintf("%d run, %d wait", f.Running, f.Waiting)
	}
	testkit.Until(t, "each session has as many calls under way as it may", func() (bool, string) {
		is, more, what := sent()
		require.False(t, more, what)
		return is, what
	})
	places := len(testkit.Look(t, b).Topics)
	require.LessOrEqual(t, places, 1+processes*underWay)
	memory := granted(t, b)
	for _, p := range all {
		p.Tell("go on")
	}
	full := 0
	for _, p := range all {
		var ends map[protocol.Code]int
		p.Next(&ends)
		// The deadline of some has passed before they have looked for room.
		require.Equal(t, callers/2, ends[protocol.CodeFull]+ends[protocol.CodeTimeout], "%v", ends)
		full += ends[protocol.CodeFull]
	}
	require.NotZero(t, full)
	is, _, what := sent()
	require.True(t, is, what)
	require.Equal(t, places, len(testkit.Look(t, b).Topics), "what is not sent has no place for its reply")
	require.Equal(t, memory, granted(t, b))
	close(goOn)
	for _, p := range all {
		p.Done()
	}
	require.NoError(t, r.Close(testkit.Context(t)))
	nothingIsLeft(t, b, provider)
}
