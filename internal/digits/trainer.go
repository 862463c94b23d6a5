package digits

import (
	"fmt"
	"math"
)

// Trainer improves a Model by stochastic gradient descent, in place. It holds the
// scratch memory of one worker and belongs to one goroutine at a time.
type Trainer struct {
	model Model

	gradW1  [Pixels * Hidden]float32
	gradB1  [Hidden]float32
	gradW2  [Hidden * Classes]float32
	gradB2  [Classes]float32
	touched [Pixels]bool // pixels that were inked somewhere in the batch
}

// NewTrainer makes a Trainer for the parameters of m, which must stay mapped while
// it is used. The error matches ErrModel.
func NewTrainer(m Model) (*Trainer, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	return &Trainer{model: m}, nil
}

// Step takes one step down the gradient of a batch: images holds Pixels values, 0
// to 1, for each label. It returns the batch's mean loss (cross-entropy, in nats)
// before the step. A rate lr around 0.2 suits batches of 32; zero only measures.
//
// Parameters are read while the gradient is computed and then changed one by one,
// without locks; see the package comment for what that means when others do the
// same. Step allocates nothing unless it fails. On an error, which matches
// ErrBatch or ErrDiverged, no parameter was changed.
func (t *Trainer) Step(images []float32, labels []byte, lr float32) (loss float64, err error) {
	if len(labels) == 0 || len(images) != len(labels)*Pixels {
		return 0, fmt.Errorf("%w: %d labels need %d values, got %d", ErrBatch, len(labels), len(labels)*Pixels, len(images))
	}
	clear(t.gradW1[:])
	clear(t.gradB1[:])
	clear(t.gradW2[:])
	clear(t.gradB2[:])
	clear(t.touched[:])

	var x [Pixels]float32
	for i, label := range labels { // label is a copy: what is checked is what is used
		if label >= Classes {
			return 0, fmt.Errorf("%w: picture %d is labelled %d, digits end at 9", ErrBatch, i, label)
		}
		copy(x[:], images[i*Pixels:])
		for k, v := range x {
			if !(v >= 0 && v <= 1) {
				return 0, fmt.Errorf("%w: pixel %d of picture %d is %v, not within 0 to 1", ErrBatch, k, i, v)
			}
		}
		loss += t.accumulate(&x, label)
	}
	loss /= float64(len(labels))
	if math.IsNaN(loss) || math.IsInf(loss, 0) {
		return loss, fmt.Errorf("%w: the loss is %v; initialise the parameters again and use a smaller rate than %v", ErrDiverged, loss, lr)
	}
	t.apply(lr / float32(len(labels)))
	return loss, nil
}

// accumulate adds one picture's gradient to the scratch memory and returns its loss.
func (t *Trainer) accumulate(x *[Pixels]float32, label byte) (loss float64) {
	var (
		h, dh [Hidden]float32
		z     [Classes]float32
	)
	t.model.forward(x, &h, &z)
	score := float64(z[label])
	loss = softmax(&z) - score

	// z becomes the gradient by the scores: probability minus truth.
	z[label]--
	for k, d := range z {
		t.gradB2[k] += d
	}
	for j, hj := range h {
		if hj == 0 {
			continue // a silent unit passes nothing back
		}
		weights := (*[Classes]float32)(t.model.W2[j*Classes:])
		grad := (*[Classes]float32)(t.gradW2[j*Classes:])
		sum := float32(0)
		for k, d := range z {
			sum += weights[k] * d
			grad[k] += hj * d
		}
		dh[j] = sum
		t.gradB1[j] += sum
	}
	for i, xi := range x {
		if xi == 0 {
			continue
		}
		t.touched[i] = true
		grad := (*[Hidden]float32)(t.gradW1[i*Hidden:])
		for j, d := range dh {
			grad[j] += xi * d
		}
	}
	return loss
}

// apply moves the parameters against the gradient. Parameters without a gradient
// are not written, so that fewer cache lines travel between workers and fewer
// updates of others are overwritten.
func (t *Trainer) apply(rate float32) {
	for i, touched := range t.touched {
		if touched {
			descend(t.model.W1[i*Hidden:(i+1)*Hidden], t.gradW1[i*Hidden:(i+1)*Hidden], rate)
		}
	}
	descend(t.model.B1, t.gradB1[:], rate)
	descend(t.model.W2, t.gradW2[:], rate)
	descend(t.model.B2, t.gradB2[:], rate)
}

func descend(w, grad []float32, rate float32) {
	w = w[:len(grad)]
	for i, g := range grad {
		if g != 0 {
			w[i] -= rate * g
		}
	}
}
