package digits

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Hidden is the width of the layer between pixels and digits.
const Hidden = 64

// Model is the network's parameters: pixels → Hidden units with ReLU → digits with
// softmax. Weights are stored input by input: W1[i*Hidden+j] leads from pixel i to
// unit j. The slices are the caller's and may be shared memory that other processes
// write; see the package comment.
type Model struct {
	W1 []float32 // Pixels × Hidden
	B1 []float32 // Hidden
	W2 []float32 // Hidden × Classes
	B2 []float32 // Classes
}

// Param names one tensor of a Model. All are float32 in C order.
type Param struct {
	Name  string
	Shape []int64
}

// Params lists the tensors of a Model in the order W1, B1, W2, B2.
func Params() []Param {
	return []Param{
		{"w1", []int64{Pixels, Hidden}},
		{"b1", []int64{Hidden}},
		{"w2", []int64{Hidden, Classes}},
		{"b2", []int64{Classes}},
	}
}

// NewModel makes a Model of zeros in this process's own memory.
func NewModel() Model {
	return Model{
		W1: make([]float32, Pixels*Hidden),
		B1: make([]float32, Hidden),
		W2: make([]float32, Hidden*Classes),
		B2: make([]float32, Classes),
	}
}

// Check tells whether the slices have the lengths Params says. The error matches
// ErrModel.
func (m Model) Check() error {
	want := [...]int{Pixels * Hidden, Hidden, Hidden * Classes, Classes}
	for i, s := range [...][]float32{m.W1, m.B1, m.W2, m.B2} {
		if len(s) != want[i] {
			p := Params()[i]
			return fmt.Errorf("%w: %s must have %d values for its shape %v, has %d", ErrModel, p.Name, want[i], p.Shape, len(s))
		}
	}
	return nil
}

// Init fills the parameters with the random start that suits ReLU (He et al.
// 2015); biases become zero. Equal seeds give equal parameters.
func (m Model) Init(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	fill := func(w []float32, inputs int) {
		spread := math.Sqrt(2 / float64(inputs))
		for i := range w {
			w[i] = float32(rng.NormFloat64() * spread)
		}
	}
	fill(m.W1, Pixels)
	clear(m.B1)
	fill(m.W2, Hidden)
	clear(m.B2)
}

// CopyTo copies the parameters into dst, which must have the same lengths: the
// snapshot that a worker publishes while others go on training. Each parameter is
// whole; they are not all of one moment.
func (m Model) CopyTo(dst Model) error {
	if err := m.Check(); err != nil {
		return err
	}
	if err := dst.Check(); err != nil {
		return err
	}
	each := func(to, from []float32) {
		// One by one: the built-in copy may move bytes in pieces other than
		// float32, and only accesses of one float32 are known not to tear.
		for i := range to {
			to[i] = from[i]
		}
	}
	each(dst.W1, m.W1)
	each(dst.B1, m.B1)
	each(dst.W2, m.W2)
	each(dst.B2, m.B2)
	return nil
}

// forward computes the units h and, for each digit, the score z (before softmax).
// The caller has checked the model.
func (m Model) forward(x *[Pixels]float32, h *[Hidden]float32, z *[Classes]float32) {
	// Row by row through the weights, as they lie in memory. Blank pixels, about
	// half of all, and silent units cost nothing.
	b1 := (*[Hidden]float32)(m.B1)
	for j := range h { // not copy, for the reason in CopyTo
		h[j] = b1[j]
	}
	for i, xi := range x {
		if xi == 0 {
			continue
		}
		row := (*[Hidden]float32)(m.W1[i*Hidden:])
		for j := range h {
			h[j] += xi * row[j]
		}
	}
	b2 := (*[Classes]float32)(m.B2)
	for k := range z {
		z[k] = b2[k]
	}
	for j, hj := range h {
		if hj <= 0 { // a NaN passes, to show up in the loss
			h[j] = 0
			continue
		}
		row := (*[Classes]float32)(m.W2[j*Classes:])
		for k := range z {
			z[k] += hj * row[k]
		}
	}
}

// softmax turns scores into probabilities in place and returns the logarithm of
// what they were divided by, to which the loss of digit k is that minus its score.
func softmax(z *[Classes]float32) (logSum float64) {
	top := z[0]
	for _, v := range z[1:] {
		top = max(top, v)
	}
	var p [Classes]float64
	sum := 0.0
	for k, v := range z {
		p[k] = math.Exp(float64(v - top))
		sum += p[k]
	}
	for k := range z {
		z[k] = float32(p[k] / sum)
	}
	return math.Log(sum) + float64(top)
}

// Predict returns the digit the model sees in a picture of Pixels values and how
// sure it is, 0 to 1. The error matches ErrModel or ErrBatch. It allocates nothing.
func Predict(m Model, image []float32) (digit int, sure float32, err error) {
	if err := m.Check(); err != nil {
		return 0, 0, err
	}
	if len(image) != Pixels {
		return 0, 0, fmt.Errorf("%w: a picture has %d values, got %d", ErrBatch, Pixels, len(image))
	}
	var (
		x [Pixels]float32
		h [Hidden]float32
		z [Classes]float32
	)
	copy(x[:], image)
	m.forward(&x, &h, &z)
	softmax(&z)
	for k := range z {
		if z[k] > z[digit] {
			digit = k
		}
	}
	return digit, z[digit], nil
}

// Accuracy returns the share of pictures, 0 to 1, whose digit the model gets
// right; images holds Pixels values for each label. The error matches ErrModel or
// ErrBatch.
func Accuracy(m Model, images []float32, labels []byte) (float64, error) {
	if len(labels) == 0 || len(images) != len(labels)*Pixels {
		return 0, fmt.Errorf("%w: %d labels need %d values, got %d", ErrBatch, len(labels), len(labels)*Pixels, len(images))
	}
	right := 0
	for i, label := range labels {
		digit, _, err := Predict(m, images[i*Pixels:(i+1)*Pixels])
		if err != nil {
			return 0, err
		}
		if digit == int(label) {
			right++
		}
	}
	return float64(right) / float64(len(labels)), nil
}
