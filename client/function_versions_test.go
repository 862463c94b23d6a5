package client_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// version provides a version that says which it is.
func version(t *testing.T, p *client.Client, name, says string) *client.Registration {
	t.Helper()
	return handle(t, p, name, func(context.Context, struct{}) (string, error) { return says, nil })
}

func called(t *testing.T, ctx context.Context, c *client.Client, want string) {
	t.Helper()
	got, err := client.Call[string](ctx, c, "up/f")
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestANameIsOpenedAnewAsTheNewestVersionOfNow(t *testing.T) {
	ctx, c, p := pair(t)
	version(t, p, "up/f@1", "one")
	called(t, ctx, c, "one")
	version(t, p, "up/f@2", "two")
	called(t, ctx, c, "one") // what it meant at first, without a request
	f, err := c.Function(ctx, "up/f")
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, "up/f@2", f.Name())
	called(t, ctx, c, "two")
}

// In order, one version after the other, also back: no call is lost.
func TestACallByNameGoesToTheVersionThatHasAProvider(t *testing.T) {
	ctx, c, p := pair(t)
	old := version(t, p, "up/f@0", "zero")
	for n := 1; n < 50; n++ {
		called(t, ctx, c, map[bool]string{true: "zero", false: strconv.Itoa(n - 1)}[n == 1])
		next := version(t, p, "up/f@"+strconv.Itoa(n), strconv.Itoa(n))
		require.NoError(t, old.Close(ctx))
		called(t, ctx, c, strconv.Itoa(n))
		old = next
	}
	version(t, p, "up/f@1", "back")
	called(t, ctx, c, "49")
	require.NoError(t, old.Close(ctx))
	called(t, ctx, c, "back") // 49 has no provider, and this caller has it open
	version(t, p, "up/f", "bare")
	called(t, ctx, c, "back")
}

// A call that waits at the old version goes to the new one when that leaves, with all that it gives.
func TestACallThatWaitsGoesToTheNewVersion(t *testing.T) {
	ctx, c, p := pair(t)
	began, goOn := make(chan struct{}, 1), make(chan struct{})
	old := handle(t, p, "up/f@1", func(_ context.Context, in normalize) (float64, error) {
		began <- struct{}{}
		<-goOn
		return in.Mean, nil
	})
	results := make(chan float64, 2)
	callIt := func() {
		x := tensor(t, c, 1, 2)
		defer x.Release()
		n, err := client.Call[float64](ctx, c, "up/f", x, client.Arg("mean", 2))
		require.NoError(t, err)
		results <- n
	}
	go callIt()
	<-began
	go callIt()
	require.Eventually(t, func() bool { return rowOf(t, c, "up/f@1").Waiting == 1 }, time.Minute, time.Millisecond)
	handle(t, p, "up/f@2", func(_ context.Context, in normalize) (float64, error) {
		v, err := client.Slice[float32](in.Image)
		return 10*in.Mean + float64(v[1]), err
	})
	over, cancel := context.WithCancel(ctx)
	cancel()
	require.Error(t, old.Close(over)) // it takes nothing more, and what runs is not waited for here
	close(goOn)
	require.ElementsMatch(t, []float64{2, 22}, []float64{<-results, <-results}, "what had begun ends there, the other one goes on")
	require.NoError(t, old.Close(ctx))
}

func TestAStreamByNameGoesToTheVersionThatHasAProvider(t *testing.T) {
	ctx, c, p := pair(t)
	give := func(name string, n int) *client.Registration {
		r, err := client.HandleStream(p, name, func(_ context.Context, _ struct{}, send func(int) error) error { return send(n) })
		require.NoError(t, err)
		return r
	}
	parts := func() (all []int) {
		for n, err := range client.Parts[int](ctx, c, "up/f") {
			require.NoError(t, err)
			all = append(all, n)
		}
		return all
	}
	old := give("up/f@1", 1)
	require.Equal(t, []int{1}, parts())
	give("up/f@2", 2)
	require.NoError(t, old.Close(ctx))
	require.Equal(t, []int{2}, parts())
}

func TestWaitingForAFunctionFindsAnotherVersion(t *testing.T) {
	address := newBroker(t)
	ctx, c, p, w := limited(t), connect(t, address), connect(t, address), connect(t, address)
	old := version(t, p, "up/f@1", "one")
	held, err := c.Function(ctx, "up/f")
	require.NoError(t, err)
	defer held.Close()
	require.NoError(t, old.Close(ctx))
	found := make(chan string, 1)
	go func() {
		f, err := w.Function(ctx, "up/f", client.Wait(time.Minute))
		require.NoError(t, err)
		defer f.Close()
		found <- f.Name()
	}()
	require.Eventually(t, func() bool { return w.Stats().Topics > 0 }, time.Minute, time.Millisecond)
	version(t, p, "up/f@2", "two")
	require.Equal(t, "up/f@2", <-found)
	_, err = held.Call(ctx)
	require.ErrorIs(t, err, protocol.ErrNoProvider, "what is open stays what it is")
	_, err = client.Call[string](ctx, c, "up/f@1")
	require.ErrorIs(t, err, protocol.ErrNoProvider, "a version is that version")
}

func TestConcurrencyIsRefusedWithTheNumberThatWasGiven(t *testing.T) {
	ctx, c, p := pair(t)
	for _, n := range []int{0, -1, 1025, 5000, 1 << 32, 1<<32 + 1} {
		_, err := client.Handle(p, "f", func(context.Context, struct{}) (int, error) { return 1, nil }, client.Concurrency(n))
		require.ErrorIs(t, err, protocol.ErrInvalid, n)
		require.ErrorContains(t, err, "a concurrency of "+strconv.Itoa(n)+" is not 1 to 1024")
	}
	_, err := client.Call[int](ctx, c, "f")
	require.ErrorIs(t, err, protocol.ErrNotFound, "nothing was registered")
	for _, n := range []int{1, 1024} {
		handle(t, p, "f"+strconv.Itoa(n), func(context.Context, struct{}) (int, error) { return 1, nil }, client.Concurrency(n))
	}
}

func TestAConflictOfIntegersSaysWhichTypesMakeWhich(t *testing.T) {
	_, c, p := pair(t)
	handle(t, p, "f", func(_ context.Context, x int) (int, error) { return x, nil })
	_, err := client.Handle(c, "f", func(_ context.Context, x uint64) (int, error) { return int(x), nil })
	require.ErrorIs(t, err, protocol.ErrConflict)
	for _, has := range []string{`"type":"int64"`, `"type":"int"`, "int64 is not int", "*big.Int in Go"} {
		require.ErrorContains(t, err, has)
	}
	_, err = client.Handle(c, "f", func(_ context.Context, x string) (int, error) { return 1, nil })
	require.ErrorIs(t, err, protocol.ErrConflict)
	require.NotContains(t, err.Error(), "int64 is not int")
}
