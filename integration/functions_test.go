package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

const work = "work/do"

// provides starts a provider and waits until it takes calls.
func provides(b *testkit.Broker, cfg provideConfig, opts ...testkit.StartOption) *testkit.Process {
	cfg.Name = work
	p := b.Start("provide", cfg, opts...)
	var said begun
	p.Next(&said)
	return p
}

// calling is a call that is under way in the test process.
type calling chan outcome

func call(ctx context.Context, c *client.Client, args ...any) calling {
	k := make(calling, 1)
	go func() { k <- callOnce(ctx, c, work, args...) }()
	return k
}

// hold has a provider run a call until it is told to go on.
func hold(ctx context.Context, c *client.Client, p *testkit.Process) calling {
	k := call(ctx, c, client.Arg("hold", true))
	var said begun
	p.Next(&said)
	return k
}

// row is what the broker lists of the function.
func row(t *testing.T, b *testkit.Broker) broker.FunctionRow {
	rows := testkit.List[broker.FunctionRow](t, b, protocol.ListFunctions)
	require.Len(t, rows, 1)
	return rows[0]
}

// by makes sure that a call ended with the result of a provider.
func by(t *testing.T, p *testkit.Process, o outcome, why ...any) {
	t.Helper()
	require.Equal(t, outcome{PID: p.PID(), Attempt: o.Attempt}, o, why...)
}

// nothingIsLeft closes the caller's side, and waits until nothing of calls is held.
func nothingIsLeft(t *testing.T, b *testkit.Broker, c *client.Client) {
	t.Helper()
	require.NoError(t, c.Close())
	testkit.Audit(t, b)
	testkit.Until(t, "no storage, topic or function is left", func() (bool, string) {
		h := testkit.Look(t, b)
		f := testkit.List[broker.FunctionRow](t, b, protocol.ListFunctions)
		return len(h.Storages) == 0 && len(h.Topics) == 0 && len(f) == 0, h.String() + fmt.Sprint(f)
	})
}

func TestCallGoesToAnotherProcessAndBack(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	for range 100 {
		o := <-call(ctx, c)
		require.Equal(t, outcome{PID: p.PID(), Attempt: 1}, o)
	}
	o := <-call(ctx, c, client.Arg("fail", true))
	require.Equal(t, protocol.CodeRemote, o.Code)
	require.Contains(t, o.Text, "ValueError: as asked")
	p.Done()
	require.Equal(t, protocol.CodeNoProvider, (<-call(ctx, c)).Code)
	nothingIsLeft(t, b, c)
}

// A provider is killed at each step of a call. Of a function that may run twice, another one that is there
// takes the call in any case.
func TestCallEndsOnceWhereverItsProviderIsKilled(t *testing.T) {
	program := testkit.CrashBinary(t)
	const waits, runs, replied = "not begun", "begun", "replied"
	points := []struct{ name, state string }{
		{"take-read", waits}, {"take-counted", waits}, {"take-held", waits}, {"claim-before", waits}, {"claim-swapped", waits}, {"claim-hinted", waits}, {"lane-joined", waits},
		{"call-begun", runs}, {"call-ran", runs}, {"send-counted", runs}, {"send-written", runs},
		{"send-published", replied}, {"send-ring", replied}, {"call-replied", replied}, {"call-done", replied},
	}
	for _, other := range []string{"alone", "alone, idempotent", "another", "idempotent"} {
		for _, point := range points {
			t.Run(other+"/"+point.name, func(t *testing.T) {
				b := testkit.StartBroker(t)
				ctx, c := testkit.Context(t), b.Connect()
				alone := strings.HasPrefix(other, "alone")
				cfg := provideConfig{Idempotent: strings.HasSuffix(other, "idempotent")}
				var second *testkit.Process
				var first calling
				if !alone { // it is busy until the other one has died
					second = provides(b, cfg)
					first = hold(ctx, c, second)
				}
				dying := provides(b, cfg, testkit.Program(program), testkit.Env(crashpoint.Env, point.name))
				k := call(ctx, c)
				dying.Killed()
				testkit.Gone(t, b, dying.PID())
				if second != nil {
					second.Tell("go on")
					by(t, second, <-first)
				}
				o := <-k
				switch {
				case point.state == replied:
					require.Equal(t, outcome{PID: dying.PID(), Attempt: 1}, o)
				case point.state == runs && other == "idempotent":
					require.Equal(t, outcome{PID: second.PID(), Attempt: 2}, o)
				case point.state == runs:
					require.Equal(t, protocol.CodeProviderDied, o.Code, o.Text)
					require.EqualValues(t, dying.PID(), o.Of)
				case alone:
					require.Equal(t, protocol.CodeNoProvider, o.Code, o.Text)
				default:
					require.Equal(t, outcome{PID: second.PID(), Attempt: 1}, o)
				}
				testkit.Audit(t, b)
				if second != nil {
					by(t, second, <-call(ctx, c), "the next call goes on")
					second.Done()
				}
				nothingIsLeft(t, b, c)
			})
		}
	}
}

