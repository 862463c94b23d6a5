package client_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

type train struct {
	Steps  int
	OnStep *client.Function `baton:"on_step"`
}

func trains(ctx context.Context, in train) (int, error) {
	sum := 0
	for i := range in.Steps {
		n, err := client.CallOf[int](ctx, in.OnStep, i)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func twice(_ context.Context, x int) (int, error) { return 2 * x, nil }

func TestFunctionThatIsAnArgumentIsCalledWhileTheCallRuns(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "train", trains)
	var seen []int
	for range 3 {
		seen = nil
		n, err := client.Call[int](ctx, c, "train", 5, client.Func(func(ctx context.Context, i int) (int, error) {
			if k := client.CurrentCall(ctx); k == nil || k.Function != "" {
				return 0, fmt.Errorf("%+v", k)
			}
			seen = append(seen, i)
			return 2 * i, nil
		}))
		require.NoError(t, err)
		require.Equal(t, 20, n)
		require.Equal(t, counting(5), seen)
	}
	f, err := c.Function(ctx, "train")
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, "(steps: int64, on_step: function) -> int64", f.Signature())
	for _, v := range []any{1, "f", nil, []any{client.Func(twice)}} {
		_, err := f.Call(ctx, 1, v)
		require.ErrorIs(t, err, protocol.ErrInvalid)
		require.ErrorContains(t, err, "on_step is function, and a")
	}
	_, err = f.Call(ctx, client.Func(twice), client.Func(twice))
	require.ErrorContains(t, err, "steps is int64, and a function is given")
	_, err = f.Call(ctx, 1, twice)
	require.ErrorContains(t, err, "client.Func")
	_, err = f.Call(ctx, 1, protocol.ValueFunction{Token: "000102030405060708090a0b0c0d0e0f", Object: 1})
	require.ErrorIs(t, err, protocol.ErrInvalid)
}

func TestFunctionsStandAnywhereInAValueAndTakeTensors(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "apply", func(ctx context.Context, in struct {
		X    *client.Tensor
		All  []*client.Function
		More map[string]any
	}) (*client.Tensor, error) {
		for _, f := range append(in.All, in.More["last"].(*client.Function)) {
			y, err := client.CallOf[*client.Tensor](ctx, f, in.X)
			if err != nil {
				return nil, err
			}
			y.Release()
		}
		return in.X, nil
	})
	add := func(n float32) *client.Callback {
		return client.Func(func(_ context.Context, x *client.Tensor) (*client.Tensor, error) {
			v, err := client.Slice[float32](x)
			for i := range v {
				v[i] += n
			}
			return x, err
		})
	}
	x := tensor(t, c, 1, 2)
	y, err := client.Call[*client.Tensor](ctx, c, "apply", x, []any{add(1), add(10)}, map[string]any{"last": add(100)})
	require.NoError(t, err)
	require.Equal(t, []float32{112, 113}, values(t, y))
	x.Release()
	y.Release()
	nothingLives(t, c, p)
}

func TestFunctionArgumentIsCalledFromManyGoroutines(t *testing.T) {
	ctx, c, p := pair(t)
	const n = 20
	handle(t, p, "together", func(ctx context.Context, f *client.Function) (int, error) {
		var all sync.WaitGroup
		var sum atomic.Int64
		for i := range n {
			all.Go(func() {
				v, err := client.CallOf[int](ctx, f, i)
				if err == nil {
					sum.Add(int64(v))
				}
			})
		}
		all.Wait()
		return int(sum.Load()), nil
	})
	var arrived atomic.Int32
	all := make(chan struct{})
	got, err := client.Call[int](ctx, c, "together", client.Func(func(ctx context.Context, i int) (int, error) {
		if arrived.Add(1) == n {
			close(all)
		}
		select {
		case <-all: // all run at a time
			return 2 * i, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}))
	require.NoError(t, err)
	require.Equal(t, n*(n-1), got)
}

func TestErrorsOfAFunctionArgumentComeToItsReceiver(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "train", trains)
	for text, f := range map[string]*client.Callback{
		"ValueError: enough": client.Func(func(context.Context, int) (int, error) {
			return 0, &client.RemoteError{Kind: "ValueError", Message: "enough"}
		}),
		"panic: no more":                  client.Func(func(context.Context, int) (int, error) { panic("no more") }),
		"ended its goroutine":             client.Func(func(context.Context, int) (int, error) { runtime.Goexit(); return 0, nil }),
		"int was given for str":           client.Func(func(context.Context, string) (int, error) { return 0, nil }),
		"chan int cannot be sent":         client.Func(func(context.Context, any) (any, error) { return make(chan int), nil }),
		"function that is returned is no": client.Func(func(context.Context, any) (any, error) { return client.Func(twice), nil }),
	} {
		_, err := client.Call[int](ctx, c, "train", 1, f)
		require.ErrorIs(t, err, protocol.ErrRemote)
		require.ErrorContains(t, err, text)
	}
}

