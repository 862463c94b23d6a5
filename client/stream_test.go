package client_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

func handleStream[In, Part any](t testing.TB, c *client.Client, name string, f func(context.Context, In, func(Part) error) error, opts ...client.HandleOption) *client.Registration {
	t.Helper()
	r, err := client.HandleStream(c, name, f, opts...)
	require.NoError(t, err)
	return r
}

// countTo sends 0 to n-1.
func countTo(_ context.Context, n int, send func(int) error) error {
	for i := range n {
		if err := send(i); err != nil {
			return err
		}
	}
	return nil
}

func collect[T any](t testing.TB, parts iter.Seq2[T, error]) (all []T) {
	t.Helper()
	for part, err := range parts {
		require.NoError(t, err)
		all = append(all, part)
	}
	return all
}

// failed is the error that a stream ends with, and the parts before it.
func failed[T any](t testing.TB, parts iter.Seq2[T, error]) (all []T, err error) {
	t.Helper()
	for part, e := range parts {
		require.NoError(t, err, "nothing follows an error")
		if err = e; err == nil {
			all = append(all, part)
		}
	}
	return all, err
}

func counting(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func TestStreamGivesItsPartsInTheirOrder(t *testing.T) {
	ctx, c, p := pair(t)
	handleStream(t, p, "count", countTo, client.Doc("Counts."))
	for _, n := range []int{0, 1, 1000} {
		require.Equal(t, counting(n), collect(t, client.Parts[int](ctx, c, "count", n)))
	}
	for _, ahead := range []int{1, 2, 63} {
		require.Equal(t, counting(100), collect(t, client.Parts[int](ctx, c, "count", client.Ahead(ahead), client.Arg("x", 100))), ahead)
	}
	f, err := c.Function(ctx, "count")
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, "(x: int64) -> parts of int64", f.Signature())
	twice := client.PartsOf[int](ctx, f, 3)
	require.Equal(t, counting(3), collect(t, twice))
	require.Equal(t, counting(3), collect(t, twice), "each range is a call of its own")
	require.Equal(t, []any{int64(0), int64(1)}, collect(t, f.Parts(ctx, 2)))
}

func TestStreamHandsTensorsOverThatAreItsReaders(t *testing.T) {
	ctx, c, p := pair(t)
	handleStream(t, p, "frames", func(ctx context.Context, n int, send func(map[string]any) error) error {
		for i := range n {
			if err := send(map[string]any{"frame": tensor(t, p, float32(i)), "number": i}); err != nil {
				return err
			}
		}
		return nil
	})
	type frame struct {
		Frame  *client.Tensor
		Number int
	}
	got := 0
	for part, err := range client.Parts[frame](ctx, c, "frames", 50) {
		require.NoError(t, err)
		require.Equal(t, got, part.Number)
		require.Equal(t, []float32{float32(got)}, values(t, part.Frame))
		part.Frame.Release()
		got++
	}
	require.Equal(t, 50, got)
	nothingLives(t, c, p)
}

// nothingLives waits until sessions hold no storage.
func nothingLives(t testing.TB, all ...*client.Client) {
	t.Helper()
	require.Eventually(t, func() bool {
		live := uint64(0)
		for _, c := range all {
			c.Collect()
			live += uint64(c.Stats().Live)
		}
		return live == 0
	}, time.Minute, 10*time.Millisecond)
}

func TestStreamAndCallAreToldApartBeforeAnythingIsSent(t *testing.T) {
	ctx, c, p := pair(t)
	var runs atomic.Int32
	handleStream(t, p, "parts", func(context.Context, int, func(int) error) error { runs.Add(1); return nil })
	handle(t, p, "plain", func(context.Context, int) (int, error) { runs.Add(1); return 1, nil })
	_, err := client.Call[int](ctx, c, "parts", 1)
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.ErrorContains(t, err, "gives parts")
	_, err = failed(t, client.Parts[int](ctx, c, "plain", 1))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.ErrorContains(t, err, "gives no parts")
	for _, ahead := range []int{0, 64, -1} {
		_, err = failed(t, client.Parts[int](ctx, c, "parts", 1, client.Ahead(ahead)))
		require.ErrorIs(t, err, protocol.ErrInvalid)
	}
	_, err = client.Call[int](ctx, c, "plain", 1, client.Ahead(1))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.ErrorContains(t, err, "option of a stream")
	_, err = failed(t, client.Parts[int](ctx, c, "parts", "text"))
	require.ErrorIs(t, err, protocol.ErrInvalid)
	_, err = failed(t, client.Parts[int](ctx, c, "none", 1))
	require.ErrorIs(t, err, protocol.ErrNotFound)
	require.Zero(t, runs.Load())
}

