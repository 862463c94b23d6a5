package integration

import (
	"context"
	"fmt"
	"io"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	roles["apply"] = playApply
	roles["give"] = playGive
}

// application is what is asked of the function that the role apply provides: it calls a function so many times, each
// time with a tensor that comes back. Alone: not within its own call, by which it would end.
type application struct {
	F     *client.Function
	Times int
	Alone bool `baton:",optional"`
}

// applied is what it says: that it is ready, that it was called, and how a call of the function that it was given failed.
type applied struct {
	Ready, Began bool
	Code         protocol.Code
}

func apply(ctx context.Context, c *client.Client, in application, say func(any) error) (int, error) {
	if in.Alone {
		ctx = context.Background()
	}
	for i := range in.Times {
		x, err := filled(ctx, c, 64, uint64(i))
		if err != nil {
			return i, err
		}
		y, err := client.CallOf[*client.Tensor](ctx, in.F, x, client.Arg("number", i))
		x.Release()
		if err != nil {
			say(applied{Code: protocol.CodeOf(err)})
			return i, err
		}
		words, err := client.Slice[uint64](y)
		if err == nil {
			err = verify(words, uint64(i)+1)
		}
		y.Release()
		if err != nil {
			return i, err
		}
	}
	return in.Times, nil
}

func playApply(p *testkit.Child) error {
	var cfg provideConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect(client.WithName("provider"))
	if err != nil {
		return err
	}
	r, err := client.Handle(c, cfg.Name, func(ctx context.Context, in application) (int, error) {
		if err := p.Say(applied{Began: true}); err != nil {
			return 0, err
		}
		return apply(ctx, c, in, p.Say)
	})
	if err != nil {
		return err
	}
	if err := p.Say(applied{Ready: true}); err != nil {
		return err
	}
	return endProvider(c, r, awaitEnd(p))
}

// step is what a function that is given gets.
type step struct {
	X      *client.Tensor
	Number int
}

// next fills a tensor anew.
func next(x *client.Tensor, seed uint64) (*client.Tensor, error) {
	words, err := client.Slice[uint64](x)
	if err == nil {
		err = verify(words, seed)
	}
	if err == nil {
		fill(words, seed+1)
	}
	return x, err
}

// giveConfig is what the role give is told: it calls the function with one of its own, which says so at a call of that
// number, and does not return.
type giveConfig struct {
	Times, Hold int
	Alone       bool
}

func playGive(p *testkit.Child) error {
	var cfg giveConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect(client.WithName("caller"))
	if err != nil {
		return err
	}
	n, err := client.Call[int](p.Context(), c, work, client.Func(func(ctx context.Context, in step) (*client.Tensor, error) {
		if in.Number == cfg.Hold {
			if err := p.Say("holds"); err != nil {
				return nil, err
			}
			<-ctx.Done()
		}
		return next(in.X, uint64(in.Number))
	}), cfg.Times, cfg.Alone)
	if err != nil {
		return err
	}
	if err := p.Say(fmt.Sprint(n)); err != nil {
		return err
	}
	if err := awaitEnd(p); err != io.EOF {
		return err
	}
	return c.Close()
}