func TestFunctionArgumentLivesAsLongAsItsCall(t *testing.T) {
	ctx, c, p := pair(t)
	kept := make(chan *client.Function, 1)
	handle(t, p, "keeps", func(_ context.Context, f *client.Function) (int, error) {
		require.Empty(t, f.Name())
		require.Equal(t, 1, f.Providers())
		kept <- f
		return 1, nil
	})
	var runs atomic.Int32
	_, err := client.Call[int](ctx, c, "keeps", client.Func(func(context.Context, int) (int, error) { runs.Add(1); return 1, nil }))
	require.NoError(t, err)
	_, err = (<-kept).Call(ctx, 1)
	require.ErrorIs(t, err, protocol.ErrClosed)

	// Its caller has ended the call, and the function runs on.
	began, goOn, ended := make(chan *client.Function), make(chan struct{}), make(chan error)
	handle(t, p, "on", func(_ context.Context, f *client.Function) (int, error) {
		began <- f
		<-goOn
		_, err := f.Call(ctx, 1) // by a context that goes on
		ended <- err
		return 1, nil
	})
	short, cancel := context.WithCancel(ctx)
	result := make(chan error)
	go func() {
		_, err := client.Call[int](short, c, "on", client.Func(func(context.Context, int) (int, error) { runs.Add(1); return 1, nil }))
		result <- err
	}()
	<-began
	cancel()
	require.ErrorIs(t, <-result, protocol.ErrCancelled)
	close(goOn)
	require.ErrorIs(t, <-ended, protocol.ErrClosed)
	require.Zero(t, runs.Load())
}

func TestCallReturnsOnceItsFunctionsHave(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "train", trains)
	began := make(chan struct{})
	short, cancel := context.WithCancel(ctx)
	var returned atomic.Bool
	go func() { <-began; cancel() }()
	_, err := client.Call[int](short, c, "train", 1, client.Func(func(ctx context.Context, _ int) (int, error) {
		close(began)
		<-ctx.Done()
		returned.Store(true)
		return 0, ctx.Err()
	}))
	require.ErrorIs(t, err, protocol.ErrCancelled)
	require.True(t, returned.Load())
}

func TestDeadlinesTravelThroughFunctionArguments(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "train", trains)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := client.Call[int](short, c, "train", 1, client.Func(func(ctx context.Context, _ int) (int, error) {
		_, has := ctx.Deadline()
		<-ctx.Done()
		if !has {
			t.Error("the deadline did not travel")
		}
		return 0, ctx.Err()
	}))
	require.ErrorIs(t, err, protocol.ErrTimeout)
}

