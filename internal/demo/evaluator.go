package demo

import (
	"context"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/digits"
	"github.com/baton-ipc/baton/protocol"
)

// shownPictures is how many predictions the evaluator reports, shownWrong how
// many of them may be wrong ones.
const (
	shownPictures = 8
	shownWrong    = 2
)

// evaluate measures each snapshot on the held-out pictures until Run wants it to
// finish, and then the newest one.
func (r *role) evaluate(ctx context.Context) error {
	_, heldOut, err := digits.Load()
	if err != nil {
		return err
	}
	w, err := r.c.Watch(ctx, nameSnapshot)
	if err != nil {
		return err
	}
	defer w.Close()
	training, stop := context.WithCancel(ctx)
	defer stop()
	end := r.finishing()
	go func() {
		<-end
		stop()
	}()
	var last *client.Bundle
	defer func() {
		if last != nil {
			last.Release()
		}
	}()
	for {
		b, err := w.Next(training)
		if err != nil && training.Err() != nil && ctx.Err() == nil {
			b, err = w.TryNext(ctx) // what was published before the end
			if b == nil && err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
		if last != nil {
			last.Release()
		}
		last = b
		if err := r.measure(b, heldOut); err != nil {
			return err
		}
	}
	if last == nil {
		return protocol.Errorf(protocol.CodeNotFound, "train more batches", "no snapshot was published")
	}
	if err := r.predict(last, heldOut); err != nil {
		return err
	}
	return r.finish(0)
}

// measure reports the accuracy of a snapshot.
func (r *role) measure(b *client.Bundle, heldOut *digits.Set) error {
	if err := r.check(b); err != nil {
		return err
	}
	m, err := modelOf(b)
	if err != nil {
		return err
	}
	accuracy, err := digits.Accuracy(m, heldOut.Images(), heldOut.Labels())
	if err != nil {
		return err
	}
	return r.report(report{Point: &point{Revision: b.Revision, Accuracy: accuracy}})
}

// predict reports what the network sees in some pictures, mistakes included.
func (r *role) predict(b *client.Bundle, heldOut *digits.Set) error {
	m, err := modelOf(b)
	if err != nil {
		return err
	}
	var right, again, wrong []seen // again: digits that are among right already
	shown := map[int]bool{}
	for i := range heldOut.Len() {
		digit, sure, err := digits.Predict(m, heldOut.Image(i))
		if err != nil {
			return err
		}
		s := seen{Picture: i, Predicted: digit, Sure: sure}
		switch {
		case digit != int(heldOut.Label(i)):
			wrong = append(wrong, s)
		case shown[digit]:
			again = append(again, s)
		default:
			shown[digit] = true
			right = append(right, s)
		}
	}
	wrong, right = wrong[:min(len(wrong), shownWrong)], append(right, again...)
	right = right[:min(len(right), shownPictures-len(wrong))]
	return r.report(report{Seen: append(right, wrong...)})
}
