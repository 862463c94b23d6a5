package langs

import (
	"context"
	"fmt"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// wordAt is the word that stands at place i of a tensor with a seed, in every
// language.
func wordAt(seed uint64, i int) uint64 {
	z := seed*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9
	z ^= z >> 29
	return z * 0x94d049bb133111eb
}

// seedOf is the seed of a tensor by its first word: wordAt undone.
func seedOf(first uint64) uint64 {
	z := first * 0x319642b2d24d8ec3
	z ^= z>>29 ^ z>>58
	return z * 0xf1de83e19937733d
}

func (d *goDriver) filled(ctx context.Context, seed uint64, shape ...int64) (*client.Tensor, error) {
	t, err := d.c.Alloc(ctx, dlpack.Uint64, shape)
	if err != nil {
		return nil, err
	}
	s, err := client.Slice[uint64](t)
	if err != nil {
		t.Release()
		return nil, err
	}
	for i := range s {
		s[i] = wordAt(seed, i)
	}
	return t, nil
}

type hand func(ctx context.Context, v any, opts ...client.SendOption) error

func (d *goDriver) sendAll(ctx context.Context, o *order, to hand) error {
	for seed := o.Seed; seed < o.Seed+o.Count; seed++ {
		if o.Lone {
			t, err := d.filled(ctx, seed, o.Words, 2)
			if err == nil {
				err = to(ctx, t)
				t.Release()
			}
			if err != nil {
				return err
			}
			continue
		}
		err := d.value(ctx, seed, o, func(v any) error {
			return to(ctx, v, client.Meta(map[string]uint64{"seed": seed}))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// value makes the value of a seed and lets it go after its use.
func (d *goDriver) value(ctx context.Context, seed uint64, o *order, use func(any) error) error {
	words := o.Words
	whole, err := d.filled(ctx, seed, words)
	if err != nil {
		return err
	}
	defer whole.Release()
	half, err := whole.Slice(0, words/2, words)
	if err != nil {
		return err
	}
	other, err := d.filled(ctx, seed+1, 3)
	if err != nil {
		return err
	}
	defer other.Release()
	all := map[string]*client.Tensor{"whole": whole, "half": half, "a/b": other}
	for i := range o.Wide {
		x, err := d.filled(ctx, seed+uint64(i), 1)
		if err != nil {
			return err
		}
		defer x.Release()
		all[fmt.Sprintf("x%03d", i)] = x
	}
	return use(all)
}

func verify(t *client.Tensor, seed uint64) error {
	if t == nil {
		return fmt.Errorf("a tensor of seed %d is missing", seed)
	}
	words, err := client.Slice[uint64](t.AsReadOnly())
	if err != nil {
		return err
	}
	for i, w := range words {
		if w != wordAt(seed, i) {
			return fmt.Errorf("word %d of seed %d", i, seed)
		}
	}
	return nil
}

// look checks the value of a seed.
func (d *goDriver) look(b *client.Bundle, seed uint64, write bool) (map[string]any, error) {
	if lone := b.Tensor(""); lone != nil {
		if err := verify(lone, seed); err != nil {
			return nil, err
		}
		return map[string]any{"readonly": lone.ReadOnly()}, writeAll(lone, seed, write)
	}
	whole, half := b.Tensor("whole"), b.Tensor("half")
	if err := verify(whole, seed); err != nil {
		return nil, err
	}
	if err := verify(b.Tensor("a/b"), seed+1); err != nil {
		return nil, err
	}
	words, err := client.Slice[uint64](whole.AsReadOnly())
	if err != nil {
		return nil, err
	}
	if half == nil || half.Len() != whole.Len()-whole.Len()/2 {
		return nil, fmt.Errorf("half of seed %d is %v", seed, half)
	}
	tail, err := client.Slice[uint64](half.AsReadOnly())
	if err != nil {
		return nil, err
	}
	if &tail[0] != &words[len(words)/2] {
		return nil, fmt.Errorf("half of seed %d is not in the memory of the whole", seed)
	}
	return map[string]any{"readonly": whole.ReadOnly()}, writeAll(whole, seed, write)
}

// writeAll fills a tensor with a seed, where that is asked for.
func writeAll(t *client.Tensor, seed uint64, write bool) error {
	if !write {
		return nil
	}
	words, err := client.Slice[uint64](t)
	for i := range words {
		words[i] = seed
	}
	return err
}

func (d *goDriver) message(m *client.Message, o *order) (map[string]any, error) {
	if !o.Hold {
		defer m.Release()
	}
	var meta struct{ Seed uint64 }
	err := m.Meta(&meta)
	var b *client.Bundle
	if err == nil {
		b, err = m.Bundle()
	}
	if err == nil && b.Tensor("") != nil {
		var words []uint64
		if words, err = client.Slice[uint64](b.Tensor("").AsReadOnly()); err == nil && len(words) > 0 { // a liar's may be empty
			meta.Seed = seedOf(words[0])
		}
	}
	if o.Hold {
		again := func() error { _, err := d.look(b, meta.Seed, false); return err }
		d.held = append(d.held, held{again, m.Release})
	}
	if err != nil {
		return nil, err
	}
	out, err := d.look(b, meta.Seed, o.Write)
	if err == nil {
		out["seed"], out["sequence"], out["lost"] = meta.Seed, m.Sequence, m.Lost
	}
	return out, err
}

func (d *goDriver) named(ctx context.Context, o *order) (map[string]any, error) {
	switch o.Do {
	case "delete":
		return nil, d.c.Delete(ctx, o.Name)
	case "set":
		var revision uint64
		err := d.value(ctx, o.Seed, o, func(v any) (err error) {
			opts := []client.SetOption{client.Meta(map[string]uint64{"seed": o.Seed})}
			if o.Live {
				opts = append(opts, client.Live())
			}
			revision, err = d.c.Set(ctx, o.Name, v, opts...)
			return err
		})
		return map[string]any{"revision": revision}, err
	}
	b, err := d.c.Get(ctx, o.Name)
	if err != nil {
		return nil, err
	}
	if o.Hold {
		again := func() error { _, err := d.look(b, o.Seed, false); return err }
		d.held = append(d.held, held{again, b.Release})
	} else {
		defer b.Release()
	}
	var meta struct{ Seed uint64 }
	if err := b.Meta(&meta); err != nil {
		return nil, err
	}
	out, err := d.look(b, o.Seed, o.Write)
	if err == nil {
		out["revision"], out["seed"] = b.Revision, meta.Seed
	}
	return out, err
}

func (d *goDriver) handles(ctx context.Context, o *order) (map[string]any, error) {
	if o.Do == "handle" {
		t, err := d.filled(ctx, o.Seed, o.Words)
		if err != nil {
			return nil, err
		}
		defer t.Release()
		h, err := t.Handle(ctx)
		return map[string]any{"handle": h}, err
	}
	h, err := protocol.ParseHandle(o.Handle)
	if err != nil {
		return nil, err
	}
	t, err := d.c.Open(ctx, h)
	if err != nil {
		return nil, err
	}
	if o.Hold {
		d.held = append(d.held, held{func() error { return verify(t, o.Seed) }, t.Release})
	} else {
		defer t.Release()
	}
	return map[string]any{"readonly": t.ReadOnly()}, verify(t, o.Seed)
}