// The function is ahead of the loop by the parts that Ahead allows, and by no more.
func TestStreamWaitsForItsReader(t *testing.T) {
	ctx, c, p := pair(t)
	sent := make(chan int, 1000)
	handleStream(t, p, "count", func(_ context.Context, n int, send func(int) error) error {
		for i := range n {
			if err := send(i); err != nil {
				return err
			}
			sent <- i
		}
		return nil
	})
	handle(t, p, "marker", func(context.Context, struct{}) (int, error) { return len(sent), nil })
	const ahead = 3
	taken := 0
	for part, err := range client.Parts[int](ctx, c, "count", 50, client.Ahead(ahead)) {
		require.NoError(t, err)
		require.Equal(t, taken, part)
		taken++
		if taken < 10 {
			require.Eventually(t, func() bool { return len(sent) == taken+ahead }, time.Minute, time.Millisecond, "it comes as far as it may")
			for range 20 { // and no farther, whatever else its process does
				n, err := client.Call[int](ctx, c, "marker")
				require.NoError(t, err)
				require.Equal(t, taken+ahead, n)
			}
		}
	}
	require.Equal(t, 50, taken)
}

func TestStreamThatIsNotReadHoldsNothingUp(t *testing.T) {
	ctx, c, p := pair(t)
	var now, most atomic.Int32
	handleStream(t, p, "f", func(_ context.Context, n int, send func(int) error) error {
		for i := range n {
			inside := now.Add(1)
			for m := most.Load(); inside > m && !most.CompareAndSwap(m, inside); m = most.Load() {
			}
			now.Add(-1)
			if err := send(i); err != nil {
				return err
			}
		}
		return nil
	})
	next, stop := iter.Pull2(client.Parts[int](ctx, c, "f", 1000, client.Ahead(1)))
	defer stop()
	first, err, ok := next()
	require.True(t, ok)
	require.NoError(t, err)
	require.Zero(t, first)
	for range 40 { // the function has a concurrency of 1, and its place is free while the first is not read
		require.Equal(t, counting(5), collect(t, client.Parts[int](ctx, c, "f", 5)))
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			require.Equal(t, counting(50), collect(t, client.Parts[int](ctx, c, "f", 50, client.Ahead(2))))
		})
	}
	all.Wait()
	for i := 1; i < 1000; i++ {
		part, err, ok := next()
		require.True(t, ok)
		require.NoError(t, err)
		require.Equal(t, i, part)
	}
	_, _, ok = next()
	require.False(t, ok)
	require.EqualValues(t, 1, most.Load(), "one runs at a time")
}

func TestCallToTheSameProviderInsideTheLoop(t *testing.T) {
	ctx, c, p := pair(t)
	handleStream(t, p, "f", countTo)
	n := 0
	for i, err := range client.Parts[int](ctx, c, "f", 40, client.Ahead(1)) {
		require.NoError(t, err)
		require.Equal(t, counting(i), append([]int(nil), collect(t, client.Parts[int](ctx, c, "f", i))...))
		n++
	}
	require.Equal(t, 40, n)
}

func TestLoopThatIsLeftEarlyCancelsAndFreesAll(t *testing.T) {
	ctx, c, p := pair(t)
	ended := make(chan error, 1)
	handleStream(t, p, "endless", func(ctx context.Context, _ struct{}, send func(*client.Tensor) error) (err error) {
		for err == nil {
			err = send(tensor(t, p, 1))
		}
		again := send(tensor(t, p, 1))
		if ctx.Err() == nil || again == nil {
			err = fmt.Errorf("not over: %v", again)
		}
		ended <- err
		return err
	})
	handleStream(t, p, "waits", func(ctx context.Context, _ struct{}, send func(int) error) error {
		send(1)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil
	})
	for range 10 {
		for x, err := range client.Parts[*client.Tensor](ctx, c, "endless") {
			require.NoError(t, err)
			x.Release()
			break
		}
		err := <-ended
		require.ErrorIs(t, err, protocol.ErrCancelled)
		require.ErrorIs(t, err, context.Canceled)
	}
	for _, err := range client.Parts[int](ctx, c, "waits") {
		require.NoError(t, err)
		break
	}
	require.ErrorIs(t, <-ended, context.Canceled)
	func() {
		defer func() { require.Equal(t, "mine", recover()) }()
		for x, err := range client.Parts[*client.Tensor](ctx, c, "endless") {
			require.NoError(t, err)
			x.Release()
			panic("mine")
		}
	}()
	require.ErrorIs(t, <-ended, context.Canceled)
	for _, err := range client.Parts[string](ctx, c, "endless") { // of another type than it gives
		require.ErrorIs(t, err, protocol.ErrInvalid)
	}
	require.ErrorIs(t, <-ended, context.Canceled)
	nothingLives(t, c, p)
	require.Eventually(t, func() bool { return c.Stats().Topics <= 2 && p.Stats().Topics <= 2 }, time.Minute, time.Millisecond, "places of streams that were left stay")
}

