package langs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync/atomic"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// playStreams is what a program in every language does. With BATON_FUNCTIONS=serve it provides
//
//	st/count    n parts, each a list of its number and a tensor of three floats that are the number; returns n, or
//	            None where a stream returns nothing in the language
//	st/forever  the numbers from 0 on; with hold it sets the name st/begun and waits before the first until it is
//	            cancelled. It sets the name st/left at its end
//	st/sent     how many parts st/forever has given since it has begun the last time
//	st/fail     two parts, then the error ValueError enough
//	st/die      n parts, then it kills the process
//	st/step     adds one to the float of x, and gives i
//	st/apply    calls f with each number below n, as i, and a tensor of one float that is the number, as st/step
//	            takes them, and gives the sum of what f gives
//	st/keep     keeps the function f
//	st/late     the code of the error with which a call of that function ends
//	st/same     the function f
//
// says "ready", and goes on until its standard input ends. Else it calls them, st/die last, and says "done" where all was
// as it has to be.
func playStreams(p *testkit.Child) error {
	return serveOrCall(p, serveStreams, callStreams)
}

// floats makes a tensor of n floats that are all of one value.
func floats(ctx context.Context, c *client.Client, n int, value float32) (*client.Tensor, error) {
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{int64(n)})
	if err != nil {
		return nil, err
	}
	all, err := client.Slice[float32](x)
	for i := range all {
		all[i] = value
	}
	return x, err
}

// stepped is the argument of st/step.
type stepped struct {
	I int
	X *client.Tensor
}

func step(_ context.Context, in stepped) (int, error) {
	x, err := client.Slice[float32](in.X)
	if err == nil {
		x[0]++
	}
	return in.I, err
}

// applyTo calls a function as st/step is.
func applyTo(ctx context.Context, c *client.Client, f *client.Function, i int) (int, error) {
	x, err := floats(ctx, c, 1, float32(i))
	if err != nil {
		return 0, err
	}
	defer x.Release()
	n, err := client.CallOf[int](ctx, f, i, x)
	if err != nil {
		return 0, err
	}
	if all, err := client.Slice[float32](x); err != nil || all[0] != float32(i)+1 {
		return 0, fmt.Errorf("%v of step %d: %v", all, i, err)
	}
	return n, nil
}

