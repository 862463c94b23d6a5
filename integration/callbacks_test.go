package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// applies starts a provider of a function that takes a function, and waits until it takes calls.
func applies(b *testkit.Broker, opts ...testkit.StartOption) *testkit.Process {
	p := b.Start("apply", provideConfig{Name: work}, opts...)
	p.Next(new(applied))
	return p
}

// fails hears a provider until a function that it was given fails.
func fails(p *testkit.Process) protocol.Code {
	var said applied
	for said.Code == "" {
		p.Next(&said)
	}
	return said.Code
}

// given is a function that is given, and holds at a call of a number.
type given struct {
	held, goOn chan struct{}
	at         int
}

func newGiven(at int) *given {
	return &given{make(chan struct{}), make(chan struct{}), at}
}

func (g *given) call(ctx context.Context, in step) (*client.Tensor, error) {
	if in.Number == g.at {
		close(g.held)
		select {
		case <-g.goOn:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return next(in.X, uint64(in.Number))
}

// applying is a call with a function.
type applying struct {
	n   int
	err error
}

func give(t *testing.T, c *client.Client, g *given, times int) chan applying {
	result := make(chan applying, 1)
	go func() {
		n, err := client.Call[int](testkit.Context(t), c, work, client.Func(g.call), times)
		result <- applying{n, err}
	}()
	return result
}

func TestFunctionIsCalledBackFromAnotherProcess(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect()
	p := applies(b)
	for range 3 {
		require.Equal(t, applying{n: 200}, <-give(t, c, newGiven(-1), 200))
	}
	caller := b.Start("give", giveConfig{Times: 50, Hold: -1})
	var said string
	caller.Next(&said)
	require.Equal(t, "50", said)
	caller.Done()
	p.Done()
	nothingIsLeft(t, b, c)
}

// A caller is killed at each step of a call of its function: the provider's call of that ends, and nothing is left.
func TestCallerKilledWhileItsFunctionRuns(t *testing.T) {
	program := testkit.CrashBinary(t)
	for _, alone := range []bool{false, true} {
		for _, point := range []string{"", "function-registered", "call-sent", "take-held:2", "claim-swapped:2", "call-begun:2", "call-ran:2", "send-published:3", "call-replied:2"} {
			t.Run(fmt.Sprintf("alone=%t/%s", alone, point), func(t *testing.T) {
				b := testkit.StartBroker(t)
				p := applies(b)
				cfg := giveConfig{Times: 1 << 20, Hold: -1, Alone: alone}
				var opts []testkit.StartOption
				if point == "" {
					cfg.Hold = 5
				} else {
					opts = []testkit.StartOption{testkit.Program(program), testkit.Env(crashpoint.Env, point)}
				}
				dying := b.Start("give", cfg, opts...)
				if point == "" {
					var said string
					dying.Next(&said)
					dying.Kill()
				} else {
					dying.Killed()
				}
				testkit.Gone(t, b, dying.PID())
				switch {
				case point == "function-registered" || point == "call-sent": // it may not have been called
				case alone:
					require.Contains(t, []protocol.Code{protocol.CodeProviderDied, protocol.CodeNoProvider}, fails(p))
				default:
					require.Contains(t, []protocol.Code{protocol.CodeProviderDied, protocol.CodeNoProvider, protocol.CodeCancelled}, fails(p))
				}
				testkit.Audit(t, b)
				idle(t, b)
				c := b.Connect()
				require.Equal(t, applying{n: 10}, <-give(t, c, newGiven(-1), 10))
				p.Done()
				nothingIsLeft(t, b, c)
			})
		}
	}
}

// A provider is killed at each step of its call of the function that it was given.
func TestProviderKilledWhileTheFunctionThatItWasGivenRuns(t *testing.T) {
	program := testkit.CrashBinary(t)
	for _, point := range []string{"", "call-begun", "lane-joined:2", "send-written:2", "send-published:2", "call-sent:2", "take-held:4", "call-ran"} {
		t.Run(point, func(t *testing.T) {
			b := testkit.StartBroker(t)
			c := b.Connect()
			var opts []testkit.StartOption
			g := newGiven(-1)
			if point == "" {
				g = newGiven(5)
			} else {
				opts = []testkit.StartOption{testkit.Program(program), testkit.Env(crashpoint.Env, point)}
			}
			dying := applies(b, opts...)
			result := give(t, c, g, 20)
			if point == "" {
				<-g.held
				dying.Kill()
			} else {
				dying.Killed()
			}
			r := <-result
			require.ErrorIs(t, r.err, protocol.ErrProviderDied)
			testkit.Gone(t, b, dying.PID())
			testkit.Audit(t, b)
			p := applies(b)
			require.Equal(t, applying{n: 10}, <-give(t, c, newGiven(-1), 10))
			p.Done()
			nothingIsLeft(t, b, c)
		})
	}
}

func TestFunctionsAreCalledBackWhileNoBrokerRunsAndUnderTheNextOne(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect()
	p := applies(b)
	require.Equal(t, applying{n: 5}, <-give(t, c, newGiven(-1), 5)) // each has the files of the other
	g := newGiven(5)
	result := give(t, c, g, 300)
	<-g.held
	b.Kill()
	close(g.goOn)
	require.Equal(t, applying{n: 300}, <-result)
	require.Equal(t, applying{n: 100}, <-give(t, c, newGiven(-1), 100))
	g = newGiven(50)
	result = give(t, c, g, 100)
	<-g.held
	b.Restart()
	testkit.Until(t, "its caller and provider are back", func() (bool, string) { r := row(t, b); return r.Running == 1, fmt.Sprintf("%+v", r) })
	close(g.goOn)
	require.Equal(t, applying{n: 100}, <-result)
	g = newGiven(5)
	result = give(t, c, g, 10)
	<-g.held
	p.Kill()
	require.ErrorIs(t, (<-result).err, protocol.ErrProviderDied)
	p = applies(b)
	require.Equal(t, applying{n: 10}, <-give(t, c, newGiven(-1), 10))
	p.Done()
	nothingIsLeft(t, b, c)
}

// The session that gave the function is killed with the broker: the next one ends what it left.
func TestCallerKilledWithTheBrokerWhileItsFunctionRuns(t *testing.T) {
	b := testkit.StartBroker(t)
	p := applies(b)
	dying := b.Start("give", giveConfig{Times: 10, Hold: 3, Alone: true})
	var said string
	dying.Next(&said)
	b.Kill()
	dying.Kill()
	b.Restart()
	require.Equal(t, protocol.CodeProviderDied, fails(p))
	idle(t, b)
	c := b.Connect()
	require.Equal(t, applying{n: 10}, <-give(t, c, newGiven(-1), 10))
	p.Done()
	nothingIsLeft(t, b, c)
}
