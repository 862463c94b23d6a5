package integration

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// streams starts a provider of a stream and waits until it takes calls.
func streams(b *testkit.Broker, cfg provideConfig, opts ...testkit.StartOption) *testkit.Process {
	cfg.Name = work
	p := b.Start("stream", cfg, opts...)
	var said streamed
	p.Next(&said)
	return p
}

// ranges begins a stream, which ends with the test at the latest.
func ranges(t *testing.T, c *client.Client, args ...any) *reading {
	r := read(testkit.Context(t), c, args...)
	t.Cleanup(r.stop)
	return r
}

// until hears a provider until it holds, or can send no more.
func until(p *testkit.Process) (said streamed) {
	for !said.Held && said.Ended == "" {
		p.Next(&said)
	}
	return said
}

// idle waits until nothing runs or waits.
func idle(t *testing.T, b *testkit.Broker) {
	testkit.Until(t, "nothing waits or runs", func() (bool, string) { r := row(t, b); return r.Waiting+r.Running == 0, fmt.Sprintf("%+v", r) })
}

func TestStreamComesFromAnotherProcess(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect()
	p := streams(b, provideConfig{})
	for range 3 {
		r := ranges(t, c, 200)
		require.NoError(t, r.rest())
		require.Equal(t, 200, r.got)
	}
	p.Done()
	nothingIsLeft(t, b, c)
}

// A provider is killed in the midst of its parts: what it had sent comes, and then ProviderDied. Of an idempotent
// function the next provider goes on from the part that is due.
func TestStreamWhoseProviderIsKilledGivesWhatWasSent(t *testing.T) {
	program := testkit.CrashBinary(t)
	const all = 6
	points := []struct {
		name string
		sent int // parts
	}{
		{"call-begun", 0}, {"alloc-counted:3", 2}, {"send-counted:3", 2}, {"send-written:3", 2}, {"send-published:3", 3}, {"send-ring:3", 3}, {"part-sent:3", 3},
		{"room-waiting", 2}, {"call-ran", all}, {"send-published:7", all}, {"call-replied", all}, {"call-done", all},
	}
	for _, idempotent := range []bool{false, true} {
		for _, point := range points {
			if idempotent && point.sent == 0 {
				continue // nothing tells the other provider when to begin; calls have this test
			}
			t.Run(fmt.Sprintf("idempotent=%t/%s", idempotent, point.name), func(t *testing.T) {
				b := testkit.StartBroker(t)
				c := b.Connect()
				dying := streams(b, provideConfig{Idempotent: idempotent}, testkit.Program(program), testkit.Env(crashpoint.Env, point.name))
				r := ranges(t, c, all, client.Ahead(2))
				if point.sent == 0 {
					go dying.Killed()
				}
				var second *testkit.Process
				var err error
				room := 0
				if point.name == "room-waiting" {
					room = 1
				}
				for r.got < point.sent && err == nil && point.name != "room-waiting" {
					_, err = r.take()
				}
				if point.name == "room-waiting" { // before the first was taken, or after that
					_, err = r.take()
					dying.Killed()
				}
				require.NoError(t, err)
				if idempotent { // only now: else it might have taken the call
					second = streams(b, provideConfig{Idempotent: true})
				}
				err = r.rest()
				ended := point.name == "send-published:7" || point.name == "call-replied" || point.name == "call-done"
				switch {
				case ended || second != nil:
					require.NoError(t, err)
					require.Equal(t, all, r.got)
				default:
					require.ErrorIs(t, err, protocol.ErrProviderDied)
					require.GreaterOrEqual(t, r.got, point.sent)
					require.LessOrEqual(t, r.got, point.sent+room)
				}
				if point.sent > 0 && room == 0 {
					dying.Killed()
				}
				testkit.Gone(t, b, dying.PID())
				testkit.Audit(t, b)
				if second != nil {
					r = ranges(t, c, 5)
					require.NoError(t, r.rest(), "the next stream goes on")
					require.Equal(t, 5, r.got)
					second.Done()
				}
				nothingIsLeft(t, b, c)
			})
		}
	}
}

