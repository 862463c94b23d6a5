package client

import (
	"context"

	"github.com/baton-ipc/baton/protocol"
)

// part is a part of a message or a name that lies on a GPU.
type part struct {
	held *holding
	on   *deviceSegment
}

// orderSend makes the stream of a send come after what its tensors wait for, and
// returns when it will have written them.
func (d *deviceSet) orderSend(ctx context.Context, parts []part, s stream) (streamPoint, error) {
	if err := s.check(); err != nil {
		return streamPoint{}, err
	}
	g := parts[0].on.gpu
	var before []streamPoint // the last of each stream: it comes after its earlier ones
	for _, t := range parts {
		if t.on.gpu != g && s != noStream {
			return streamPoint{}, protocol.Errorf(protocol.CodeInvalid, "send them apart, or synchronise and use NoStream",
				"one message with tensors on %s and %s has no common stream", g.Device(), t.on.gpu.Device())
		}
		if s == noStream {
			if err := t.held.written(ctx); err != nil {
				return streamPoint{}, err
			}
		} else if u := t.held.device.Load(); u != nil {
			before = last(before, u.written)
		}
	}
	if s == noStream {
		return streamPoint{}, nil
	}
	for _, p := range before {
		if err := d.order.follow(ctx, g, s, p); err != nil {
			return streamPoint{}, err
		}
	}
	done, err := d.order.mark(g, s)
	if err != nil {
		return streamPoint{}, err
	}
	for _, t := range parts {
		t.held.used().use(g, s, done)
	}
	return done, nil
}

// settleWritten waits until everything on the GPUs of these is done: what a name or
// a handle names has no stream.
func (d *deviceSet) settleWritten(ctx context.Context, parts ...part) error {
	done := map[*gpu]bool{}
	for _, t := range parts {
		if err := t.held.written(ctx); err != nil {
			return err
		}
		if g := t.on.gpu; !done[g] {
			done[g] = true
			if err := g.Synchronize(); err != nil {
				return err
			}
		}
	}
	return nil
}

// useOn has a stream use a holding on a GPU: it waits until that is written, and the release
// waits for the stream.
func (d *deviceSet) useOn(ctx context.Context, p part, s stream) error {
	if err := p.held.checkLenders(); err != nil {
		return err
	}
	u := p.held.used()
	if err := u.follow(ctx, d.order, p.on.gpu, s); err != nil {
		return err
	}
	u.use(p.on.gpu, s, streamPoint{})
	return nil
}

// writtenBy notes that a fresh holding on a GPU is written when a stream has come as
// far as it was told.
func (d *deviceSet) writtenBy(p part, s stream) error {
	done, err := d.order.mark(p.on.gpu, s)
	if err == nil && done.isSet() {
		p.held.used().written = done
		p.held.used().use(p.on.gpu, s, done)
	}
	return err
}
