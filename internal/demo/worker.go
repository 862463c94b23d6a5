package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/digits"
	"github.com/baton-ipc/baton/protocol"
)

// maker is the worker that allocates the shared parameters, and the one that is
// killed.
const maker = 1

// worker trains the shared network until the queue is closed and empty.
type worker struct {
	*role
	queue    *client.Queue
	progress *client.Topic
	shared   digits.Model // the parameters that all workers change in place
	trainer  *digits.Trainer
	batches  uint64
	losses   []float32 // of the batches since the last progress message
}

func (r *role) work(ctx context.Context) error {
	w := &worker{role: r}
	var err error
	if w.queue, err = r.c.Queue(ctx, queueBatches, client.MustExist()); err != nil {
		return err
	}
	if w.progress, err = r.c.Topic(ctx, topicProgress, client.MustExist()); err != nil {
		return err
	}
	weights, err := w.weights(ctx)
	if err != nil {
		return err
	}
	defer weights.Release()
	if w.trainer, err = digits.NewTrainer(w.shared); err != nil {
		return err
	}
	for err == nil {
		err = w.step(ctx)
	}
	if !errors.Is(err, protocol.ErrClosed) {
		return err
	}
	// The worker that ends last publishes what all of them have come to.
	if err := w.publish(ctx); err != nil {
		return err
	}
	return r.finish(w.batches)
}

// weights makes the shared parameters, or waits until another worker has.
func (w *worker) weights(ctx context.Context) (*client.Bundle, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var b *client.Bundle
	var err error
	if w.Number == maker {
		b, err = w.c.AllocBundle(ctx, modelSpecs()...)
	} else {
		b, err = w.c.Get(ctx, nameWeights, client.WaitForName(patience))
	}
	if err != nil {
		return nil, err
	}
	if w.shared, err = modelOf(b); err != nil {
		return nil, err
	}
	if w.Number != maker {
		return b, w.check(b)
	}
	w.shared.Init(w.Seed)
	v, err := w.places.value(b)
	if err != nil {
		return nil, err
	}
	_, err = w.c.Set(ctx, nameWeights, v, client.Live())
	return b, err
}

// step trains one batch. The release at its end acknowledges it: of a worker that
// dies before, another gets it.
func (w *worker) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := w.queue.Get(ctx)
	if err != nil {
		return err
	}
	defer m.Release()
	b, err := m.Bundle()
	if err != nil {
		return err
	}
	if err := w.check(b); err != nil {
		return err
	}
	images, labels, err := batchOf(b)
	if err != nil {
		return err
	}
	loss, err := w.trainer.Step(images, labels, w.rate())
	if err != nil {
		return fmt.Errorf("batch %d of %s: %w", m.Sequence, m.Sender, err)
	}
	w.batches++
	w.losses = append(w.losses, float32(loss))
	if len(w.losses) >= w.progressEvery() {
		if err := w.tell(ctx); err != nil {
			return err
		}
	}
	// Workers take turns: each begins at another point of the same interval.
	every := uint64(w.snapshotEvery())
	if (w.batches+every*uint64(w.Number)/uint64(w.Workers))%every == 0 {
		return w.publish(ctx)
	}
	return nil
}

// tell sends the losses since the last time, and what this worker did so far.
func (w *worker) tell(ctx context.Context) error {
	b, err := w.c.AllocBundle(ctx, client.Spec{Name: tensorLosses, DType: dlpack.Float32, Shape: []int64{int64(len(w.losses))}})
	if err != nil {
		return err
	}
	defer b.Release()
	losses, err := slice[float32](b, tensorLosses)
	if err != nil {
		return err
	}
	copy(losses, w.losses)
	w.losses = w.losses[:0]
	v, err := w.places.value(b)
	if err != nil {
		return err
	}
	return w.progress.Send(ctx, v, client.Meta(progress{Worker: w.Number, Figures: w.figures(w.batches)}))
}

// publish makes a copy of the parameters as they are now, and publishes it.
func (w *worker) publish(ctx context.Context) error {
	b, err := w.c.AllocBundle(ctx, modelSpecs()...)
	if err != nil {
		return err
	}
	defer b.Release()
	snapshot, err := modelOf(b)
	if err != nil {
		return err
	}
	if err := w.shared.CopyTo(snapshot); err != nil {
		return err
	}
	v, err := w.places.value(b)
	if err != nil {
		return err
	}
	_, err = w.c.Set(ctx, nameSnapshot, v)
	return err
}
