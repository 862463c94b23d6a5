package client_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// pair is a caller and a provider at one broker.
func pair(t testing.TB) (ctx context.Context, caller, provider *client.Client) {
	address := newBroker(t)
	return limited(t), connect(t, address), connect(t, address)
}

func handle[In, Out any](t testing.TB, c *client.Client, name string, f func(context.Context, In) (Out, error), opts ...client.HandleOption) *client.Registration {
	t.Helper()
	r, err := client.Handle(c, name, f, opts...)
	require.NoError(t, err)
	return r
}

type normalize struct {
	Image *client.Tensor
	Mean  float64 `baton:"mean,default=0.5"`
	Note  *string
}

func scale(_ context.Context, in normalize) (*client.Tensor, error) {
	v, err := client.Slice[float32](in.Image)
	if err != nil {
		return nil, err
	}
	for i := range v {
		v[i] -= float32(in.Mean)
	}
	return in.Image, nil
}

func TestCallHandsTensorsThereAndBack(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "vision/normalize", scale, client.Doc("Subtracts."))
	x := tensor(t, c, 1, 2)
	y, err := client.Call[*client.Tensor](ctx, c, "vision/normalize", x, client.Arg("mean", 1))
	require.NoError(t, err)
	require.Equal(t, []float32{0, 1}, values(t, y))
	require.Equal(t, []float32{0, 1}, values(t, x), "the same memory")
	x.Release()
	y.Release()

	f, err := c.Function(ctx, "vision/normalize")
	require.NoError(t, err)
	require.Equal(t, "(image: tensor, mean: float = 0.5, note: str|none = …) -> tensor", f.Signature())
	require.Equal(t, "Subtracts.", f.Doc())
	require.Equal(t, 1, f.Providers())
	require.NoError(t, f.Close())
	_, err = f.Call(ctx)
	require.ErrorIs(t, err, protocol.ErrClosed)
}

func TestArgumentsThatDoNotFitAreRefusedBeforeTheyAreSent(t *testing.T) {
	ctx, c, p := pair(t)
	var runs atomic.Int32
	handle(t, p, "f", func(_ context.Context, in normalize) (int, error) { runs.Add(1); return 1, nil })
	handle(t, p, "n", func(_ context.Context, x int8) (int8, error) { return x, nil })
	x := tensor(t, c, 1)
	defer x.Release()
	for what, args := range map[string][]any{
		"is not given":              {},
		"image is tensor, and a st": {"text"},
		"are too many":              {x, 1.0, "a", 4},
		"no parameter other":        {x, client.Arg("other", 1)},
		"image is given twice":      {x, client.Arg("image", x)},
		"mean is given twice":       {x, client.Arg("mean", 1), client.Arg("note", "a"), client.Arg("mean", 2)},
		"mean is float, and a str":  {x, "1"},
		"note is str|none, and a f": {x, 1, 2.0},
		"comes behind one by name":  {client.Arg("mean", 1), x},
		"empty name":                {client.Arg("", 1)},
		"cannot be sent":            {make(chan int)},
	} {
		_, err := client.Call[int](ctx, c, "f", args...)
		require.ErrorIs(t, err, protocol.ErrInvalid, what)
		require.ErrorContains(t, err, what)
		require.ErrorContains(t, err, "f: ")
	}
	require.Zero(t, runs.Load())
	for _, v := range []any{2.5, "1", nil, new(big.Int).Lsh(big.NewInt(1), 70)} {
		_, err := client.Call[int](ctx, c, "n", v)
		require.ErrorIs(t, err, protocol.ErrInvalid)
	}
	_, err := client.Call[int](ctx, c, "n", 300)
	require.ErrorIs(t, err, protocol.ErrRemote, "what the signature does not tell is found at the provider")
	require.ErrorContains(t, err, "does not fit in int8")
	type narrow struct{ X float32 }
	handle(t, p, "narrow", func(_ context.Context, in narrow) (float32, error) { return in.X, nil })
	handle(t, p, "float", func(_ context.Context, x float32) (float64, error) { return 1e300, nil })
	for _, v := range []float64{1e300, -3.5e38} {
		for _, name := range []string{"narrow", "float"} {
			_, err = client.Call[float32](ctx, c, name, v)
			require.ErrorIs(t, err, protocol.ErrRemote)
			require.ErrorContains(t, err, "the parameter x")
			require.ErrorContains(t, err, "does not fit in float32")
		}
	}
	_, err = client.Call[float32](ctx, c, "float", 0.5)
	require.ErrorContains(t, err, "does not fit in float32", "nor does a result")
	for _, v := range []float64{math.MaxFloat32, math.Inf(-1), 1e-300} {
		f, err := client.Call[float32](ctx, c, "narrow", v)
		require.NoError(t, err)
		require.Equal(t, float32(v), f)
	}
}

