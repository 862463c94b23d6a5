package langs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// playFunctions is what a program in every language does. With BATON_FUNCTIONS=serve it provides
//
//	fn/same   its one argument
//	fn/given  how many arguments came by position, and a dict of those that came by name
//	fn/scale  x, written in place: times by, which is given by name and else 2
//	fn/add    a + b, of 64 bits
//	fn/added  how often fn/add has run
//	fn/fail   the error ValueError with the message, caused by a KeyError
//	fn/own    an error of the kind test.Own, which each caller has named an error of its own for
//	fn/hold   sets the name fn/begun, waits until it is cancelled, and sets the name fn/cancelled
//	fn/wait   waits until it is cancelled or late
//	fn/waits  how many calls of fn/wait run
//	fn/die    kills the process
//
// says "ready", and goes on until its standard input ends. Else it calls them, fn/die last, and says "done" where all
// was as it has to be.
func playFunctions(p *testkit.Child) error {
	return serveOrCall(p, serveFunctions, callFunctions)
}

// serveOrCall plays the part that BATON_FUNCTIONS names.
func serveOrCall(p *testkit.Child, serve func(*testkit.Child, *client.Client) error, call func(context.Context, *client.Client) error) error {
	serves := os.Getenv("BATON_FUNCTIONS") == "serve"
	name := "caller"
	if serves {
		name = "provider"
	}
	c, err := p.Connect(client.WithName(name))
	if err != nil {
		return err
	}
	if serves {
		err = serve(p, c)
	} else if err = call(p.Context(), c); err == nil {
		err = p.Say("done")
	}
	if err != nil {
		return err
	}
	return c.Close()
}

// errOwn is what the kind test.Own is in Go.
var errOwn = errors.New("an own error")

func serveFunctions(p *testkit.Child, c *client.Client) error {
	type scaled struct {
		X  *client.Tensor
		By float64 `baton:"by,default=2"`
	}
	type numbers struct{ A, B int64 }
	type text struct{ Message string }
	var sum atomic.Int64
	mark := func(ctx context.Context, name string) error {
		_, err := c.Set(context.WithoutCancel(ctx), name, nil)
		return err
	}
	var all []*client.Registration
	var failed error
	add := func(r *client.Registration, err error) {
		all, failed = append(all, r), errors.Join(failed, err)
	}
	add(client.Handle(c, "fn/same", func(_ context.Context, x any) (any, error) { return x, nil }))
	add(client.Handle(c, "fn/given", func(_ context.Context, in client.Args) (any, error) {
		named, positions := map[string]any{}, 0
		for i := range in.Len() {
			if in.Name(i) == "" {
				positions++
				continue
			}
			v, err := in.At(i)
			if err != nil {
				return nil, err
			}
			named[in.Name(i)] = v
		}
		return []any{positions, named}, nil
	}))
	add(client.Handle(c, "fn/scale", func(_ context.Context, in scaled) (*client.Tensor, error) {
		x, err := client.Slice[float32](in.X)
		for i := range x {
			x[i] *= float32(in.By)
		}
		return in.X, err
	}))
	add(client.Handle(c, "fn/add", func(_ context.Context, in numbers) (int64, error) {
		sum.Add(1)
		return in.A + in.B, nil
	}))
	add(client.Handle(c, "fn/added", func(context.Context, struct{}) (int64, error) { return sum.Load(), nil }))
	add(client.Handle(c, "fn/fail", func(_ context.Context, in text) (any, error) {
		return nil, &client.RemoteError{Kind: "ValueError", Message: in.Message, Cause: &client.RemoteError{Kind: "KeyError", Message: "k"}}
	}))
	add(client.Handle(c, "fn/own", func(context.Context, struct{}) (any, error) {
		return nil, fmt.Errorf("it is %w", client.OfKind("test.Own", errOwn))
	}))
	add(client.Handle(c, "fn/hold", func(ctx context.Context, _ struct{}) (any, error) {
		if err := mark(ctx, "fn/begun"); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return nil, errors.Join(ctx.Err(), mark(ctx, "fn/cancelled"))
	}, client.Concurrency(2)))
	var waiting atomic.Int64
	add(client.Handle(c, "fn/wait", func(ctx context.Context, _ struct{}) (any, error) {
		waiting.Add(1)
		defer waiting.Add(-1)
		<-ctx.Done()
		return nil, ctx.Err()
	}, client.Concurrency(2)))
	add(client.Handle(c, "fn/waits", func(context.Context, struct{}) (int64, error) { return waiting.Load(), nil }))
	add(client.Handle(c, "fn/die", func(context.Context, struct{}) (any, error) {
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			return nil, err
		}
		return nil, self.Kill()
	}))
	return provideUntilEnd(p, all, failed)
}

// provideUntilEnd says "ready" once all is registered, and ends the registrations when the test is done with them.
func provideUntilEnd(p *testkit.Child, all []*client.Registration, failed error) error {
	if failed != nil {
		return failed
	}
	if err := p.Say("ready"); err != nil {
		return err
	}
	var line string
	if err := p.Hear(&line); err != io.EOF {
		return fmt.Errorf("heard %q: %v", line, err)
	}
	for _, r := range all {
		if err := r.Close(context.WithoutCancel(p.Context())); err != nil {
			return err
		}
	}
	return nil
}

