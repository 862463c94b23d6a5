package main_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
)

func TestMetricsCountCalls(t *testing.T) {
	p := newPlace(t)
	file := p.write("c.toml", "http = \"127.0.0.1:0\"\nmetrics-functions = 1\n")
	s := p.serve("--config", file)
	c := p.client()
	for _, name := range []string{"a/works", "b/fails"} {
		provides(p, c, name, func(_ context.Context, fail bool) (int, error) {
			if fail {
				return 0, errors.New("as asked")
			}
			return 7, nil
		})
	}
	ctx := p.ctx()
	for range 3 {
		_, err := client.Call[int](ctx, c, "a/works", false)
		require.NoError(t, err)
	}
	_, err := client.Call[int](ctx, c, "b/fails", true)
	require.Error(t, err)
	_, body := fetch(t, s.endpoint()+"/metrics", "")
	for _, line := range []string{`baton_calls_total{outcome="ok"} 3`, `baton_calls_total{outcome="error"} 1`, `baton_calls_waiting 0`, `baton_calls_running 0`,
		`baton_function_calls_total{function="a/works",namespace="default",outcome="ok"} 3`,
		`baton_function_calls_total{function="a/works",namespace="default",outcome="error"} 0`,
		`baton_function_duration_seconds_count{function="a/works",namespace="default"} 3`,
		`baton_function_duration_seconds_bucket{function="a/works",namespace="default",le="+Inf"} 3`,
		`baton_function_providers{function="a/works",namespace="default"} 1`} {
		assert.Contains(t, body, line+"\n")
	}
	assert.NotContains(t, body, "b/fails", "one function has its own")
	assert.NotContains(t, body, "baton_call_seconds_total 0\n")

	p.write("c.toml", "http = \"127.0.0.1:0\"\n")
	s.signal(syscall.SIGHUP)
	p.until("none has", func() bool {
		_, body := fetch(t, s.endpoint()+"/metrics", "")
		return !strings.Contains(body, "baton_function_calls_total{")
	})
	require.NoError(t, c.Close())
	p.until("a function that is no more counts still", func() bool {
		_, body := fetch(t, s.endpoint()+"/metrics", "")
		return strings.Contains(body, `baton_topics{kind="function"} 0`) && strings.Contains(body, `baton_calls_total{outcome="ok"} 3`)
	})
}

// failsWithTrace calls a function that fails, and returns its error.
func (p *place) failsWithTrace(c *client.Client) *client.RemoteError {
	p.t.Helper()
	_, err := client.Call[int](p.ctx(), c, "fails")
	var e *client.RemoteError
	require.True(p.t, errors.As(err, &e), err)
	require.Equal(p.t, "ValueError", e.Kind)
	require.Equal(p.t, "bad", e.Message)
	require.Equal(p.t, "inner", e.Cause.Message)
	return e
}

func TestTracesStayWithTheProviderWhereTheBrokerSaysSo(t *testing.T) {
	p := newPlace(t)
	file := p.write("c.toml", "no-remote-traces = true\n")
	s := p.serve("--config", file)
	c := p.client()
	own := &client.RemoteError{Kind: "ValueError", Message: "bad", Trace: "line 1", Cause: &client.RemoteError{Kind: "KeyError", Message: "inner", Trace: "line 2"}}
	provides(p, c, "fails", func(context.Context, struct{}) (int, error) { return 0, own })
	e := p.failsWithTrace(c)
	assert.Empty(t, e.Trace+e.Cause.Trace)
	assert.Equal(t, "line 1line 2", own.Trace+own.Cause.Trace, "what the function has stays what it is")
	p.write("c.toml", "no-remote-traces = false\n")
	s.signal(syscall.SIGHUP)
	p.until("they travel", func() bool { return p.failsWithTrace(c).Trace != "" })
	assert.Equal(t, "line 2", p.failsWithTrace(c).Cause.Trace)
	p.serve("--no-remote-traces", "--replace")
	s.wait()
	assert.Empty(t, p.failsWithTrace(c).Trace)
}