func TestNumbersGoFromBoolToIntToFloatAndFromTensorsWithoutDimensions(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "float", func(_ context.Context, x float64) (float64, error) { return x, nil })
	handle(t, p, "int", func(_ context.Context, x int) (int, error) { return x, nil })
	scalar := func(dtype dlpack.DType, set func(*client.Tensor)) *client.Tensor {
		x, err := c.Alloc(ctx, dtype, nil)
		require.NoError(t, err)
		t.Cleanup(x.Release)
		set(x)
		return x
	}
	three := scalar(dlpack.Int32, func(x *client.Tensor) { s, _ := client.Slice[int32](x); s[0] = -3 })
	half := scalar(dlpack.Float32, func(x *client.Tensor) { s, _ := client.Slice[float32](x); s[0] = 0.5 })
	bits := func(dtype dlpack.DType, b uint16) *client.Tensor {
		return scalar(dtype, func(x *client.Tensor) {
			to, err := x.Bytes()
			require.NoError(t, err)
			binary.LittleEndian.PutUint16(to, b)
		})
	}
	for _, v := range []struct {
		given any
		want  float64
	}{
		{true, 1}, {7, 7}, {uint8(7), 7}, {float32(0.5), 0.5}, {three, -3}, {half, 0.5}, {uint64(1) << 63, 1 << 63},
		{bits(dlpack.Float16, 0xc100), -2.5}, {bits(dlpack.Float16, 0x7bff), 65504}, {bits(dlpack.Float16, 1), 1. / (1 << 24)},
		{bits(dlpack.Float16, 0x83ff), -1023. / (1 << 24)}, {bits(dlpack.Float16, 0xfc00), math.Inf(-1)},
		{bits(dlpack.Bfloat16, 0xc020), -2.5}, {bits(dlpack.Bfloat16, 0x7f80), math.Inf(1)},
	} {
		got, err := client.Call[float64](ctx, c, "float", v.given)
		require.NoError(t, err, "%v", v.given)
		require.Equal(t, v.want, got)
	}
	nan, err := client.Call[float64](ctx, c, "float", bits(dlpack.Float16, 0x7e00))
	require.NoError(t, err)
	require.True(t, math.IsNaN(nan))
	n, err := client.Call[int](ctx, c, "int", three)
	require.NoError(t, err)
	require.Equal(t, -3, n)
	_, err = client.Call[int](ctx, c, "int", half)
	require.ErrorIs(t, err, protocol.ErrInvalid)
	_, err = client.Call[string](ctx, c, "int", 1)
	require.ErrorIs(t, err, protocol.ErrInvalid, "a result is not read as what it is not")
}

type point struct {
	X, Y  float64
	Label string `baton:"label"`
}

