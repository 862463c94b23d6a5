package langs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// functionLanguages start programs of functions: those of a name in C, C++ and Python, and the Go role of that name; of
// all these languages, or those that are named.
func functionLanguages(name string, only ...string) []language {
	flags := append([]string{"-Wshadow"}, clib.Sanitize...)
	of := func(compiler, suffix string) func(*testing.T) []testkit.StartOption {
		return func(t *testing.T) []testkit.StartOption {
			return []testkit.StartOption{testkit.Program(clib.Compiled(t, compiler, "integration/langs/c/"+name+suffix, flags...))}
		}
	}
	all := []language{
		{"c", of("gcc", ".c")},
		{"cpp", of("g++", ".cpp")},
		{"go", func(*testing.T) []testkit.StartOption { return nil }},
		{"python", func(t *testing.T) []testkit.StartOption {
			interpreter := interpreter(t)
			if _, err := os.Stat(interpreter); err != nil {
				testkit.Skip(t, "python", "no Python package in build/venv (make test builds it)")
			}
			program := filepath.Join(clib.Root(t), "python/tests", name+"_driver.py")
			return []testkit.StartOption{func(c *exec.Cmd) { c.Path, c.Args = interpreter, []string{interpreter, program} }}
		}},
	}
	if len(only) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(l language) bool { return !slices.Contains(only, l.name) })
}

// inRust starts the example of the crate of a name.
func inRust(name string) language {
	return language{"rust", func(t *testing.T) []testkit.StartOption {
		return []testkit.StartOption{testkit.Program(rustExample(t, name))}
	}}
}

// plays starts a program of functions.
func plays(t *testing.T, b *testkit.Broker, role string, l language, what string) *testkit.Process {
	return b.Start(role, nil, append(l.options(t), testkit.Env("BATON_FUNCTIONS", what))...)
}

// says waits for a program's word.
func says(t *testing.T, p *testkit.Process, want string) {
	t.Helper()
	var said string
	p.Next(&said)
	require.Equal(t, want, said)
}

// playAll has a program of each language call the functions of each other one, one of both being C or C++.
func playAll(t *testing.T, role string, languages []language) {
	for _, from := range languages {
		for _, to := range languages {
			if !strings.HasPrefix(from.name, "c") && !strings.HasPrefix(to.name, "c") {
				continue // their own tests have these
			}
			t.Run(from.name+" calls "+to.name, func(t *testing.T) {
				b := testkit.StartBroker(t)
				provider := plays(t, b, role, to, "serve")
				says(t, provider, "ready")
				caller := plays(t, b, role, from, "call")
				says(t, caller, "done")
				caller.Done()
				provider.Killed()
				testkit.AuditEmpty(t, b)
			})
		}
	}
}

// Functions in each language are called from each other one: all kinds of values, names, what is refused before it is
// sent, errors with their causes, cancelling, deadlines, and the death of the provider.
func TestFunctionsAcrossLanguages(t *testing.T) {
	playAll(t, "functions", append(functionLanguages("functions"), inRust("functions")))
}

// Functions in each language give parts to each other one, and call functions that it gives them: backpressure, a stream
// that is left early, a function that is given and called after the end of its call, and the death of the provider
// between two parts.
func TestStreamsAndFunctionArgumentsAcrossLanguages(t *testing.T) {
	playAll(t, "streams", append(functionLanguages("streams"), inRust("streams")))
}

// A provider in Rust is killed as it gives parts: what it had sent comes, then the error, and nothing is left. The other
// languages but Go give parts by the same code, which is built with crash points for tests in Rust alone.
func TestStreamWhoseProviderInRustIsKilledAtEachPart(t *testing.T) {
	for _, k := range []struct {
		point    string
		name     string
		sent     int // parts, at least
		received int // and at most
	}{
		{"part-sent", "st/count", 1, 1}, {"part-sent:3", "st/count", 3, 3}, {"part-waiting", "st/forever", 2, 3},
		{"send-published:2", "st/count", 2, 2}, {"call-ran", "st/count", 5, 5},
	} {
		t.Run(k.point, func(t *testing.T) {
			b := testkit.StartBroker(t)
			dying := plays(t, b, "streams", language{"rust", func(t *testing.T) []testkit.StartOption {
				return append(inRust("streams").options(t), testkit.Env(crashpoint.Env, k.point))
			}}, "serve")
			says(t, dying, "ready")
			c := b.Connect()
			args := []any{client.Ahead(2)}
			if k.name == "st/count" {
				args = append(args, 5)
			}
			got := 0
			var err error
			for part, failed := range client.Parts[any](testkit.Context(t), c, k.name, args...) {
				if err = failed; err == nil {
					got++
					if list, is := part.([]any); is {
						list[1].(*client.Tensor).Release()
					}
				}
			}
			require.ErrorIs(t, err, protocol.ErrProviderDied)
			require.GreaterOrEqual(t, got, k.sent)
			require.LessOrEqual(t, got, k.received)
			dying.Killed()
			testkit.Gone(t, b, dying.PID())
			testkit.Audit(t, b)
			require.NoError(t, c.Close())
			testkit.AuditEmpty(t, b)
		})
	}
}