func callFunctions(ctx context.Context, c *client.Client) error {
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{3})
	if err != nil {
		return err
	}
	defer x.Release()
	floats, err := client.Slice[float32](x)
	if err != nil {
		return err
	}
	copy(floats, []float32{1, 2, 3})
	large, _ := new(big.Int).SetString("-1180591620717411303424", 10)
	for _, v := range []any{nil, true, int64(-3), 0.5, "a\x00bü", []byte{0, 255}, large, []any{int64(1), map[string]any{"k": "v"}}} {
		back, err := client.Call[any](ctx, c, "fn/same", v)
		if err != nil || fmt.Sprint(back) != fmt.Sprint(v) {
			return fmt.Errorf("%v came back as %v: %v", v, back, err)
		}
	}
	given, err := client.Call[[]any](ctx, c, "fn/given", 1, 2, client.Arg("k", 3))
	if err != nil || fmt.Sprint(given) != "[2 map[k:3]]" {
		return fmt.Errorf("given %v: %v", given, err)
	}
	for by, want := range []float32{2: 3, 3: 9} {
		if want == 0 {
			continue
		}
		args := []any{x, client.Arg("by", by)}
		if by == 2 {
			args = args[:1]
		}
		y, err := client.Call[*client.Tensor](ctx, c, "fn/scale", args...)
		if err != nil {
			return err
		}
		y.Release()
	}
	if floats[0] != 6 || floats[2] != 18 {
		return fmt.Errorf("scaled to %v", floats)
	}
	if n, err := client.Call[int64](ctx, c, "fn/add", 2, client.Arg("b", true)); n != 3 || err != nil {
		return fmt.Errorf("added to %d: %v", n, err)
	}
	refused := [][]any{{"2", 1}, {0.5, 1}, {large, 1}, {x, 1}, {1}, {1, 2, 3}, {1, client.Arg("c", 2)}, {1, client.Arg("a", 2)}}
	for _, args := range refused {
		if _, err := client.Call[any](ctx, c, "fn/add", args...); !errors.Is(err, protocol.ErrInvalid) {
			return fmt.Errorf("add%v: %v", args, err)
		}
	}
	if n, err := client.Call[int64](ctx, c, "fn/added"); n != 1 || err != nil {
		return fmt.Errorf("add has run %d times: %v", n, err)
	}
	var remote *client.RemoteError
	_, err = client.Call[any](ctx, c, "fn/fail", "no such thing")
	if !errors.As(err, &remote) || remote.Kind != "ValueError" || remote.Message != "no such thing" || remote.Cause == nil || remote.Cause.Kind != "KeyError" {
		return fmt.Errorf("failed with %v, by %v", err, remote)
	}
	if err := client.RegisterError("test.Own", func(*client.RemoteError) error { return errOwn }); err != nil {
		return err
	}
	if _, err = client.Call[any](ctx, c, "fn/own"); !errors.Is(err, errOwn) || !strings.Contains(err.Error(), "own") {
		return fmt.Errorf("failed with %v", err)
	}
	if err := holdFunction(ctx, c); err != nil {
		return err
	}
	if err := lateFunction(ctx, c); err != nil {
		return err
	}
	if _, err := client.Call[any](ctx, c, "fn/die"); !errors.Is(err, protocol.ErrProviderDied) {
		return fmt.Errorf("a provider that died: %v", err)
	}
	if _, err := client.Call[any](ctx, c, "fn/added"); !errors.Is(err, protocol.ErrNoProvider) {
		return fmt.Errorf("no provider: %v", err)
	}
	return nil
}

// holdFunction has a call of fn/hold be cancelled.
func holdFunction(ctx context.Context, c *client.Client) error {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := client.Call[any](within, c, "fn/hold")
		ended <- err
	}()
	if err := taken(ctx, c, "fn/begun"); err != nil {
		return err
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, protocol.ErrCancelled) {
		return fmt.Errorf("a call that was cancelled: %v", err)
	}
	return taken(ctx, c, "fn/cancelled")
}

// lateFunction has a call of fn/wait end at its deadline, and waits until the function, where it had begun, has too.
func lateFunction(ctx context.Context, c *client.Client) error {
	within, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := client.Call[any](within, c, "fn/wait"); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, protocol.ErrTimeout) {
		return fmt.Errorf("a call that was to be late: %v", err)
	}
	for {
		if n, err := client.Call[int64](ctx, c, "fn/waits"); n == 0 || err != nil {
			return err
		}
	}
}

// taken waits for a name and deletes it.
func taken(ctx context.Context, c *client.Client, name string) error {
	w, err := c.Watch(ctx, name)
	if err != nil {
		return err
	}
	defer w.Close()
	b, err := w.Next(ctx)
	if err != nil {
		return err
	}
	b.Release()
	return c.Delete(ctx, name)
}