func TestProviderKilledBeforeItTakesCallsIsNone(t *testing.T) {
	program := testkit.CrashBinary(t)
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	by(t, p, <-call(ctx, c))
	dying := b.Start("provide", provideConfig{Name: work}, testkit.Program(program), testkit.Env(crashpoint.Env, "function-registered"))
	dying.Killed()
	testkit.Gone(t, b, dying.PID())
	require.Len(t, row(t, b).Providers, 1)
	by(t, p, <-call(ctx, c))
	p.Done()
	nothingIsLeft(t, b, c)
}

// What cannot be told ends one way or the other, and once.
func TestCallOfAProviderKilledInTheMidstOfItsReplyEndsOnce(t *testing.T) {
	program := testkit.CrashBinary(t)
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	dying := provides(b, provideConfig{}, testkit.Program(program), testkit.Env(crashpoint.Env, "publish-seq"))
	o := <-call(ctx, c)
	dying.Killed()
	if o.Code != protocol.CodeProviderDied {
		require.Equal(t, outcome{PID: dying.PID(), Attempt: 1}, o)
	}
	nothingIsLeft(t, b, c)
}

// A caller is killed at each step: what waits is not begun, what runs sees that it has gone, and nothing is left.
func TestCallerKilledAtEachStepOfACallLeavesNothing(t *testing.T) {
	program := testkit.CrashBinary(t)
	for _, name := range []string{"lane-joined", "send-counted", "send-written", "publish-seq", "send-published", "call-sent", "park-begin", "park-sleep",
		"take-read", "take-counted", "take-held", "claim-swapped", "call-cancelled"} {
		t.Run(name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			p := provides(b, provideConfig{Concurrency: 2})
			cfg := callConfig{Name: work, Hold: name == "call-cancelled" || name == "park-begin" || name == "park-sleep", Cancel: name == "call-cancelled"}
			dying := b.Start("call", cfg, testkit.Program(program), testkit.Env(crashpoint.Env, name))
			if cfg.Cancel {
				p.Next(new(begun))
				dying.Tell("cancel")
			}
			dying.Killed()
			testkit.Gone(t, b, dying.PID())
			testkit.Audit(t, b)
			testkit.Until(t, "nothing waits or runs", func() (bool, string) {
				r := row(t, b)
				return r.Waiting == 0 && r.Running == 0 && r.Callers == 0, fmt.Sprintf("%+v", r)
			})
			c := b.Connect()
			by(t, p, <-call(testkit.Context(t), c))
			p.Done()
			nothingIsLeft(t, b, c)
		})
	}
}

func TestProviderSeesThatItsCallerWasKilled(t *testing.T) {
	b := testkit.StartBroker(t)
	p := provides(b, provideConfig{})
	dying := b.Start("call", callConfig{Name: work, Hold: true, Calls: 3})
	var said begun
	p.Next(&said)
	testkit.Until(t, "two wait", func() (bool, string) { r := row(t, b); return r.Waiting == 2, fmt.Sprintf("%+v", r) })
	dying.Kill()
	p.Next(&said)
	require.Equal(t, begun{Held: true, Ended: context.Canceled.Error()}, said)
	testkit.Gone(t, b, dying.PID())
	testkit.Until(t, "nothing waits or runs", func() (bool, string) { r := row(t, b); return r.Waiting+r.Running == 0, fmt.Sprintf("%+v", r) })
	require.False(t, p.Poll(&said), "what waited is not begun")
	p.Done()
}

func TestCallsGoOnWhileNoBrokerRunsAndUnderTheNextOne(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	require.Equal(t, p.PID(), (<-call(ctx, c)).PID) // each has the files of the other
	p.Next(new(begun))
	held := hold(ctx, c, p)
	b.Kill()
	p.Tell("go on")
	by(t, p, <-held)
	for range 100 {
		by(t, p, <-call(ctx, c))
		p.Next(new(begun))
	}
	held = hold(ctx, c, p)
	b.Restart()
	testkit.Until(t, "its caller and provider are back", func() (bool, string) { r := row(t, b); return r.Running == 1, fmt.Sprintf("%+v", r) })
	p.Tell("go on")
	by(t, p, <-held)
	held = hold(ctx, c, p)
	p.Kill()
	require.Equal(t, protocol.CodeProviderDied, (<-held).Code)
	nothingIsLeft(t, b, c)
}