func TestValuesOfEachKindComeAsTheyWere(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "echo", func(_ context.Context, x any) (any, error) { return x, nil })
	handle(t, p, "all", func(_ context.Context, a client.Args) ([]any, error) {
		var all []any
		for i := range a.Len() {
			v, err := a.At(i)
			if err != nil {
				return nil, err
			}
			all = append(all, []any{a.Name(i), fmt.Sprintf("%T", v)})
		}
		return all, nil
	})
	huge := new(big.Int).Lsh(big.NewInt(1), 100)
	for _, v := range []any{nil, true, int64(-1), 0.25, "größe", []byte{0, 255}, huge, dlpack.Bfloat16, dlpack.Device{Type: dlpack.CUDA, ID: 3},
		[]any{int64(1), "a", nil}, protocol.ValueTuple{int64(1), []any{}}, map[string]any{"a": map[string]any{"b": 1.5}}} {
		got, err := client.Call[any](ctx, c, "echo", v)
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	got, err := client.Call[map[string][]point](ctx, c, "echo", map[string][]point{"p": {{1, 2, "a"}, {3, 4, "b"}}})
	require.NoError(t, err)
	require.Equal(t, point{3, 4, "b"}, got["p"][1])

	x, y := tensor(t, c, 1), tensor(t, c, 2)
	in := map[string]any{"x": x, "more": []any{y, "text"}}
	out, err := client.Call[struct {
		X    *client.Tensor
		More []any
	}](ctx, c, "echo", in)
	require.NoError(t, err)
	require.Equal(t, []float32{1}, values(t, out.X))
	require.Equal(t, []float32{2}, values(t, out.More[0].(*client.Tensor)))
	for _, t := range []*client.Tensor{out.X, out.More[0].(*client.Tensor), x, y} {
		t.Release()
	}
	all, err := client.Call[[][]string](ctx, c, "all", 1, x.String(), client.Arg("b", []byte("x")), client.Arg("l", []int{1}))
	require.NoError(t, err)
	require.Equal(t, [][]string{{"", "int64"}, {"", "string"}, {"b", "[]uint8"}, {"l", "[]interface {}"}}, all)
	none, err := client.Call[struct{}](ctx, c, "echo", nil)
	require.NoError(t, err)
	require.Zero(t, none)
}

func TestErrorsOfFunctionsTellKindMessageTraceAndCause(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "inner", func(context.Context, struct{}) (int, error) {
		return 0, &client.RemoteError{Kind: "ValueError", Message: "bad value 3", Trace: "here"}
	})
	handle(t, p, "outer", func(ctx context.Context, _ struct{}) (int, error) {
		n, err := client.Call[int](ctx, p, "inner")
		return n, fmt.Errorf("outer: %w", err)
	})
	handle(t, p, "panics", func(context.Context, []int) (int, error) { panic("no \xff way") })
	handle(t, p, "unsendable", func(context.Context, struct{}) (any, error) { return make(chan int), nil })
	handle(t, p, "code", func(context.Context, struct{}) (any, error) { return nil, protocol.ErrExpired })
	handle(t, p, "ends", func(context.Context, struct{}) (any, error) { runtime.Goexit(); return nil, nil })

	failed := func(name string, args ...any) *client.RemoteError {
		_, err := client.Call[any](ctx, c, name, args...)
		require.ErrorIs(t, err, protocol.ErrRemote)
		var e *client.RemoteError
		require.ErrorAs(t, err, &e)
		require.Equal(t, name, e.Function)
		return e
	}
	e := failed("inner")
	require.Equal(t, []string{"ValueError", "bad value 3", "here"}, []string{e.Kind, e.Message, e.Trace})
	require.NotEmpty(t, e.Provider)
	e = failed("outer")
	require.Contains(t, e.Message, "bad value 3")
	require.Equal(t, "ValueError", e.Cause.Kind)
	e = failed("panics", []int{})
	require.Equal(t, "panic", e.Kind)
	require.Contains(t, e.Message, "no \ufffd way")
	require.Contains(t, e.Trace, "function_test.go")
	require.Contains(t, failed("unsendable").Message, "chan int")
	require.Equal(t, "baton.Expired", failed("code").Kind)
	for range 2 {
		require.Equal(t, "the function ended its goroutine", failed("ends").Message)
	}
}

func TestAFunctionThatReturnsWhatItHasReleasedFails(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "gone", func(context.Context, struct{}) (*client.Tensor, error) {
		x := tensor(t, p, 1)
		x.Release()
		return x, nil
	})
	for range 2 {
		_, err := client.Call[any](ctx, c, "gone")
		var e *client.RemoteError
		require.ErrorAs(t, err, &e)
		require.Equal(t, "baton.Closed", e.Kind)
		require.Contains(t, e.Message, "was released")
	}
}