// A caller in Rust is killed as it lends a function: the provider goes on, and nothing is left.
func TestCallerInRustIsKilledAsItLendsAFunction(t *testing.T) {
	for _, point := range []string{"door-registered", "call-sent", "call-begun", "call-ran", "call-replied"} {
		t.Run(point, func(t *testing.T) {
			b := testkit.StartBroker(t)
			provider := plays(t, b, "streams", language{"go", func(*testing.T) []testkit.StartOption { return nil }}, "serve")
			says(t, provider, "ready")
			dying := plays(t, b, "streams", language{"rust", func(t *testing.T) []testkit.StartOption {
				return append(inRust("streams").options(t), testkit.Env(crashpoint.Env, point))
			}}, "lend")
			dying.Killed()
			testkit.Gone(t, b, dying.PID())
			testkit.Audit(t, b)
			caller := plays(t, b, "streams", inRust("streams"), "lend")
			caller.Done()
			provider.Done()
			testkit.AuditEmpty(t, b)
		})
	}
}

// A program that ends in order gives each function's state back, and leaves nothing.
func TestProviderInCEndsInOrder(t *testing.T) {
	for _, role := range []string{"functions", "streams"} {
		for _, l := range functionLanguages(role)[:2] {
			t.Run(role+" "+l.name, func(t *testing.T) {
				b := testkit.StartBroker(t)
				provider := plays(t, b, role, l, "serve")
				says(t, provider, "ready")
				provider.Done()
				testkit.AuditEmpty(t, b)
			})
		}
	}
}

// A function is called over NATS where its options say so, and no other one is.
func TestFunctionsInCAreCalledOverNATS(t *testing.T) {
	for _, l := range functionLanguages("functions")[:2] {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.NATS, c.NATSFunctions = true, true })
			provider := plays(t, b, "functions", l, "serve")
			says(t, provider, "ready")
			var info natsbridge.Info
			testkit.Until(t, "the broker has NATS", func() (bool, string) { // it serves clients before
				var err error
				info, err = natsbridge.ReadInfo(b.Dir)
				return err == nil, fmt.Sprint(err)
			})
			nc, err := info.Connect(nats.Timeout(testkit.Patience))
			require.NoError(t, err)
			defer nc.Close()
			ask := func(name, data string) (*nats.Msg, error) {
				return nc.RequestWithContext(testkit.Context(t), protocol.FunctionSubject(b.Namespace, name), []byte(data))
			}
			var answer *nats.Msg
			testkit.Until(t, "the function is listed", func() (bool, string) {
				answer, err = ask("fn/add", `{"a": 2, "b": 3}`)
				return err == nil, fmt.Sprint(err)
			})
			require.Equal(t, "5", string(answer.Data))
			_, err = ask("fn/added", "[]")
			require.ErrorIs(t, err, nats.ErrNoResponders)
			provider.Kill() // in order it would end where nothing has run
		})
	}
}

// An exception that leaves a function registered by baton_provide ends the process, and does not go on in the library.
func TestExceptionThatLeavesAFunctionEndsTheProcess(t *testing.T) {
	b := testkit.StartBroker(t)
	program := clib.Compiled(t, "g++", "integration/langs/c/functions.cpp", append([]string{"-Wshadow"}, clib.Sanitize...)...)
	cmd := exec.CommandContext(testkit.Context(t), program)
	cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+b.Socket, "BATON_FUNCTIONS=break")
	var said strings.Builder
	cmd.Stderr = &said
	var ended *exec.ExitError
	require.ErrorAs(t, cmd.Run(), &ended)
	status, is := ended.Sys().(syscall.WaitStatus)
	require.True(t, is && status.Signaled() && status.Signal() == syscall.SIGABRT, "%v: %s", ended, said.String())
	testkit.AuditEmpty(t, b)
}
