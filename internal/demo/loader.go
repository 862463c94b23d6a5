package demo

import (
	"context"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/digits"
)

// load fills batches in shared memory and puts them on the queue. The last
// quarter waits until Run has killed the worker, so that this happens while
// there is work, however fast the machine is.
func (r *role) load(ctx context.Context) error {
	q, err := r.c.Queue(ctx, queueBatches, client.MustExist())
	if err != nil {
		return err
	}
	train, _, err := digits.Load()
	if err != nil {
		return err
	}
	if err := r.report(report{Began: true}); err != nil {
		return err
	}
	killed := r.finishing()
	began, sampler, idx := time.Now(), digits.NewSampler(train.Len(), r.Seed), make([]int, BatchSize)
	n := uint64(0)
	for ; r.share(n, began) < 1; n++ {
		if killed != nil && r.share(n, began) >= 0.75 {
			select {
			case <-killed:
				killed = nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		sampler.Draw(idx)
		if err := r.put(ctx, q, train, idx); err != nil {
			return err
		}
	}
	if err := q.End(ctx); err != nil {
		return err
	}
	return r.finish(n)
}

// share tells how much of the work is done after n batches, 1 when all is.
func (p plan) share(n uint64, began time.Time) float64 {
	share := 0.0
	if p.Batches > 0 {
		share = float64(n) / float64(p.Batches)
	}
	if p.Seconds > 0 {
		share = max(share, time.Since(began).Seconds()/p.Seconds)
	}
	return min(share, 1)
}

// put hands one batch over. Its pictures and labels are one storage, written
// where they stay.
func (r *role) put(ctx context.Context, q *client.Queue, train *digits.Set, idx []int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := r.c.AllocBundle(ctx, batchSpecs()...)
	if err != nil {
		return err
	}
	defer b.Release()
	images, labels, err := batchOf(b)
	if err != nil {
		return err
	}
	if err := train.FillBatch(images, labels, idx); err != nil {
		return err
	}
	v, err := r.places.value(b)
	if err != nil {
		return err
	}
	return q.Put(ctx, v)
}