func TestWhyTellsWhoseCallsOfAFunctionRunAndWait(t *testing.T) {
	p := newPlace(t)
	p.serve()
	provider, caller := p.client(client.WithName("worker")), p.client(client.WithName("trainer"))
	begun := make(chan struct{}, 1)
	let := make(chan struct{})
	provides(p, provider, "vision/slow@2", func(ctx context.Context, _ struct{ Image *client.Tensor }) (int, error) {
		begun <- struct{}{}
		<-let
		return 0, nil
	})
	f, err := caller.Function(p.ctx(), "vision/slow")
	require.NoError(t, err)
	defer f.Close()
	x := p.tensor(caller, 256)
	ended := make(chan error, 2)
	call := func(ctx context.Context) {
		_, err := f.Call(ctx, x)
		ended <- err
	}
	go call(context.Background())
	<-begun
	bounded, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	go call(bounded)

	var why []struct {
		Kind  string
		Calls []broker.CallRow
		Waits string
		Held  []struct{ Bytes uint64 } `json:"held_by"`
	}
	p.until("the second call waits", func() bool {
		why = nil
		p.json(&why, "why", "function", "vision/slow")
		return len(why) == 1 && len(why[0].Calls) == 2
	})
	assert.Equal(t, "function", why[0].Kind)
	runs, waits := why[0].Calls[0], why[0].Calls[1]
	assert.Equal(t, []string{"running", "waiting"}, []string{runs.State, waits.State})
	for _, c := range why[0].Calls {
		assert.Equal(t, "trainer", c.Caller.Name)
		assert.Equal(t, os.Getpid(), c.Caller.PID)
	}
	require.NotNil(t, runs.Provider)
	assert.Equal(t, "worker", runs.Provider.Name)
	assert.NotNil(t, runs.Ran)
	assert.Nil(t, runs.Left)
	assert.Nil(t, waits.Provider)
	require.NotNil(t, waits.Left)
	assert.InDelta(t, time.Hour.Seconds(), *waits.Left, patience.Seconds())
	assert.Contains(t, why[0].Waits, "run as many calls as they take at a time, 1")
	require.NotEmpty(t, why[0].Held, "the memory of what was given")

	text := p.must("why", "vision/slow@2")
	assert.Regexp(t, `(?m)^running +\S+ \S+ +\S+ \S+ +- +\d+ +trainer \(pid \d+\) +worker \(pid \d+\)`, text)
	assert.Regexp(t, `(?m)^waiting +\S+ \S+ +- +in \S+ \S+ +\d+ +trainer \(pid \d+\) +-`, text)
	assert.Contains(t, text, "for a provider: claimed by worker")
	assert.Contains(t, text, "when the call has ended")
	assert.Contains(t, p.must("__complete", "why", "function", "vis"), "vision/slow@2")
	close(let)
	for range 2 {
		require.NoError(t, <-ended)
	}
	assert.Contains(t, p.must("why", "function", "vision/slow"), "calls: none")
}

func TestCompletionOfWhyAndRevokeHasWhatFits(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	_, err := c.Queue(p.ctx(), "items")
	require.NoError(t, err)
	_, err = c.Topic(p.ctx(), "images")
	require.NoError(t, err)
	queues, topics := p.must("__complete", "why", "queue", ""), p.must("__complete", "why", "topic", "")
	assert.Contains(t, queues, "items")
	assert.NotContains(t, queues, "images")
	assert.Contains(t, topics, "images")
	assert.NotContains(t, topics, "items")
	_, err = p.tensor(c, 4).Handle(p.ctx(), client.LeaseFor(time.Hour))
	require.NoError(t, err)
	var leases []broker.LeaseRow
	p.json(&leases, "ls", "leases")
	require.Len(t, leases, 1)
	assert.Regexp(t, fmt.Sprintf(`(?m)^%d\t.*storage`, leases[0].Lease), p.must("__complete", "revoke", ""))
}

func TestEventsTellThatProvidersEnd(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client(client.WithNamespace("team"), client.WithName("worker"))
	r, err := client.Handle(c, "vision/scale", scales)
	require.NoError(t, err)
	require.NoError(t, r.Close(p.ctx()))
	<-r.Done()
	provider := exec.Command(os.Args[0])
	provider.Env = append(slices.Clone(p.env), roleProvider+"=1")
	require.NoError(t, provider.Start())
	defer provider.Wait()
	defer provider.Process.Kill()
	p.until("it provides", func() bool { return strings.Contains(p.must("ls", "functions"), "slow") })
	require.NoError(t, provider.Process.Kill())
	details := func(text, function string) (all []string) {
		for _, e := range p.events("--kind", "function") {
			if e.Text == text && strings.Contains(string(e.Details), function) {
				all = append(all, string(e.Details))
			}
		}
		return all
	}
	var ended, killed []string
	p.until("both ends are events", func() bool {
		ended, killed = details("provider of a function ended", "vision/scale"), details("provider of a function ended", "slow")
		return len(ended) == 1 && len(killed) == 1
	})
	assert.Contains(t, ended[0], `"namespace":"team"`)
	assert.Contains(t, ended[0], `"providers_left":0`)
	assert.Contains(t, killed[0], `"namespace":"default"`)
	assert.Contains(t, killed[0], "its process was killed")
	registered := details("function registered", "vision/scale")
	require.Len(t, registered, 1)
	assert.Contains(t, registered[0], `"namespace":"team"`)
}

// Of a function that is asked for much more often than it can run, the oldest calls are shown, and the others are counted.
func TestWhyBoundsTheCallsThatItShows(t *testing.T) {
	p := newPlace(t)
	p.serve()
	let := make(chan struct{})
	provides(p, p.client(), "slow", func(context.Context, struct{}) (int, error) {
		<-let
		return 0, nil
	})
	const callers, each = 20, 60 // more than are collected before the first cut
	ended := make(chan error)
	for range callers {
		c := p.client(client.WithName("trainer"))
		for range each {
			go func() {
				_, err := client.Call[int](context.Background(), c, "slow")
				ended <- err
			}()
		}
	}
	var why []struct {
		Calls   []broker.CallRow
		LeftOut int `json:"calls_left_out"`
		Row     broker.FunctionRow
	}
	p.until("all are sent", func() bool {
		why = nil
		p.json(&why, "why", "function", "slow")
		return why[0].LeftOut+len(why[0].Calls) == callers*each
	})
	assert.Len(t, why[0].Calls, 256)
	assert.Equal(t, "running", why[0].Calls[0].State)
	for i := 2; i < len(why[0].Calls); i++ {
		require.GreaterOrEqual(t, why[0].Calls[i-1].Age, why[0].Calls[i].Age, "the oldest first")
	}
	assert.Contains(t, p.must("why", "function", "slow"), "and 944 more")
	close(let)
	for range callers * each {
		require.NoError(t, <-ended)
	}
}