func serveStreams(p *testkit.Child, c *client.Client) error {
	type count struct{ N int }
	type forever struct {
		Hold bool `baton:",optional"`
	}
	type applied struct {
		F *client.Function
		N int
	}
	type one struct{ F *client.Function }
	var sent atomic.Int64
	var kept *client.Function
	var all []*client.Registration
	var failed error
	add := func(r *client.Registration, err error) {
		all, failed = append(all, r), errors.Join(failed, err)
	}
	add(client.HandleStream(c, "st/count", func(ctx context.Context, in count, send func([]any) error) error {
		for i := range in.N {
			x, err := floats(ctx, c, 3, float32(i))
			if err == nil {
				err = send([]any{i, x})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	add(client.HandleStream(c, "st/forever", func(ctx context.Context, in forever, send func(int) error) error {
		sent.Store(0)
		var err error
		if in.Hold {
			_, err = c.Set(ctx, "st/begun", nil)
			<-ctx.Done()
		}
		for i := 0; err == nil; i++ {
			if err = send(i); err == nil {
				sent.Add(1)
			}
		}
		_, marked := c.Set(context.WithoutCancel(ctx), "st/left", nil)
		return errors.Join(err, marked)
	}))
	add(client.Handle(c, "st/sent", func(context.Context, struct{}) (int64, error) { return sent.Load(), nil }))
	add(client.HandleStream(c, "st/fail", func(_ context.Context, _ struct{}, send func(int) error) error {
		if err := errors.Join(send(0), send(1)); err != nil {
			return err
		}
		return &client.RemoteError{Kind: "ValueError", Message: "enough"}
	}))
	add(client.HandleStream(c, "st/die", func(_ context.Context, in count, send func(int) error) error {
		for i := range in.N {
			if err := send(i); err != nil {
				return err
			}
		}
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return err
		}
		return self.Kill()
	}))
	add(client.Handle(c, "st/step", step))
	add(client.Handle(c, "st/apply", func(ctx context.Context, in applied) (int, error) {
		sum := 0
		for i := range in.N {
			n, err := applyTo(ctx, c, in.F, i)
			if err != nil {
				return 0, err
			}
			sum += n
		}
		return sum, nil
	}))
	add(client.Handle(c, "st/keep", func(_ context.Context, in one) (any, error) {
		kept = in.F
		return nil, nil
	}))
	add(client.Handle(c, "st/late", func(ctx context.Context, _ struct{}) (string, error) {
		_, err := applyTo(ctx, c, kept, 0)
		return string(protocol.CodeOf(err)), nil
	}))
	add(client.Handle(c, "st/same", func(_ context.Context, in one) (*client.Function, error) { return in.F, nil }))
	return provideUntilEnd(p, all, failed)
}

// numbers takes the parts of a stream that are numbers from 0 on.
type numbers struct {
	next func() (int, error, bool)
	stop func()
	due  int
}

func streamOf(ctx context.Context, c *client.Client, name string, args ...any) *numbers {
	s := &numbers{}
	s.next, s.stop = iter.Pull2(client.Parts[int](ctx, c, name, args...))
	return s
}

// take takes so many parts.
func (s *numbers) take(n int) error {
	for range n {
		i, err, ok := s.next()
		if err != nil || !ok || i != s.due {
			return fmt.Errorf("part %d where %d is due: %t, %v", i, s.due, ok, err)
		}
		s.due++
	}
	return nil
}

// ends says how the stream ends, which has no more parts.
func (s *numbers) ends() error {
	defer s.stop()
	i, err, ok := s.next()
	if err == nil && ok {
		return fmt.Errorf("part %d behind the end", i)
	}
	return err
}

// ahead waits until st/forever has given so many parts, and no more.
func ahead(ctx context.Context, c *client.Client, want int64) error {
	for looks := 0; looks < 5; {
		n, err := client.Call[int64](ctx, c, "st/sent")
		if err != nil || n > want {
			return fmt.Errorf("%d parts were given of %d: %v", n, want, err)
		}
		if n == want {
			looks++
		}
	}
	return nil
}

func callStreams(ctx context.Context, c *client.Client) error {
	for _, n := range []int{0, 3, 150} {
		got := 0
		for part, err := range client.Parts[[]any](ctx, c, "st/count", n, client.Ahead(1+n/3)) {
			if err != nil {
				return err
			}
			x, is := part[1].(*client.Tensor)
			if !is || part[0] != int64(got) {
				return fmt.Errorf("part %d is %v", got, part)
			}
			all, err := client.Slice[float32](x)
			if err != nil || len(all) != 3 || all[2] != float32(got) {
				return fmt.Errorf("part %d has %v: %v", got, all, err)
			}
			x.Release()
			got++
		}
		if got != n {
			return fmt.Errorf("%d parts of %d", got, n)
		}
	}

	first := streamOf(ctx, c, "st/forever", client.Ahead(2))
	err := first.take(1)
	if err == nil {
		err = ahead(ctx, c, 3)
	}
	if err == nil {
		err = first.take(2)
	}
	if err == nil {
		err = ahead(ctx, c, 5)
	}
	if err != nil {
		return err
	}
	second := streamOf(ctx, c, "st/forever") // in the place of the first
	if err = second.take(3); err != nil {
		return err
	}
	for _, s := range []*numbers{second, first} {
		if err = s.take(1); err != nil {
			return err
		}
		s.stop()
		if err = taken(ctx, c, "st/left"); err != nil {
			return err
		}
	}
	holding, cancel := context.WithCancel(ctx)
	defer cancel()
	third := streamOf(holding, c, "st/forever", true)
	ended := make(chan error, 1)
	go func() { ended <- third.ends() }()
	if err = taken(ctx, c, "st/begun"); err != nil {
		return err
	}
	cancel()
	if err = <-ended; !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a stream that was cancelled: %v", err)
	}
	if err = taken(ctx, c, "st/left"); err != nil {
		return err
	}

	fails := streamOf(ctx, c, "st/fail")
	if err = fails.take(2); err != nil {
		return err
	}
	var remote *client.RemoteError
	if err = fails.ends(); !errors.As(err, &remote) || remote.Kind != "ValueError" || remote.Message != "enough" {
		return fmt.Errorf("a stream that fails: %v", err)
	}
	if err = callLent(ctx, c); err != nil {
		return err
	}
	dies := streamOf(ctx, c, "st/die", 3)
	if err = dies.take(3); err != nil {
		return err
	}
	if err = dies.ends(); !errors.Is(err, protocol.ErrProviderDied) {
		return fmt.Errorf("a stream whose provider has died: %v", err)
	}
	if _, err = client.Call[any](ctx, c, "st/sent"); !errors.Is(err, protocol.ErrNoProvider) {
		return fmt.Errorf("no provider: %v", err)
	}
	return nil
}

// callLent gives functions as arguments.
func callLent(ctx context.Context, c *client.Client) error {
	opened, err := c.Function(ctx, "st/step")
	if err != nil {
		return err
	}
	defer opened.Close()
	within := client.Func(func(ctx context.Context, in stepped) (int, error) {
		return client.CallOf[int](ctx, opened, in.I, in.X)
	})
	for _, f := range []any{client.Func(step), within, opened} {
		if sum, err := client.Call[int](ctx, c, "st/apply", f, 10); err != nil || sum != 45 {
			return fmt.Errorf("the sum is %d: %v", sum, err)
		}
	}
	var remote *client.RemoteError
	failing := client.Func(func(context.Context, stepped) (int, error) {
		return 0, &client.RemoteError{Kind: "ValueError", Message: "no step"}
	})
	if _, err := client.Call[int](ctx, c, "st/apply", failing, 10); !errors.As(err, &remote) || remote.Kind != "ValueError" || remote.Message != "no step" {
		return fmt.Errorf("the function that was given fails: %v", err)
	}
	if _, err := client.Call[any](ctx, c, "st/keep", client.Func(step)); err != nil {
		return err
	}
	if code, err := client.Call[string](ctx, c, "st/late"); err != nil || code != "Closed" {
		return fmt.Errorf("behind the end of its call: %s, %v", code, err)
	}
	same, err := client.Call[*client.Function](ctx, c, "st/same", opened)
	if err != nil {
		return err
	}
	defer same.Close()
	if n, err := applyTo(ctx, c, same, 7); n != 7 || err != nil {
		return fmt.Errorf("a function that came back gives %d: %v", n, err)
	}
	return nil
}
