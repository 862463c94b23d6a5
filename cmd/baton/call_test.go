package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
)

// provides a function in the test's own process.
func provides[In, Out any](p *place, c *client.Client, name string, f func(context.Context, In) (Out, error), opts ...client.HandleOption) {
	p.t.Helper()
	_, err := client.Handle(c, name, f, opts...)
	require.NoError(p.t, err)
}

type scaled struct {
	Image *client.Tensor
	By    float64 `baton:"by,default=2.0"`
}

func scales(_ context.Context, in scaled) (*client.Tensor, error) {
	v, err := client.Slice[float32](in.Image)
	for i := range v {
		v[i] *= float32(in.By)
	}
	return in.Image, err
}

func TestCallPrintsWhatAFunctionReturns(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	provides(p, c, "echo", func(_ context.Context, x any) (any, error) { return x, nil })
	for word, prints := range map[string]string{
		"1": "1\n", "2.50": "2.5\n", "true": "true\n", "null": "null\n", `"a b"`: "a b\n", "plain text": "plain text\n", "1 2": "1 2\n",
		`[1, {"a": 2.0}]`: `[1,{"a":2}]` + "\n", "123456789012345678901234567890": "123456789012345678901234567890\n", "x=7": "7\n", "1=2": "1=2\n",
		"-5": "-5\n", "-.5": "-.5\n", "-2.5e3": "-2500\n", "-1 2": "-1 2\n", "x=-7": "-7\n",
	} {
		assert.Equal(t, prints, p.must("call", "echo", word), word)
	}
	var list []int
	p.json(&list, "call", "echo", "[1, 2]")
	assert.Equal(t, []int{1, 2}, list)
	assert.Equal(t, "\"a\"\n", p.must("call", "echo", "a", "--json"))
	assert.Equal(t, "-5\n", p.must("call", "--json", "echo", "-5", "--timeout", "1m"))
	assert.Equal(t, "--json\n", p.must("call", "echo", "--", "--json"))
	assert.Equal(t, "-5\n", p.must("call", "echo", "--", "-5"))
	assert.Equal(t, "-5\n", p.must("call", "--timeout", "1m", "echo", "-5", "--json"))
	p.baton("call", "echo", "-5", "--timeout", "-1s").fails(t, 2, "--timeout -1s is negative", "")
	p.baton("call", "echo", "-x").fails(t, 2, "unknown shorthand flag: 'x'", "baton call --help")
}

func TestCallGivesFloatsThatJSONHasNot(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	type in struct {
		X float64
		Y *float64 `baton:"y,optional"`
		S string   `baton:"s,optional"`
	}
	provides(p, c, "f", func(_ context.Context, in in) (string, error) {
		if in.Y != nil {
			in.X = *in.Y
		}
		return fmt.Sprint(in.X, in.S), nil
	})
	for word, prints := range map[string]string{
		"inf": "+Inf\n", "-inf": "-Inf\n", "nan": "NaN\n", "1e999": "+Inf\n", "-1e999": "-Inf\n", "-Infinity": "-Inf\n",
		"x=inf": "+Inf\n", "x=-inf": "-Inf\n",
	} {
		assert.Equal(t, prints, p.must("call", "f", word), word)
	}
	assert.Equal(t, "NaN\n", p.must("call", "f", "1", "y=nan"))
	assert.Equal(t, "1inf\n", p.must("call", "f", "1", "s=inf"), "a text is one where a text is taken")
	for _, word := range []string{`"inf"`, "text"} {
		p.baton("call", "f", word).fails(t, 1, "x is float, and a str is given", "give what the function takes")
	}
	p.baton("call", "f", "x=1", "x=2").fails(t, 2, "x is given twice", "")
}

func TestCallCarriesArraysInAndOut(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	provides(p, c, "vision/scale", scales)
	x, err := c.Alloc(p.ctx(), dlpack.Float32, []int64{2, 3})
	require.NoError(t, err)
	v, err := client.Slice[float32](x)
	require.NoError(t, err)
	copy(v, []float32{1, 2, 3, 4, 5, 6})
	_, err = c.Set(p.ctx(), "image", x)
	require.NoError(t, err)
	p.must("get", "image", "-o", p.file("in.npy"))
	out := p.must("call", "vision/scale", "@"+p.file("in.npy"), "by=3", "-o", p.file("out.npy"))
	assert.Regexp(t, `^float32\[2,3\], 24 B, written to .*out.npy\n$`, out)
	written, err := os.ReadFile(p.file("out.npy"))
	require.NoError(t, err)
	twice := p.batonWith(mustOpen(t, p.file("in.npy")), "call", "vision/scale", "by=3", "image=@-", "-o", "-")
	require.Zero(t, twice.code, twice.err)
	assert.Equal(t, string(written), twice.out)
	assert.Equal(t, "float32[2,3]\n", p.must("call", "vision/scale", "@"+p.file("in.npy")))
	p.baton("call", "vision/scale", "@"+p.file("none.npy")).fails(t, 3, "none.npy", "check the path")
	p.baton("call", "vision/scale", "1").fails(t, 1, "image is tensor, and a int is given", "give what the function takes")
	provides(p, c, "one", func(context.Context, struct{}) (int, error) { return 1, nil })
	p.baton("call", "one", "-o", p.file("x.npy")).fails(t, 1, "no tensor", "leave -o out")
	x.Release()
}