func TestFunctionArgumentOfAStream(t *testing.T) {
	ctx, c, p := pair(t)
	handleStream(t, p, "map", func(ctx context.Context, in train, send func(int) error) error {
		for i := range in.Steps {
			n, err := client.CallOf[int](ctx, in.OnStep, i)
			if err == nil {
				err = send(n)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	require.Equal(t, []int{0, 2, 4, 6}, collect(t, client.Parts[int](ctx, c, "map", 4, client.Func(twice), client.Ahead(1))))
	for n, err := range client.Parts[int](ctx, c, "map", 1<<20, client.Func(twice), client.Ahead(1)) {
		require.NoError(t, err)
		if n == 10 {
			break
		}
	}
}

func TestFunctionArgumentIsPassedOn(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "train", trains)
	handle(t, p, "outer", func(ctx context.Context, in train) (int, error) {
		return client.Call[int](ctx, p, "train", in.Steps, client.Arg("on_step", in.OnStep))
	})
	n, err := client.Call[int](ctx, c, "outer", 5, client.Func(twice))
	require.NoError(t, err)
	require.Equal(t, 20, n)
}

func TestRegisteredFunctionsAreGivenAndReturnedByTheirNames(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, c, "math/twice", twice)
	handle(t, p, "train", trains)
	handle(t, p, "pick", func(ctx context.Context, how string) (any, error) {
		switch how {
		case "name":
			return protocol.ValueFunction{Name: "math/twice"}, nil
		case "list":
			f, err := p.Function(ctx, "math/twice")
			if err == nil {
				defer f.Close()
			}
			return []any{f, 1}, err
		}
		return client.Func(twice), nil
	})
	f, err := c.Function(ctx, "math/twice")
	require.NoError(t, err)
	defer f.Close()
	n, err := client.Call[int](ctx, c, "train", 5, f)
	require.NoError(t, err)
	require.Equal(t, 20, n)
	got, err := client.Call[*client.Function](ctx, c, "pick", "name")
	require.NoError(t, err)
	require.Equal(t, "math/twice", got.Name())
	n, err = client.CallOf[int](ctx, got, 4)
	require.NoError(t, err)
	require.Equal(t, 8, n)
	require.NoError(t, got.Close())
	all, err := client.Call[[]any](ctx, c, "pick", "list")
	require.NoError(t, err)
	require.NoError(t, all[0].(*client.Function).Close())
	_, err = client.Call[any](ctx, c, "pick", "neither")
	require.ErrorIs(t, err, protocol.ErrRemote)
	require.ErrorContains(t, err, "not registered")
	_, err = client.Call[int](ctx, c, "pick", "name")
	require.ErrorIs(t, err, protocol.ErrInvalid, "it is closed again")
}

func TestNestedFunctionArgumentsHaveADepthAndCyclesAreNamed(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "apply", func(ctx context.Context, in struct {
		F *client.Function
		N int
	}) (int, error) {
		return client.CallOf[int](ctx, in.F, in.N)
	}, client.Concurrency(100))
	deepest := 0
	var down func(context.Context, int) (int, error)
	down = func(ctx context.Context, n int) (int, error) {
		deepest = max(deepest, n)
		return client.Call[int](ctx, c, "apply", client.Func(down), n+1)
	}
	_, err := client.Call[int](ctx, c, "apply", client.Func(down), 1)
	require.ErrorIs(t, err, protocol.ErrRemote)
	require.ErrorContains(t, err, "64 deep: apply > a function argument > apply > a function argument")
	require.Equal(t, protocol.MaxCallChain/2, deepest)

	handle(t, p, "once", func(ctx context.Context, f *client.Function) (int, error) { return client.CallOf[int](ctx, f) })
	_, err = client.Call[int](ctx, c, "once", client.Func(func(ctx context.Context, _ struct{}) (int, error) {
		return client.Call[int](ctx, c, "once", client.Func(func(context.Context, struct{}) (int, error) { return 1, nil }))
	}))
	require.ErrorContains(t, err, "would wait for itself: once > a function argument > once")
}

func TestSessionThatGaveAFunctionEnds(t *testing.T) {
	ctx, c, p := pair(t)
	began, ended := make(chan struct{}, 1), make(chan error)
	handle(t, p, "calls", func(_ context.Context, f *client.Function) (int, error) {
		began <- struct{}{}
		_, err := f.Call(ctx, 1) // by a context that does not end with its caller
		ended <- err
		_, err = f.Call(ctx, 1)
		ended <- err
		return 1, nil
	})
	result := make(chan error)
	go func() {
		_, err := client.Call[int](ctx, c, "calls", client.Func(func(ctx context.Context, _ int) (int, error) {
			<-began
			go c.Close()
			<-ctx.Done()
			return 1, nil
		}))
		result <- err
	}()
	require.ErrorIs(t, <-result, protocol.ErrClosed)
	require.ErrorIs(t, <-ended, protocol.ErrProviderDied)
	require.ErrorIs(t, <-ended, protocol.ErrNoProvider)
}

func TestNothingOfFunctionArgumentsStays(t *testing.T) {
	address := newBroker(t)
	ctx, c, p := limited(t), connect(t, address), connect(t, address)
	handle(t, p, "train", trains)
	for range 100 {
		_, err := client.Call[int](ctx, c, "train", 2, client.Func(twice))
		require.NoError(t, err)
	}
	require.LessOrEqual(t, c.Stats().Topics, 8)
	before := p.Stats().Topics
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return p.Stats().Topics < before && p.Stats().Topics <= 2 }, time.Minute, time.Millisecond)
}
