package digits

import (
	"bytes"
	_ "embed"
	"fmt"
	"math/rand/v2"

	"github.com/baton-ipc/baton/internal/npy"
)

// Sizes of the pictures.
const (
	Side    = 8           // pixels along each edge of a picture
	Pixels  = Side * Side // pixels of a picture
	Classes = 10          // the digits
)

// maxInk is the value of a fully inked pixel in the data.
const maxInk = 16

// splitSeed fixes which pictures are held out. All processes of a demo must agree
// on it, and results stay comparable between runs and versions.
const splitSeed = 0x6261746f6e

var (
	//go:embed data/digits-images.npy
	imageFile []byte
	//go:embed data/digits-labels.npy
	labelFile []byte
)

// Set is a number of pictures with the digits they show.
type Set struct {
	images []float32 // Pixels for each picture, row by row, 0 blank to 1 inked
	labels []byte
}

// Load decodes the data carried in the binary and splits it at random, the same
// way each time: four fifths to train on and a fifth, of 360 pictures, held out
// to measure accuracy on. Each call decodes anew; the sets are the caller's.
func Load() (train, heldOut *Set, err error) {
	images, n, err := decode(imageFile, Side, Side)
	if err != nil {
		return nil, nil, fmt.Errorf("digits: pictures in the binary: %w", err)
	}
	labels, m, err := decode(labelFile)
	if err != nil {
		return nil, nil, fmt.Errorf("digits: labels in the binary: %w", err)
	}
	if n != m {
		return nil, nil, fmt.Errorf("digits: the binary holds %d pictures but %d labels; build it again", n, m)
	}

	order := rand.New(rand.NewPCG(splitSeed, 0)).Perm(n)
	held := (n + 4) / 5
	pick := func(idx []int) *Set {
		s := &Set{images: make([]float32, 0, len(idx)*Pixels), labels: make([]byte, 0, len(idx))}
		for _, i := range idx {
			for _, ink := range images[i*Pixels : (i+1)*Pixels] {
				s.images = append(s.images, float32(ink)/maxInk)
			}
			s.labels = append(s.labels, labels[i])
		}
		return s
	}
	return pick(order[held:]), pick(order[:held]), nil
}

// decode returns the bytes of a .npy file of uint8 and its first dimension; rest
// are the others it must have.
func decode(file []byte, rest ...int64) ([]byte, int, error) {
	r := bytes.NewReader(file)
	h, err := npy.ReadHeader(r)
	if err != nil {
		return nil, 0, err
	}
	ok := h.DType == "uint8" && !h.FortranOrder && len(h.Shape) == 1+len(rest)
	for i := range rest {
		ok = ok && h.Shape[i+1] == rest[i]
	}
	if !ok || h.NBytes() > int64(r.Len()) {
		return nil, 0, fmt.Errorf("%s%v in %d bytes is not what was packed; build the binary again", h.DType, h.Shape, len(file))
	}
	data := make([]byte, h.NBytes())
	return data, int(h.Shape[0]), npy.ReadFull(r, data)
}

// Len returns the number of pictures.
func (s *Set) Len() int { return len(s.labels) }

// Images returns all pictures, Pixels values each, 0 blank to 1 inked. A view:
// do not write to it.
func (s *Set) Images() []float32 { return s.images }

// Labels returns the digit of each picture. A view: do not write to it.
func (s *Set) Labels() []byte { return s.labels }

// Image returns picture i, row by row. A view: do not write to it. It panics
// unless 0 <= i < Len.
func (s *Set) Image(i int) []float32 { return s.images[i*Pixels : (i+1)*Pixels : (i+1)*Pixels] }

// Label returns the digit that picture i shows. It panics unless 0 <= i < Len.
func (s *Set) Label(i int) byte { return s.labels[i] }

// FillBatch writes the pictures idx names into dst and their digits into
// dstLabels, which may be shared memory. dst needs Pixels values for each index,
// dstLabels one. It allocates nothing. Otherwise, or when an index is outside the
// set, the error matches ErrBatch and nothing was written.
func (s *Set) FillBatch(dst []float32, dstLabels []byte, idx []int) error {
	if len(dst) != len(idx)*Pixels || len(dstLabels) != len(idx) {
		return fmt.Errorf("%w: %d pictures need %d values and %d labels, the batch has room for %d and %d",
			ErrBatch, len(idx), len(idx)*Pixels, len(idx), len(dst), len(dstLabels))
	}
	for _, i := range idx {
		if i < 0 || i >= s.Len() {
			return fmt.Errorf("%w: there is no picture %d among %d", ErrBatch, i, s.Len())
		}
	}
	for at, i := range idx {
		copy(dst[at*Pixels:(at+1)*Pixels], s.Image(i))
		dstLabels[at] = s.labels[i]
	}
	return nil
}

// Sampler draws indices so that each comes up once before any comes up again, in
// an order that differs each time round.
type Sampler struct {
	rng   *rand.Rand
	order []int
	next  int
}

// NewSampler makes a Sampler over 0 to n-1; n below 1 counts as 1. Equal seeds
// give equal draws.
func NewSampler(n int, seed uint64) *Sampler {
	s := &Sampler{rng: rand.New(rand.NewPCG(seed, 1)), order: make([]int, max(n, 1))}
	for i := range s.order {
		s.order[i] = i
	}
	s.next = len(s.order)
	return s
}

// Draw fills idx with the next indices. It allocates nothing.
func (s *Sampler) Draw(idx []int) {
	for i := range idx {
		if s.next == len(s.order) {
			s.rng.Shuffle(len(s.order), func(a, b int) { s.order[a], s.order[b] = s.order[b], s.order[a] })
			s.next = 0
		}
		idx[i] = s.order[s.next]
		s.next++
	}
}