func TestCallOfAProviderKilledWithTheBrokerIsEndedByTheNextOne(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		t.Run(fmt.Sprintf("idempotent=%t", idempotent), func(t *testing.T) {
			b := testkit.StartBroker(t)
			ctx, c := testkit.Context(t), b.Connect()
			other := provides(b, provideConfig{Idempotent: idempotent})
			first := hold(ctx, c, other)
			p := provides(b, provideConfig{Idempotent: idempotent})
			held := hold(ctx, c, p)
			waiting := call(ctx, c)
			testkit.Until(t, "one waits", func() (bool, string) { r := row(t, b); return r.Waiting == 1, fmt.Sprintf("%+v", r) })
			b.Kill()
			p.Kill()
			b.Restart()
			other.Tell("go on")
			by(t, other, <-first)
			if idempotent { // the older one comes first
				for said := (begun{}); said.Attempt < 2; {
					other.Next(&said)
				}
				other.Tell("go on")
				require.Equal(t, outcome{PID: other.PID(), Attempt: 2}, <-held)
			} else {
				o := <-held
				require.Equal(t, protocol.CodeProviderDied, o.Code, o.Text)
			}
			by(t, other, <-waiting)
			other.Done()
			nothingIsLeft(t, b, c)
		})
	}
}

func TestCallIsLostWithBrokerAndProviderWhereNoneComes(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	held := hold(ctx, c, p)
	waiting := call(ctx, c)
	testkit.Until(t, "one waits", func() (bool, string) { r := row(t, b); return r.Waiting == 1, fmt.Sprintf("%+v", r) })
	b.Kill()
	p.Kill()
	for _, k := range []calling{held, waiting} {
		o := <-k
		require.Equal(t, protocol.CodeBrokerLost, o.Code, o.Text)
	}
	b.Restart()
	nothingIsLeft(t, b, c)
}

func TestTwoProvidersShareTheCalls(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	one, two := provides(b, provideConfig{}), provides(b, provideConfig{})
	a := call(ctx, c, client.Arg("hold", true))
	k := call(ctx, c, client.Arg("hold", true))
	for _, p := range []*testkit.Process{one, two} { // each runs one at a time
		p.Next(new(begun))
	}
	for _, p := range []*testkit.Process{one, two} {
		p.Tell("go on")
	}
	require.ElementsMatch(t, []int{one.PID(), two.PID()}, []int{(<-a).PID, (<-k).PID})
	refused := b.Start("provide", provideConfig{Name: work, Exclusive: true})
	require.Contains(t, refused.Fails(), "exclusive")
	over := provides(b, provideConfig{Override: true})
	for range 10 {
		by(t, over, <-call(ctx, c))
	}
	for _, p := range []*testkit.Process{one, two, over} {
		p.Done()
	}
	nothingIsLeft(t, b, c)
}

// A thousand callers of a slow function: each has its result or a clear error, and what they need does not grow
// with their number.
func TestManyCallersOfASlowFunctionWaitInBoundedMemory(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	held := hold(ctx, c, p)
	short, cancel := context.WithCancel(ctx)
	var full, served atomic.Int32
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() {
			ctx := ctx
			if i%2 == 0 {
				ctx = short
			}
			switch o := callOnce(ctx, c, work); {
			case o.Code == protocol.CodeCancelled || errors.Is(short.Err(), context.Canceled) && o.Code != "":
				full.Add(1)
			case o.PID == p.PID():
				served.Add(1)
			default:
				t.Errorf("%+v", o)
			}
		})
	}
	testkit.Until(t, "as many wait as have room", func() (bool, string) {
		r := row(t, b)
		return r.Waiting == protocol.DefaultQueueDepth-1, fmt.Sprintf("%+v", r)
	})
	require.LessOrEqual(t, c.Stats().Topics, 1+protocol.DefaultQueueDepth, "a place for each reply that may come")
	cancel()
	testkit.Until(t, "those that gave up have ended", func() (bool, string) { n := full.Load(); return n == 500, fmt.Sprint(n) })
	p.Tell("go on")
	by(t, p, <-held)
	all.Wait()
	require.EqualValues(t, 500, served.Load())
	p.Done()
	nothingIsLeft(t, b, c)
}

func TestCallThatTimesOutIsNotBegunLater(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{})
	held := hold(ctx, c, p)
	late, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	require.Equal(t, protocol.CodeTimeout, (<-call(late, c)).Code)
	p.Tell("go on")
	by(t, p, <-held)
	by(t, p, <-call(ctx, c))
	var said begun
	p.Next(&said) // of the last one
	require.False(t, p.Poll(&said), "the function ran for what its caller had given up")
	p.Done()
	nothingIsLeft(t, b, c)
}