func TestAContextWithinAFunctionThatEndsIsNoEndOfItsCall(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "own", func(ctx context.Context, canceled bool) (any, error) {
		within, cancel := context.WithTimeout(ctx, 0)
		defer cancel()
		if canceled {
			within, cancel = context.WithCancel(ctx)
			cancel()
		}
		return nil, fmt.Errorf("it asked: %w", within.Err())
	})
	for _, canceled := range []bool{false, true} {
		_, err := client.Call[any](ctx, c, "own", canceled)
		var e *client.RemoteError
		require.ErrorAs(t, err, &e)
		require.Equal(t, "error", e.Kind)
		require.Contains(t, e.Message, "it asked: context ")
	}
}

func TestCallWithoutProviderEndsAtOnceOrWaitsForOne(t *testing.T) {
	ctx, c, p := pair(t)
	_, err := client.Call[int](ctx, c, "vision/normalize", 1)
	require.ErrorIs(t, err, protocol.ErrNotFound)
	r := handle(t, p, "vision/normalize", scale)
	_, err = c.Function(ctx, "vision/normalise")
	require.ErrorContains(t, err, "similar ones: vision/normalize")
	f, err := c.Function(ctx, "vision/normalize")
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, r.Close(ctx))
	<-r.Done()
	_, err = f.Call(ctx, 1)
	require.ErrorIs(t, err, protocol.ErrNoProvider)

	waits, err := c.Function(ctx, "vision/normalize", client.Wait(time.Millisecond))
	require.ErrorIs(t, err, protocol.ErrNoProvider)
	require.Nil(t, waits)
	made := make(chan error)
	go func() {
		g, err := c.Function(ctx, "other", client.Wait(time.Minute))
		if err == nil {
			_, err = g.Call(ctx, 1)
			g.Close()
		}
		made <- err
	}()
	require.Eventually(t, func() bool { return c.Stats().Topics > 0 }, time.Minute, time.Millisecond)
	handle(t, p, "other", func(_ context.Context, x int) (int, error) { return x, nil })
	require.NoError(t, <-made)
}

func TestFunctionCallsTheNewestVersion(t *testing.T) {
	ctx, c, p := pair(t)
	for _, v := range []string{"9", "10"} {
		handle(t, p, "f@"+v, func(context.Context, struct{}) (string, error) { return v, nil })
	}
	got, err := client.Call[string](ctx, c, "f")
	require.NoError(t, err)
	require.Equal(t, "10", got)
	got, err = client.Call[string](ctx, c, "f@9")
	require.NoError(t, err)
	require.Equal(t, "9", got)
}

func TestCallEndsWithItsContextAndTheFunctionSeesIt(t *testing.T) {
	ctx, c, p := pair(t)
	began, ended, goOn := make(chan struct{}, 1), make(chan error, 1), make(chan struct{})
	handle(t, p, "waits", func(ctx context.Context, _ struct{}) (int, error) {
		began <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		<-goOn // its caller has ended by then
		return 0, nil
	})
	handle(t, p, "asks", func(ctx context.Context, _ struct{}) (int, error) {
		began <- struct{}{}
		for ctx.Err() == nil {
			runtime.Gosched()
		}
		ended <- ctx.Err()
		<-goOn
		return 0, nil
	})
	for _, name := range []string{"waits", "asks"} {
		short, cancel := context.WithCancel(ctx)
		go func() { <-began; cancel() }()
		_, err := client.Call[int](short, c, name)
		require.ErrorIs(t, err, protocol.ErrCancelled)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, <-ended, context.Canceled)
		goOn <- struct{}{}

		for begun := false; !begun; { // one whose time is over before is not begun
			late, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			_, err = client.Call[int](late, c, name)
			require.ErrorIs(t, err, protocol.ErrTimeout)
			cancel()
			select {
			case <-began:
				begun = true
			default:
			}
		}
		require.ErrorIs(t, <-ended, context.DeadlineExceeded)
		goOn <- struct{}{}
	}
	handle(t, p, "after", func(ctx context.Context, _ struct{}) (int, error) {
		call := client.CurrentCall(ctx)
		if call.Attempt != 1 || !call.Deadline.IsZero() || call.Function != "after" || call.Caller == "" {
			return 0, fmt.Errorf("%+v", call)
		}
		return 1, nil
	})
	_, err := client.Call[int](ctx, c, "after")
	require.ErrorContains(t, err, "Deadline", "the deadline of the test's context travels")
	_, err = client.Call[int](context.Background(), c, "after")
	require.NoError(t, err)
	require.Nil(t, client.CurrentCall(ctx))
}