// A caller is killed between two parts: the function can send no more, and nothing is left.
func TestCallerKilledInMidStreamLeavesNothing(t *testing.T) {
	program := testkit.CrashBinary(t)
	for _, point := range []string{"", "take-counted:3", "take-held:3", "claim-swapped:3", "claim-hinted:3", "drop-before:2"} {
		t.Run(point, func(t *testing.T) {
			b := testkit.StartBroker(t)
			p := streams(b, provideConfig{})
			var opts []testkit.StartOption
			if point != "" {
				opts = []testkit.StartOption{testkit.Program(program), testkit.Env(crashpoint.Env, point)}
			}
			dying := b.Start("range", rangeConfig{Parts: 1 << 20, Take: 10, Ahead: 2}, opts...)
			if point == "" {
				dying.Next(new(int))
				dying.Kill()
			} else {
				dying.Killed()
			}
			require.Equal(t, string(protocol.CodeCancelled), until(p).Ended)
			testkit.Gone(t, b, dying.PID())
			testkit.Audit(t, b)
			idle(t, b)
			c := b.Connect()
			r := ranges(t, c, 20)
			require.NoError(t, r.rest())
			require.Equal(t, 20, r.got)
			p.Done()
			nothingIsLeft(t, b, c)
		})
	}
}

func TestLoopLeftEarlyEndsTheFunctionElsewhere(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect()
	p := streams(b, provideConfig{})
	for range 5 {
		r := ranges(t, c, 1<<20)
		for range 20 {
			_, err := r.take()
			require.NoError(t, err)
		}
		r.stop()
		require.Equal(t, string(protocol.CodeCancelled), until(p).Ended)
	}
	idle(t, b)
	p.Done()
	nothingIsLeft(t, b, c)
}

func TestStreamGoesOnWhileNoBrokerRunsAndUnderTheNextOne(t *testing.T) {
	b := testkit.StartBroker(t)
	c := b.Connect()
	p := streams(b, provideConfig{})
	r := ranges(t, c, 300, client.Ahead(3))
	for range 50 {
		_, err := r.take()
		require.NoError(t, err)
	}
	b.Kill()
	for range 100 {
		_, err := r.take()
		require.NoError(t, err)
	}
	b.Restart()
	require.NoError(t, r.rest())
	require.Equal(t, 300, r.got)
	p.Next(new(streamed)) // that it began

	r = ranges(t, c, 300, client.Ahead(3))
	_, err := r.take()
	require.NoError(t, err)
	b.Kill()
	r.stop() // with no broker there
	require.Equal(t, string(protocol.CodeCancelled), until(p).Ended)
	b.Restart()
	r = ranges(t, c, 10)
	require.NoError(t, r.rest())
	require.Equal(t, 10, r.got)
	p.Done()
	nothingIsLeft(t, b, c)
}

func TestStreamOfAProviderKilledWithTheBrokerIsEndedByTheNextOne(t *testing.T) {
	for _, idempotent := range []bool{false, true} {
		t.Run(fmt.Sprintf("idempotent=%t", idempotent), func(t *testing.T) {
			b := testkit.StartBroker(t)
			c := b.Connect()
			dying := streams(b, provideConfig{Idempotent: idempotent})
			r := ranges(t, c, 8, client.Arg("hold", 4))
			for range 2 {
				_, err := r.take()
				require.NoError(t, err)
			}
			require.True(t, until(dying).Held)
			var second *testkit.Process
			if idempotent {
				second = streams(b, provideConfig{Idempotent: true})
			}
			b.Kill()
			dying.Kill()
			b.Restart()
			err := error(nil)
			if idempotent {
				until(second)
				second.Tell("go on")
				require.NoError(t, r.rest())
				require.Equal(t, 8, r.got)
				second.Done()
			} else {
				err = r.rest()
				require.ErrorIs(t, err, protocol.ErrProviderDied)
				require.Equal(t, 4, r.got, "what was sent comes before")
			}
			nothingIsLeft(t, b, c)
		})
	}
}
