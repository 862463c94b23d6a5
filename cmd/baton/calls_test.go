package main_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
