package client

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Replaces has Set fail with ErrConflict, and change nothing, unless the revision that is set
// is this one.
func Replaces(revision uint64) SetOption {
	return setOption(func(s *protocol.NameSet) { s.Replaces = revision })
}

// extent is what is used of a storage, and where its copy begins.
type extent struct{ from, to, at uint64 }

// origin is a storage that a tensor lies in.
type origin struct {
	held    *memory.Holding
	storage int
}

func (t *Tensor) origin() origin { return origin{t.held, t.storage} }

// Compact returns a copy of a bundle in one storage, which is as large as what the bundle's
// tensors use: of a storage nothing goes along that none of them shows. What lay in the same
// bytes does so in the copy, strides and value stay, and RawMeta is the same; Set
// takes meta as an option. The bundle must not be written meanwhile. Errors: ErrClosed for tensors that were released,
// ErrUnsupported for those on a GPU, ErrInvalid for a nil bundle or tensor, those of AllocBundle.
func (c *Client) Compact(ctx context.Context, b *Bundle) (*Bundle, error) {
	if err := b.given(); err != nil {
		return nil, err
	}
	parts, total := map[origin]*extent{}, uint64(0)
	var order []*extent
	for i, t := range b.tensors {
		err := t.given(b.names[i])
		if err == nil {
			err = t.usable()
		}
		if err != nil {
			return nil, err
		}
		if t.storage < 0 {
			continue
		}
		if err := t.onHost(); err != nil {
			return nil, err
		}
		from, to := t.offset, t.held.Storages[t.storage].Bytes
		if span, err := t.dtype.SpanBytes(t.shape, t.strides); err == nil {
			to = min(to, from+uint64(span))
		} else {
			from = 0
		}
		p := parts[t.origin()]
		if p == nil {
			p = &extent{from, to, 0}
			parts[t.origin()] = p
			order = append(order, p)
		}
		p.from, p.to = min(p.from, from), max(p.to, to)
	}
	for _, p := range order {
		p.from &^= protocol.Alignment - 1 // as aligned as it was
		p.at = total
		total += (p.to - p.from + protocol.Alignment - 1) &^ (protocol.Alignment - 1)
	}
	out := &Bundle{held: memory.NewHolding(c.s.Memory), names: b.names, tree: b.tree, meta: b.meta}
	if total > 0 {
		if err := c.fill(ctx, out.held, total, c.opts.alloc); err != nil {
			return nil, err
		}
	}
	copied := map[*extent]bool{}
	for _, t := range b.tensors {
		v := t.view()
		v.c, v.held, v.readonly, v.storage = c, out.held, false, -1
		if p := parts[t.origin()]; p != nil {
			v.storage, v.offset = 0, p.at+t.offset-p.from
			if err := v.place(true); err != nil {
				out.Release()
				return nil, err
			}
			if !copied[p] {
				copied[p] = true
				copyExtent(v.region, t.region, p)
			}
		}
		out.tensors = append(out.tensors, v)
	}
	return out, nil
}

func copyExtent(to, from shm.Region, p *extent) {
	copy(to.Bytes(p.at, p.to-p.from), from.Bytes(p.from, p.to-p.from))
}