func TestStreamEndsWithItsContextAndDeadline(t *testing.T) {
	ctx, c, p := pair(t)
	ended := make(chan error, 1)
	handleStream(t, p, "endless", func(_ context.Context, _ struct{}, send func(int) error) (err error) {
		for i := 0; err == nil; i++ {
			err = send(i)
		}
		ended <- err
		return err
	})
	short, cancel := context.WithCancel(ctx)
	parts, err := failed(t, func(yield func(int, error) bool) {
		for part, err := range client.Parts[int](short, c, "endless") {
			if part == 3 {
				cancel()
			}
			if !yield(part, err) {
				return
			}
		}
	})
	require.Equal(t, counting(4), parts)
	require.ErrorIs(t, err, protocol.ErrCancelled)
	require.ErrorIs(t, <-ended, protocol.ErrCancelled)

	late, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	_, err = failed(t, func(yield func(int, error) bool) {
		for part, err := range client.Parts[int](late, c, "endless", client.Ahead(2)) {
			if err == nil {
				<-late.Done() // the function waits for room meanwhile
			}
			if !yield(part, err) {
				return
			}
		}
	})
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, <-ended, protocol.ErrTimeout)
}

// A part that is sent as its caller leaves: the topic for it may be gone before the provider has opened it.
func TestFirstPartForACallerThatLeaves(t *testing.T) {
	ctx, c, p := pair(t)
	const calls = 300
	ended := make(chan error, calls)
	r := handleStream(t, p, "late", func(ctx context.Context, _ struct{}, send func(int) error) error {
		until, _ := ctx.Deadline()
		for time.Until(until) > 100*time.Microsecond && ctx.Err() == nil {
		}
		var err error
		for err == nil {
			err = send(1)
		}
		ended <- err
		return err
	})
	for range calls {
		soon, cancel := context.WithTimeout(ctx, 2*time.Millisecond)
		_, err := failed(t, client.Parts[int](soon, c, "late"))
		require.ErrorIs(t, err, protocol.ErrTimeout)
		cancel()
	}
	require.NoError(t, r.Close(ctx))
	close(ended)
	for err := range ended {
		require.True(t, errors.Is(err, protocol.ErrCancelled) || errors.Is(err, protocol.ErrTimeout), "%v", err)
	}
}

func TestErrorInMidStreamComesBehindTheParts(t *testing.T) {
	ctx, c, p := pair(t)
	handleStream(t, p, "fails", func(_ context.Context, how string, send func(any) error) error {
		for i := range 5 {
			if err := send(i); err != nil {
				return err
			}
		}
		switch how {
		case "returns":
			return &client.RemoteError{Kind: "ValueError", Message: "enough"}
		case "panics":
			panic("no more")
		}
		if err := send(make(chan int)); !errors.Is(err, protocol.ErrInvalid) {
			return fmt.Errorf("a channel was sent: %v", err)
		}
		return send(5)
	})
	for how, text := range map[string]string{"returns": "ValueError: enough", "panics": "panic: no more", "goes on": ""} {
		parts, err := failed(t, client.Parts[int](ctx, c, "fails", how))
		if text == "" {
			require.NoError(t, err)
			require.Equal(t, counting(6), parts)
			continue
		}
		require.ErrorIs(t, err, protocol.ErrRemote)
		require.ErrorContains(t, err, text)
		require.Equal(t, counting(5), parts)
	}
}

func TestPartsAreSentFromManyGoroutinesAndNotBehindTheEnd(t *testing.T) {
	ctx, c, p := pair(t)
	late := make(chan func(int) error, 1)
	handleStream(t, p, "f", func(_ context.Context, n int, send func(int) error) error {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { send(i) })
		}
		all.Wait()
		late <- send
		return nil
	})
	require.ElementsMatch(t, counting(100), collect(t, client.Parts[int](ctx, c, "f", 100)))
	require.ErrorIs(t, (<-late)(1), protocol.ErrClosed)
}

func TestRegistrationClosesBehindAStream(t *testing.T) {
	ctx, c, p := pair(t)
	r := handleStream(t, p, "f", countTo)
	closed := make(chan error)
	n := 0
	for part, err := range client.Parts[int](ctx, c, "f", 100, client.Ahead(1)) {
		require.NoError(t, err)
		require.Equal(t, n, part)
		if n++; n == 1 {
			go func() { closed <- r.Close(ctx) }()
		}
	}
	require.Equal(t, 100, n)
	require.NoError(t, <-closed)
	_, err := failed(t, client.Parts[int](ctx, c, "f", 1))
	require.ErrorIs(t, err, protocol.ErrNoProvider)
}

func TestStreamsEndWithTheirSessions(t *testing.T) {
	address := newBroker(t)
	ctx, c, p := limited(t), connect(t, address), connect(t, address)
	ended := make(chan error, 1)
	handleStream(t, p, "endless", func(_ context.Context, _ struct{}, send func(int) error) (err error) {
		for err == nil {
			err = send(1)
		}
		ended <- err
		return err
	})
	next, stop := iter.Pull2(client.Parts[int](ctx, c, "endless"))
	defer stop()
	next()
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-ended, context.Canceled)
	for { // what was there before may come
		_, err, ok := next()
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrClosed)
			break
		}
		require.True(t, ok)
	}
	d := connect(t, address)
	next, stop = iter.Pull2(client.Parts[int](ctx, d, "endless"))
	defer stop()
	next()
	require.NoError(t, p.Close())
	require.ErrorIs(t, <-ended, protocol.ErrClosed)
	for {
		_, err, _ := next()
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrProviderDied)
			break
		}
	}
}
