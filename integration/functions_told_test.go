package integration

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// keepsExits tells whether the kernel says how a process has ended that its parent has waited for: the test's
// processes are waited for at once.
func keepsExits(t *testing.T) bool {
	cmd := exec.Command("sh", "-c", "read x; exit 3")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	fd, err := sys.OpenPidfd(cmd.Process.Pid)
	require.NoError(t, err)
	w := sys.WatchPidfd(fd)
	in.Close()
	cmd.Wait()
	require.True(t, w.Wait())
	return w.Exit() == sys.Exit{Known: true, Status: 3}
}

// died is the error of a call whose provider has died.
func died(t *testing.T, err error) map[string]any {
	t.Helper()
	var e *protocol.Error
	require.True(t, errors.As(err, &e), err)
	require.Equal(t, protocol.CodeProviderDied, e.Code, e)
	return e.Detail
}

func TestProviderThatDiedIsToldWithHowItEndedAndWhen(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	kept := keepsExits(t)
	p := provides(b, provideConfig{})
	ended := make(chan error, 1)
	go func() {
		_, err := client.Call[done](ctx, c, work, client.Arg("hold", true))
		ended <- err
	}()
	p.Next(new(begun))
	p.Kill()
	detail := died(t, <-ended)
	require.EqualValues(t, p.PID(), detail["pid"])
	require.IsType(t, 0.0, detail["seconds"])
	require.GreaterOrEqual(t, detail["seconds"], 0.0)
	if kept {
		require.EqualValues(t, 9, detail["signal"])
		require.Contains(t, detail["reason"], "was killed by SIGKILL")
	}
	require.NotContains(t, detail, "status")

	p = provides(b, provideConfig{})
	_, err := client.Call[done](ctx, c, work, client.Arg("exit", true))
	detail = died(t, err)
	if kept {
		require.EqualValues(t, 3, detail["status"])
	}
	require.NotContains(t, detail, "signal")
	require.Contains(t, p.Fails(), "")
	nothingIsLeft(t, b, c)
}

// shown is what `baton show function` says, as JSON and as a table.
func shown(t *testing.T, b *testkit.Broker) (table string, row map[string]any, providers []any) {
	t.Helper()
	run := func(args ...string) []byte {
		args = append([]string{"show", "function", work, "--address", "unix:" + b.Socket, "--namespace", b.Namespace}, args...)
		out, err := exec.Command(testkit.Binary(t), args...).Output()
		require.NoError(t, err)
		return out
	}
	var all []struct {
		Row       map[string]any
		Providers []any
	}
	require.NoError(t, json.Unmarshal(run("--json"), &all))
	require.Len(t, all, 1)
	return string(run()), all[0].Row, all[0].Providers
}

func TestShownFunctionTellsItsProvidersAndWhatTheyCount(t *testing.T) {
	b := testkit.StartBroker(t)
	ctx, c := testkit.Context(t), b.Connect()
	p := provides(b, provideConfig{Concurrency: 2})
	for range 10 {
		by(t, p, <-call(ctx, c))
		p.Next(new(begun))
	}
	require.Equal(t, protocol.CodeRemote, (<-call(ctx, c, client.Arg("fail", true))).Code)
	p.Next(new(begun))
	held := hold(ctx, c, p)
	text, row, providers := shown(t, b)
	require.Len(t, providers, 1)
	one := providers[0].(map[string]any)
	for _, counted := range []map[string]any{row, one} {
		require.EqualValues(t, 11, counted["calls"])
		require.EqualValues(t, 1, counted["errors"])
		require.Less(t, 0.0, counted["p50_seconds"])
		require.LessOrEqual(t, counted["p50_seconds"], counted["p99_seconds"])
	}
	require.EqualValues(t, p.PID(), one["pid"])
	require.NotEmpty(t, one["since"])
	require.NotContains(t, one, "stopped")
	require.Regexp(t, `calls +11, 1 of them errors`, text)
	require.Regexp(t, `(?m)^PROVIDER +PID +USER +RUNNING +AT A TIME +CALLS +ERRORS +P50 +P99 +PROVIDES FOR +STATE$`, text)
	require.Regexp(t, `(?m)^provider +\d+ +\d+ +1 +2 +11 +1 +\S+ \S+ +\S+ \S+ +.* live$`, text)

	p.Stop()
	text, _, providers = shown(t, b)
	require.Equal(t, true, providers[0].(map[string]any)["stopped"])
	require.Contains(t, text, "is suspended")
	p.Cont()
	p.Tell("go on")
	by(t, p, <-held)

	other := provides(b, provideConfig{Concurrency: 2})
	p.Done()
	_, row, providers = shown(t, b)
	require.Len(t, providers, 1)
	require.EqualValues(t, 12, row["calls"], "what has left counts still")
	require.EqualValues(t, 0, providers[0].(map[string]any)["calls"])
	b.Kill()
	b.Restart()
	testkit.Until(t, "it is back", func() (bool, string) {
		_, _, providers := shown(t, b)
		return len(providers) == 1, ""
	})
	by(t, other, <-call(context.WithoutCancel(ctx), c))
	_, row, _ = shown(t, b)
	require.EqualValues(t, 1, row["calls"], "what its providers count holds over a broker")
	other.Done()
	nothingIsLeft(t, b, c)
}