func TestFunctionThatRunsSeesThatItsCallerHasGone(t *testing.T) {
	ctx, c, p := pair(t)
	began, ended := make(chan struct{}), make(chan struct{})
	handle(t, p, "waits", func(ctx context.Context, x *client.Tensor) (*client.Tensor, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return x.Retain(), nil
	})
	x := tensor(t, c, 1)
	go client.Call[*client.Tensor](ctx, c, "waits", x)
	<-began
	require.NoError(t, c.Close())
	<-ended
	x.Release()
}

func TestCallsRunBesideEachOtherAsManyAsTheFunctionAllows(t *testing.T) {
	ctx, c, p := pair(t)
	var now, most atomic.Int32
	all := make(chan struct{})
	handle(t, p, "meet", func(ctx context.Context, _ struct{}) (int, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		if n == 3 {
			select {
			case <-all:
			default:
				close(all)
			}
		}
		<-all
		return 0, nil
	}, client.Concurrency(3))
	var done sync.WaitGroup
	for range 12 {
		done.Go(func() {
			_, err := client.Call[int](ctx, c, "meet")
			require.NoError(t, err)
		})
	}
	done.Wait()
	require.EqualValues(t, 3, most.Load())
}

func TestCallThatWouldWaitForItselfIsRefusedAndNamed(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "a", func(ctx context.Context, n int) (int, error) { return client.Call[int](ctx, p, "b", n) })
	handle(t, p, "b", func(ctx context.Context, n int) (int, error) { return client.Call[int](ctx, p, "a", n) })
	_, err := client.Call[int](ctx, c, "a", 1)
	require.ErrorIs(t, err, protocol.ErrRemote)
	require.ErrorContains(t, err, "would wait for itself: a > b > a")
	handle(t, p, "deep", func(ctx context.Context, n int) (int, error) { return client.Call[int](ctx, p, "deep", n+1) }, client.Concurrency(100))
	for _, from := range []*client.Client{c, p} {
		_, err = client.Call[int](ctx, from, "deep", 1)
		require.ErrorContains(t, err, "64 deep")
		require.ErrorContains(t, err, strings.Repeat("deep > ", 64)+"deep")
		require.NotContains(t, err.Error(), strings.Repeat("deep > ", 65))
	}
}

func TestOverrideTakesWhatWaitsAndLetsRunWhatRuns(t *testing.T) {
	ctx, c, p := pair(t)
	began, goOn := make(chan struct{}, 2), make(chan struct{})
	old := handle(t, p, "f", func(context.Context, struct{}) (string, error) {
		began <- struct{}{}
		<-goOn
		return "old", nil
	})
	results := make(chan string, 2)
	one := func() {
		s, err := client.Call[string](ctx, c, "f")
		require.NoError(t, err)
		results <- s
	}
	go one()
	<-began
	go one()
	f, err := c.Function(ctx, "f")
	require.NoError(t, err)
	defer f.Close()
	require.Eventually(t, func() bool { return rowOf(t, c, "f").Waiting == 1 }, time.Minute, time.Millisecond)
	handle(t, c, "f", func(context.Context, struct{}) (string, error) { return "new", nil }, client.Override())
	require.Equal(t, "new", <-results)
	require.False(t, old.IsCurrent())
	close(goOn)
	require.Equal(t, "old", <-results)
	<-old.Done()
	_, err = client.Handle(p, "f", func(context.Context, int) (string, error) { return "", nil })
	require.ErrorIs(t, err, protocol.ErrConflict)
}

