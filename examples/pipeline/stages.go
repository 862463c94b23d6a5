package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/digits"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/termtext"
)

// perBatch is how many pictures a batch has.
const perBatch = 32

// note is the meta of a batch: each stage adds a line to its trace.
type note struct {
	ID    int    `json:"id"`
	Trace []step `json:"trace"`
}

// step is one stage: where the pictures lay there (inode and offset of the shared
// file), and when it took and gave them, in ns of CLOCK_MONOTONIC.
type step struct {
	Stage string `json:"stage"`
	At    string `json:"at"`
	In    uint64 `json:"in"`
	Out   uint64 `json:"out"`
}

// load puts batches of digits on the first queue, and one without pictures at
// the end.
func load(ctx context.Context, batches int) error {
	c, err := client.Connect(ctx, client.WithName("loader"))
	if err != nil {
		return err
	}
	defer c.Close()
	queue, err := c.Queue(ctx, "pipeline/loaded")
	if err != nil {
		return err
	}
	set, _, err := digits.Load()
	if err != nil {
		return err
	}
	for id := range batches {
		if err := loadBatch(ctx, c, queue, set, id); err != nil {
			return err
		}
	}
	return queue.Put(ctx, map[string]*client.Tensor{})
}

func loadBatch(ctx context.Context, c *client.Client, queue *client.Queue, set *digits.Set, id int) error {
	began := sys.Monotonic()
	b, err := c.AllocBundle(ctx,
		client.Spec{Name: "images", DType: dlpack.Float32, Shape: []int64{perBatch, digits.Side, digits.Side}},
		client.Spec{Name: "labels", DType: dlpack.Uint8, Shape: []int64{perBatch}})
	if err != nil {
		return err
	}
	defer b.Release()
	images, err := client.Slice[float32](b.Tensor("images"))
	if err != nil {
		return err
	}
	labels, err := client.Slice[uint8](b.Tensor("labels"))
	if err != nil {
		return err
	}
	if err := set.FillBatch(images, labels, pictures(set, id)); err != nil {
		return err
	}
	at, err := place(images)
	if err != nil {
		return err
	}
	return queue.Put(ctx, b, client.Meta(note{id, []step{{"load", at, began, sys.Monotonic()}}}))
}

// pictures are the numbers of the pictures of a batch.
func pictures(set *digits.Set, id int) []int {
	idx := make([]int, perBatch)
	for i := range idx {
		idx[i] = (id*perBatch + i) % set.Len()
	}
	return idx
}

// traces is what the consumer saw.
type traces [][]step

// consume takes all batches and checks each picture, their order, and that they
// lay at one place all the way.
func consume(ctx context.Context, c *client.Client, batches int) (seen traces, err error) {
	queue, err := c.Queue(ctx, "pipeline/normalised")
	if err != nil {
		return nil, err
	}
	set, _, err := digits.Load()
	if err != nil {
		return nil, err
	}
	for {
		m, err := queue.Get(ctx)
		if err != nil {
			return nil, err
		}
		if m.Tensor() == nil {
			m.Release()
			if len(seen) != batches {
				return nil, fmt.Errorf("%d batches arrived, not %d", len(seen), batches)
			}
			return seen, nil
		}
		trace, err := inspect(m, set, len(seen))
		m.Release()
		if err != nil {
			return nil, fmt.Errorf("batch %d: %w", len(seen), err)
		}
		seen = append(seen, trace)
	}
}

func inspect(m *client.Message, set *digits.Set, id int) ([]step, error) {
	began := sys.Monotonic()
	var n note
	if err := m.Meta(&n); err != nil {
		return nil, err
	}
	if n.ID != id {
		return nil, fmt.Errorf("batch %d came in its place", n.ID)
	}
	b, err := m.Bundle()
	if err != nil {
		return nil, err
	}
	images, err := client.Slice[float32](b.Tensor("images"))
	if err != nil {
		return nil, err
	}
	labels, err := client.Slice[uint8](b.Tensor("labels"))
	if err != nil {
		return nil, err
	}
	at, err := place(images)
	if err != nil {
		return nil, err
	}
	if len(n.Trace) != 3 {
		return nil, fmt.Errorf("it went through %d stages, not 3", len(n.Trace))
	}
	for _, s := range n.Trace {
		if s.At != at {
			return nil, fmt.Errorf("it lay at %s in stage %s and lies at %s now: it was copied", s.At, s.Stage, at)
		}
	}
	for i, p := range pictures(set, id) {
		if labels[i] != set.Label(p) {
			return nil, fmt.Errorf("picture %d has label %d, not %d", i, labels[i], set.Label(p))
		}
		want := expected(set.Image(p), uint64(id*perBatch+i))
		for k, v := range images[i*digits.Pixels : (i+1)*digits.Pixels] {
			if math.Abs(float64(v)-want[k]) > 1e-3 || math.IsNaN(float64(v)) {
				return nil, fmt.Errorf("pixel %d of picture %d is %v, not %v", k, i, v, want[k])
			}
		}
	}
	return append(n.Trace, step{"check", at, began, sys.Monotonic()}), nil
}

// expected is what augmenting and normalising make of picture number k.
func expected(picture []float32, k uint64) []float64 {
	out := make([]float64, digits.Pixels)
	dx, dy := int(k%3)-1, int(k/3%3)-1
	sum := 0.0
	for p := range out {
		x, y := p%digits.Side-dx, p/digits.Side-dy
		if x >= 0 && x < digits.Side && y >= 0 && y < digits.Side {
			out[p] = float64(picture[y*digits.Side+x])
		}
		hash := (uint32(k)*digits.Pixels + uint32(p)) * 2654435761
		out[p] = min(max(out[p]+0.2*(float64(hash>>8)/(1<<24)-0.5), 0), 1)
		sum += out[p]
	}
	mean, squares := sum/digits.Pixels, 0.0
	for _, v := range out {
		squares += (v - mean) * (v - mean)
	}
	for p := range out {
		out[p] = (out[p] - mean) / (math.Sqrt(squares/digits.Pixels) + 1e-6)
	}
	return out
}

// latencies are rows of a table: how long the stages, the ways between them, and all took, once
// for each batch.
func (t traces) latencies() [][]string {
	var rows [][]string
	add := func(title string, took func(trace []step) uint64) {
		var sorted []uint64
		for _, trace := range t {
			sorted = append(sorted, took(trace))
		}
		slices.Sort(sorted)
		row := []string{title}
		for _, i := range []int{len(sorted) / 2, len(sorted) * 99 / 100, len(sorted) - 1} {
			row = append(row, termtext.Duration(time.Duration(sorted[i])))
		}
		rows = append(rows, row)
	}
	for i, stage := range []string{"load (Go)", "augment (Rust)", "normalise (C)", "check (Go)"} {
		if i > 0 {
			add("waiting for "+stage, func(s []step) uint64 { return s[i].In - s[i-1].Out })
		}
		add("in "+stage, func(s []step) uint64 { return s[i].Out - s[i].In })
	}
	add("from the first to the last", func(s []step) uint64 { return s[3].Out - s[0].In })
	return rows
}
