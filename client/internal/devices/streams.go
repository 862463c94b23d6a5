package devices

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/protocol"
)

// Part is a part of a message or a name that lies on a GPU.
type Part struct {
	Held *memory.Holding
	On   *gpu.Segment
}

// OrderSend makes the stream of a send come after what its tensors wait for, and
// returns when it will have written them.
func (d *Set) OrderSend(ctx context.Context, parts []Part, s gpu.Stream) (gpu.Point, error) {
	if err := s.Check(); err != nil {
		return gpu.Point{}, err
	}
	g := parts[0].On.GPU
	var before []gpu.Point // the last of each stream: it comes after its earlier ones
	for _, t := range parts {
		if t.On.GPU != g && s != gpu.NoStream {
			return gpu.Point{}, protocol.Errorf(protocol.CodeInvalid, "send them apart, or synchronise and use NoStream",
				"one message with tensors on %s and %s has no common stream", g.Device(), t.On.GPU.Device())
		}
		if s == gpu.NoStream {
			if err := t.Held.Written(ctx); err != nil {
				return gpu.Point{}, err
			}
		} else if u := t.Held.Device.Load(); u != nil {
			before = gpu.Last(before, u.Written)
		}
	}
	if s == gpu.NoStream {
		return gpu.Point{}, nil
	}
	for _, p := range before {
		if err := d.order.Follow(ctx, g, s, p); err != nil {
			return gpu.Point{}, err
		}
	}
	done, err := d.order.Mark(g, s)
	if err != nil {
		return gpu.Point{}, err
	}
	for _, t := range parts {
		t.Held.Used().Use(g, s, done)
	}
	return done, nil
}

// AwaitWritten waits until everything on the GPUs of these is done: what a name or
// a handle names has no stream.
func (d *Set) AwaitWritten(ctx context.Context, parts ...Part) error {
	done := map[*gpu.GPU]bool{}
	for _, t := range parts {
		if err := t.Held.Written(ctx); err != nil {
			return err
		}
		if g := t.On.GPU; !done[g] {
			done[g] = true
			if err := g.Synchronize(); err != nil {
				return err
			}
		}
	}
	return nil
}

// UseOn has a stream use a holding on a GPU: it waits until that is written, and the release
// waits for the stream.
func (d *Set) UseOn(ctx context.Context, p Part, s gpu.Stream) error {
	if err := p.Held.CheckLenders(); err != nil {
		return err
	}
	u := p.Held.Used()
	if err := u.Follow(ctx, d.order, p.On.GPU, s); err != nil {
		return err
	}
	u.Use(p.On.GPU, s, gpu.Point{})
	return nil
}

// WrittenBy notes that a fresh holding on a GPU is written when a stream has come as
// far as it was told.
func (d *Set) WrittenBy(p Part, s gpu.Stream) error {
	done, err := d.order.Mark(p.On.GPU, s)
	if err == nil && done.IsSet() {
		p.Held.Used().Written = done
		p.Held.Used().Use(p.On.GPU, s, done)
	}
	return err
}