func rowOf(t testing.TB, c *client.Client, name string) (row broker.FunctionRow) {
	var reply struct{ Rows []broker.FunctionRow }
	require.NoError(t, c.Broker(context.Background(), protocol.OpList, protocol.List{What: protocol.ListFunctions}, &reply))
	i := slices.IndexFunc(reply.Rows, func(r broker.FunctionRow) bool { return r.Name == name })
	require.GreaterOrEqual(t, i, 0)
	return reply.Rows[i]
}

func TestCloseOfARegistrationWaitsForWhatRuns(t *testing.T) {
	ctx, c, p := pair(t)
	began, goOn := make(chan struct{}), make(chan struct{})
	r := handle(t, p, "f", func(context.Context, struct{}) (int, error) { close(began); <-goOn; return 7, nil })
	result := make(chan int)
	go func() {
		n, err := client.Call[int](ctx, c, "f")
		require.NoError(t, err)
		result <- n
	}()
	<-began
	over, cancel := context.WithCancel(ctx)
	cancel()
	require.ErrorIs(t, r.Close(over), context.Canceled)
	require.False(t, r.IsCurrent())
	close(goOn)
	require.Equal(t, 7, <-result)
	require.NoError(t, r.Close(ctx))
	require.Empty(t, rowOf(t, c, "f").Providers)
}

func TestNothingOfCallsStays(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "f", func(_ context.Context, x *client.Tensor) (*client.Tensor, error) { return x, nil })
	for i := range 20 {
		x := tensor(t, c, float32(i))
		short, cancel := context.WithCancel(ctx)
		if i%2 == 1 {
			go cancel()
		}
		y, err := client.Call[*client.Tensor](short, c, "f", x)
		if err == nil {
			y.Release()
		} else {
			require.True(t, errors.Is(err, protocol.ErrCancelled), "%v", err)
		}
		x.Release()
		cancel()
	}
	require.Eventually(t, func() bool {
		c.Collect()
		p.Collect()
		return c.Stats().Live == 0 && p.Stats().Live == 0
	}, time.Minute, 10*time.Millisecond)
}

func TestRegistrationWaitSaysThatTheSessionIsLost(t *testing.T) {
	ctx, operator, p := pair(t)
	removed := handle(t, p, "removed", func(context.Context, struct{}) (int, error) { return 1, nil })
	lost := handle(t, p, "lost", func(context.Context, struct{}) (int, error) { return 1, nil })
	require.NoError(t, operator.Broker(ctx, protocol.OpFunctionRemove, protocol.FunctionByName{Name: "removed", Namespace: protocol.DefaultNamespace}, nil))
	require.NoError(t, removed.Wait(ctx))
	short, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	require.ErrorIs(t, lost.Wait(short), protocol.ErrTimeout)
	require.NoError(t, operator.Broker(ctx, protocol.OpEvict, protocol.Evict{Serial: p.Session()}, nil))
	err := lost.Wait(ctx)
	require.ErrorIs(t, err, protocol.ErrSessionLost)
	require.ErrorContains(t, err, "an operator evicted it")
}

// endsBetweenLooks is a context that ends while a function is not there yet, between two looks for it.
type endsBetweenLooks struct {
	context.Context
	ended atomic.Bool
}

func (c *endsBetweenLooks) Done() <-chan struct{} {
	if c.ended.Load() {
		over := make(chan struct{})
		close(over)
		return over
	}
	if pc, _, _, ok := runtime.Caller(1); ok && strings.HasSuffix(runtime.FuncForPC(pc).Name(), "openFunction") {
		c.ended.Store(true)
	}
	return c.Context.Done()
}

func (c *endsBetweenLooks) Err() error {
	if c.ended.Load() {
		return context.DeadlineExceeded
	}
	return c.Context.Err()
}

// A function that is not there is not found, also where the last look for it has no time left.
func TestAnAbsentFunctionIsNotFoundAtTheEndOfItsTime(t *testing.T) {
	ctx, c, _ := pair(t)
	ends := &endsBetweenLooks{Context: ctx}
	_, err := c.Function(ends, "absent", client.Wait(time.Minute))
	require.ErrorIs(t, err, protocol.ErrNotFound)
	require.True(t, ends.ended.Load())
}