func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestCallTellsHowAFunctionFailed(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	p.baton("call", "f").fails(t, 3, "there is no function f", "register it")
	p.baton("call", "f", "--timeout", "150ms").fails(t, 3, "there is no function f", "register it")
	p.baton("call", "f@@").fails(t, 2, "version", "")
	provides(p, c, "f", func(context.Context, struct{}) (int, error) {
		return 0, &client.RemoteError{Kind: "ValueError", Message: "bad value 3", Trace: "line 1\nline 2"}
	})
	r := p.baton("call", "f")
	assert.Equal(t, 1, r.code)
	assert.Equal(t, "line 1\nline 2\nbaton: function f failed in tester: ValueError: bad value 3\n", r.err)
	began := make(chan struct{}, 1)
	provides(p, c, "slow", func(ctx context.Context, _ struct{}) (int, error) {
		began <- struct{}{}
		<-ctx.Done()
		return 0, ctx.Err()
	})
	p.baton("call", "slow", "--timeout", "50ms").fails(t, 5, "has not ended in time", "")
	for len(began) > 0 {
		<-began
	}
	slow := p.start(p.command("call", "slow"))
	<-began
	slow.signal(syscall.SIGINT)
	assert.Equal(t, 128+int(syscall.SIGINT), slow.wait().code)
}

// The time of a command is that of its wait for a provider as well. What lacks is said, whichever of the two is over first.
func TestCallWhoseProviderGoesAwayHasNoProvider(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	began := make(chan struct{}, 1)
	provides(p, c, "slow", func(ctx context.Context, _ struct{}) (int, error) {
		began <- struct{}{}
		<-ctx.Done()
		return 0, ctx.Err()
	})
	running := p.start(p.command("call", "slow"))
	<-began
	waiting := p.start(p.command("call", "slow", "--timeout", "2s"))
	p.until("it waits", func() bool {
		var rows []broker.FunctionRow
		p.json(&rows, "ls", "functions")
		return len(rows) == 1 && rows[0].Waiting == 1
	})
	p.must("delete", "slow", "--yes")
	waiting.wait().fails(t, 3, "no process provides the function slow", "start a process that provides it")
	running.signal(syscall.SIGINT)
	running.wait()
}

func TestFunctionsAreListedShownCompletedAndDeleted(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	provides(p, c, "vision/scale@2", scales, client.Doc("Scales an image."), client.Concurrency(4), client.Idempotent())
	assert.Regexp(t, `(?m)^vision/scale@2 +1 +0 +0 +0 +\(image: tensor, by: float = 2\.0\) -> tensor +\d+ +\S+`, p.must("ls", "functions"))
	var rows []broker.FunctionRow
	p.json(&rows, "ls", "functions", "vision/*")
	require.Len(t, rows, 1)
	text := p.must("show", "function", "vision/scale")
	for _, line := range []string{`function +vision/scale@2`, `about +Scales an image\.`, `a dead provider's call +is given to another, also when it was begun`,
		`calls +0, 0 of them errors`, `ran +half of them within -, 99 % within -`,
		`PROVIDER +PID +USER +RUNNING +AT A TIME +CALLS +ERRORS +P50 +P99 +PROVIDES FOR +STATE`} {
		assert.Regexp(t, `(?m)^`+line, text)
	}
	var shown []struct {
		Providers []struct {
			PID   int
			UID   int
			Since time.Time
		}
	}
	p.json(&shown, "show", "function", "vision/scale@2")
	require.Len(t, shown, 1)
	assert.Equal(t, os.Getpid(), shown[0].Providers[0].PID)
	assert.Equal(t, os.Getuid(), shown[0].Providers[0].UID)
	assert.False(t, shown[0].Providers[0].Since.IsZero())
	assert.Contains(t, p.must("__complete", "call", "vis"), "vision/scale@2")
	assert.Contains(t, p.must("__complete", "show", "function", ""), "vision/scale@2")
	assert.Contains(t, p.must("__complete", "delete", "vis"), "vision/scale@2")

	p.baton("delete", "vision/scale@2").fails(t, 2, "", "--yes")
	assert.Equal(t, "ended function vision/scale@2, which 1 session provided\n", p.must("delete", "vision/scale@2", "--yes"))
	var gone []struct {
		Kind      string
		Providers int
	}
	provides(p, p.client(), "vision/scale@2", scales)
	p.json(&gone, "delete", "vision/scale@2", "--kind", "function", "--yes")
	b, err := json.Marshal(gone)
	require.NoError(t, err)
	assert.JSONEq(t, `[{"Kind":"function","Providers":1}]`, string(b))
	p.baton("call", "vision/scale@2", "1").fails(t, 3, "vision/scale@2", "") // no provider, or no such function once it has left
	p.baton("delete", "nothing@1", "--kind", "function", "--yes").fails(t, 3, "there is no function", "")
}

func TestCallPrintsThePartsOfAFunctionAsTheyCome(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	_, err := client.HandleStream(c, "count", func(_ context.Context, in struct{ To int }, send func(any) error) error {
		for i := range in.To {
			if err := send(map[string]any{"i": i}); err != nil {
				return err
			}
		}
		return &client.RemoteError{Kind: "ValueError", Message: "no more", Trace: "line 7"}
	})
	require.NoError(t, err)
	for _, args := range [][]string{{"call", "count", "2"}, {"call", "count", "to=2", "--json"}} {
		r := p.baton(args...)
		assert.Equal(t, 1, r.code)
		assert.Equal(t, "{\"i\":0}\n{\"i\":1}\n", r.out)
		assert.Contains(t, r.err, "line 7\n")
		assert.Contains(t, r.err, "no more")
	}
	p.baton("call", "count", "2", "-o", "x.npy").fails(t, 1, "count gives parts", "leave -o out")
}
