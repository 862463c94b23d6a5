package integration

import (
	"context"
	"fmt"
	"io"
	"iter"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func init() {
	roles["stream"] = playStream
	roles["range"] = playRange
}

// series is what is asked of the function that the role stream provides: so many parts, each with a tensor. Behind Hold
// parts it says so, and waits for a line or its end.
type series struct {
	Parts int
	Hold  int `baton:",optional"`
}

// part is one of them.
type part struct {
	Number int
	X      *client.Tensor
}

// streamed is what the role stream says.
type streamed struct {
	Ready   bool
	Attempt int
	Held    bool
	Ended   string // the error with which it could send no more
}

func playStream(p *testkit.Child) error {
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
	if cfg.Idempotent {
		opts = append(opts, client.Idempotent())
	}
	r, err := client.HandleStream(c, cfg.Name, func(ctx context.Context, in series, send func(part) error) error {
		if err := p.Say(streamed{Attempt: client.CurrentCall(ctx).Attempt}); err != nil {
			return err
		}
		for i := range in.Parts {
			if i > 0 && i == in.Hold {
				if err := p.Say(streamed{Held: true}); err != nil {
					return err
				}
				select {
				case <-goOn:
				case <-ctx.Done():
				}
			}
			x, err := filled(ctx, c, 64, uint64(i))
			if err != nil {
				return err
			}
			if err := send(part{i, x}); err != nil {
				p.Say(streamed{Ended: string(protocol.CodeOf(err))})
				return err
			}
		}
		return nil
	}, opts...)
	if err != nil {
		return err
	}
	if err := p.Say(streamed{Ready: true}); err != nil {
		return err
	}
	return endProvider(c, r, <-ended)
}

// reading is a stream that is ranged over, part by part, each of which is verified.
type reading struct {
	next func() (part, error, bool)
	stop func()
	got  int
}

func read(ctx context.Context, c *client.Client, args ...any) *reading {
	r := &reading{}
	r.next, r.stop = iter.Pull2(client.Parts[part](ctx, c, work, args...))
	return r
}

// take takes the next part: false where the stream has ended, with its error.
func (r *reading) take() (ok bool, err error) {
	x, err, ok := r.next()
	if !ok || err != nil {
		r.stop()
		return false, err
	}
	defer x.X.Release()
	if x.Number != r.got {
		return false, fmt.Errorf("part %d came as number %d", x.Number, r.got)
	}
	words, err := client.Slice[uint64](x.X)
	if err == nil {
		err = verify(words, uint64(r.got))
	}
	r.got++
	return err == nil, err
}

// rest takes all that follows.
func (r *reading) rest() error {
	for {
		if ok, err := r.take(); !ok {
			return err
		}
	}
}

// rangeConfig is what the role range is told: it takes so many parts of a stream, says so, and waits.
type rangeConfig struct{ Parts, Take, Ahead int }

func playRange(p *testkit.Child) error {
	var cfg rangeConfig
	if err := p.Config(&cfg); err != nil {
		return err
	}
	c, err := p.Connect(client.WithName("caller"))
	if err != nil {
		return err
	}
	r := read(p.Context(), c, cfg.Parts, client.Ahead(cfg.Ahead))
	for range cfg.Take {
		if ok, err := r.take(); !ok {
			return fmt.Errorf("the stream has ended: %v", err)
		}
	}
	if err := p.Say(r.got); err != nil {
		return err
	}
	var line string
	if err := p.Hear(&line); err != io.EOF {
		return fmt.Errorf("heard %q: %v", line, err)
	}
	r.stop()
	return c.Close()
}
