package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	roles["provide"] = playProvide
	roles["call"] = playCall
}

// provideConfig is what the role provide is told: it provides a function, says "ready", and ends when the test is
// done with it.
type provideConfig struct {
	Name        string
	Concurrency int
	Idempotent  bool
	Exclusive   bool
	Override    bool
}

// task is what is asked of the function: it says begun of itself, with Hold it then waits for a line or its end.
type task struct {
	X    *client.Tensor `baton:",optional"`
	Hold bool           `baton:",optional"`
	Fail bool           `baton:",optional"`
	Exit bool           `baton:",optional"`
	Exec bool           `baton:",optional"`
}

// done is what the function returns.
type done struct {
	PID     int
	Attempt int
	X       *client.Tensor
}

// begun is what a provider says of each call that it runs.
type begun struct {
	Ready   bool
	Attempt int
	Ended   string // the context's error, of one that held
	Held    bool
}

func playProvide(p *testkit.Child) error {
	var cfg provideConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect(client.WithName("provider"))
	if err != nil {
		return err
	}
	goOn, ended := lines(p)
	var opts []client.HandleOption
	for is, o := range map[*bool]client.HandleOption{&cfg.Idempotent: client.Idempotent(), &cfg.Exclusive: client.Exclusive(), &cfg.Override: client.Override()} {
		if *is {
			opts = append(opts, o)
		}
	}
	if cfg.Concurrency > 0 {
		opts = append(opts, client.Concurrency(cfg.Concurrency))
	}
	r, err := client.Handle(c, cfg.Name, func(ctx context.Context, in task) (done, error) {
		attempt := client.CurrentCall(ctx).Attempt
		if err := p.Say(begun{Attempt: attempt}); err != nil {
			return done{}, err
		}
		if in.Fail {
			return done{}, &client.RemoteError{Kind: "ValueError", Message: "as asked"}
		}
		if in.Exit {
			os.Exit(3)
		}
		if in.Exec {
			return done{}, sys.Exec("/bin/sleep", []string{"sleep", "0"}, nil)
		}
		if in.Hold {
			select {
			case <-ctx.Done():
				return done{}, p.Say(begun{Held: true, Ended: ctx.Err().Error()})
			case <-goOn:
			}
		}
		return done{os.Getpid(), attempt, in.X}, nil
	}, opts...)
	if err != nil {
		return err
	}
	if err := p.Say(begun{Ready: true}); err != nil {
		return err
	}
	return endProvider(c, r, <-ended)
}

// lines gives what the test says from here on, and how that has ended.
func lines(p *testkit.Child) (said <-chan struct{}, ended <-chan error) {
	lines, end := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			var line string
			if err := p.Hear(&line); err != nil {
				end <- err
				return
			}
			lines <- struct{}{}
		}
	}()
	return lines, end
}

// endProvider ends the role of a provider with which the test is done, as err says.
func endProvider(c *client.Client, r *client.Registration, err error) error {
	if err != io.EOF {
		return err
	}
	if err := r.Close(context.Background()); err != nil {
		return err
	}
	return c.Close()
}

// awaitEnd waits until the test is done with the role.
func awaitEnd(p *testkit.Child) error {
	var line string
	err := p.Hear(&line)
	if err == nil {
		return fmt.Errorf("heard %q", line)
	}
	return err
}

// callConfig is what the role call is told: it makes calls with a tensor side by side, and says how each ended.
type callConfig struct {
	Name  string
	Calls int
	Hold  bool
	// Cancel: it cancels them when it hears a line.
	Cancel bool
}

// outcome is how a call ended.
type outcome struct {
	PID     int
	Attempt int
	Code    protocol.Code
	Text    string
	Of      any // the pid of a provider that died
}

// callOnce makes a call with a tensor, and verifies that it comes back.
func callOnce(ctx context.Context, c *client.Client, name string, args ...any) (o outcome) {
	x, err := filled(ctx, c, 64, 7)
	if err != nil {
		return outcome{Code: protocol.CodeOf(err), Text: err.Error()}
	}
	defer x.Release()
	d, err := client.Call[done](ctx, c, name, append([]any{x}, args...)...)
	if err != nil {
		o = outcome{Code: protocol.CodeOf(err), Text: err.Error()}
		var e *protocol.Error
		if errors.As(err, &e) {
			o.Of = e.Detail["pid"]
		}
		return o
	}
	defer d.X.Release()
	words, err := client.Slice[uint64](d.X)
	if err == nil {
		err = verify(words, 7)
	}
	if err != nil {
		return outcome{Code: "wrong", Text: err.Error()}
	}
	return outcome{PID: d.PID, Attempt: d.Attempt}
}

func playCall(p *testkit.Child) error {
	var cfg callConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect(client.WithName("caller"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(p.Context())
	defer cancel()
	if cfg.Cancel {
		go func() {
			var line string
			p.Hear(&line)
			cancel()
		}()
	}
	var all sync.WaitGroup
	for range max(1, cfg.Calls) {
		all.Go(func() { p.Say(callOnce(ctx, c, cfg.Name, client.Arg("hold", cfg.Hold))) })
	}
	all.Wait()
	var line string
	if !cfg.Cancel {
		if err := p.Hear(&line); err != io.EOF {
			return fmt.Errorf("heard %q: %v", line, err)
		}
	}
	return c.Close()
}
