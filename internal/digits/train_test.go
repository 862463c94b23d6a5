package digits_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/digits"
)

const batch = 32

// train runs the given number of batches and returns the last loss.
func train(t testing.TB, m digits.Model, set *digits.Set, seed uint64, batches int) (loss float64) {
	t.Helper()
	trainer, err := digits.NewTrainer(m)
	require.NoError(t, err)
	sampler := digits.NewSampler(set.Len(), seed)
	images, labels, idx := make([]float32, batch*digits.Pixels), make([]byte, batch), make([]int, batch)
	for range batches {
		sampler.Draw(idx)
		require.NoError(t, set.FillBatch(images, labels, idx))
		loss, err = trainer.Step(images, labels, 0.2)
		require.NoError(t, err)
	}
	return loss
}

func initialised(seed uint64) digits.Model {
	m := digits.NewModel()
	m.Init(seed)
	return m
}

func TestTrainingReachesTheDemosAccuracy(t *testing.T) {
	set, heldOut := load(t)
	for seed := range uint64(2) {
		m := initialised(seed)
		before, err := digits.Accuracy(m, heldOut.Images(), heldOut.Labels())
		require.NoError(t, err)
		assert.Less(t, before, 0.5, "an untrained model guesses")

		loss := train(t, m, set, seed, 700)
		after, err := digits.Accuracy(m, heldOut.Images(), heldOut.Labels())
		require.NoError(t, err)
		t.Logf("seed %d: accuracy %.3f → %.3f, last loss %.4f", seed, before, after, loss)
		assert.GreaterOrEqual(t, after, 0.95)
		assert.Less(t, loss, 0.2)
	}
}

func TestTrainingIsRepeatable(t *testing.T) {
	set, _ := load(t)
	a, b := initialised(1), initialised(1)
	assert.Equal(t, a, b)
	assert.NotEqual(t, a, initialised(2))
	assert.Equal(t, train(t, a, set, 3, 50), train(t, b, set, 3, 50))
	assert.Equal(t, a, b)
}

func TestStepFollowsTheGradient(t *testing.T) {
	set, _ := load(t)
	images, labels := set.Images()[:batch*digits.Pixels], set.Labels()[:batch]
	m := initialised(5)
	train(t, m, set, 5, 20) // away from zero biases
	start := digits.NewModel()
	require.NoError(t, m.CopyTo(start))

	trainer, err := digits.NewTrainer(m)
	require.NoError(t, err)
	loss := func() float64 {
		l, err := trainer.Step(images, labels, 0)
		require.NoError(t, err)
		return l
	}
	_, err = trainer.Step(images, labels, 1)
	require.NoError(t, err)

	slices4 := func(m digits.Model) [][]float32 { return [][]float32{m.W1, m.B1, m.W2, m.B2} }
	moved, from := digits.NewModel(), slices4(start)
	require.NoError(t, m.CopyTo(moved))
	require.NoError(t, start.CopyTo(m))
	for p, w := range slices4(m) {
		checked := 0
		for i := 0; i < len(w); i += 1 + len(w)/40 {
			step := float64(from[p][i] - slices4(moved)[p][i])
			const eps = 1e-3 // small: a unit may fall silent in between
			w[i] = from[p][i] + eps
			up := loss()
			w[i] = from[p][i] - eps
			slope := (up - loss()) / (2 * eps)
			w[i] = from[p][i]
			assert.InDelta(t, slope, step, 1e-3+0.02*math.Abs(slope), "%s[%d]", digits.Params()[p].Name, i)
			if math.Abs(slope) > 1e-3 {
				checked++
			}
		}
		assert.Positive(t, checked, "%s has a slope somewhere", digits.Params()[p].Name)
	}
}

func TestStepLowersTheLossAndAllocatesNothing(t *testing.T) {
	set, _ := load(t)
	images, labels := set.Images()[:batch*digits.Pixels], set.Labels()[:batch]
	trainer, err := digits.NewTrainer(initialised(1))
	require.NoError(t, err)
	first, err := trainer.Step(images, labels, 0.1)
	require.NoError(t, err)
	assert.Zero(t, testing.AllocsPerRun(50, func() { _, _ = trainer.Step(images, labels, 0.1) }))
	last, err := trainer.Step(images, labels, 0.1)
	require.NoError(t, err)
	assert.Less(t, last, first)
}

func TestStepLeavesWeightsOfBlankPixelsAlone(t *testing.T) {
	m := initialised(1)
	before := slices.Clone(m.W1)
	images := make([]float32, digits.Pixels)
	images[10] = 1
	trainer, err := digits.NewTrainer(m)
	require.NoError(t, err)
	_, err = trainer.Step(images, []byte{3}, 0.5)
	require.NoError(t, err)
	row := func(w []float32, i int) []float32 { return w[i*digits.Hidden : (i+1)*digits.Hidden] }
	for i := range digits.Pixels {
		if i == 10 {
			assert.NotEqual(t, row(before, i), row(m.W1, i))
		} else {
			assert.Equal(t, row(before, i), row(m.W1, i))
		}
	}
}

func TestStepRefusesBadBatchesAndChangesNothing(t *testing.T) {
	set, _ := load(t)
	good := func() ([]float32, []byte) {
		return slices.Clone(set.Images()[:4*digits.Pixels]), slices.Clone(set.Labels()[:4])
	}
	for name, spoil := range map[string]func([]float32, []byte) ([]float32, []byte){
		"no pictures":     func([]float32, []byte) ([]float32, []byte) { return nil, nil },
		"a label short":   func(x []float32, y []byte) ([]float32, []byte) { return x, y[:3] },
		"a pixel short":   func(x []float32, y []byte) ([]float32, []byte) { return x[1:], y },
		"label above 9":   func(x []float32, y []byte) ([]float32, []byte) { y[3] = 10; return x, y },
		"pixel above 1":   func(x []float32, y []byte) ([]float32, []byte) { x[255] = 1.5; return x, y },
		"negative pixel":  func(x []float32, y []byte) ([]float32, []byte) { x[255] = -0.5; return x, y },
		"pixel no number": func(x []float32, y []byte) ([]float32, []byte) { x[255] = float32(math.NaN()); return x, y },
	} {
		t.Run(name, func(t *testing.T) {
			m := initialised(1)
			trainer, err := digits.NewTrainer(m)
			require.NoError(t, err)
			images, labels := spoil(good())
			_, err = trainer.Step(images, labels, 0.1)
			assert.ErrorIs(t, err, digits.ErrBatch)
			assert.Equal(t, initialised(1), m)

			// What the refused batch left in the scratch memory does not count.
			other := initialised(1)
			fresh, err := digits.NewTrainer(other)
			require.NoError(t, err)
			images, labels = good()
			_, err = trainer.Step(images, labels, 0.1)
			require.NoError(t, err)
			_, err = fresh.Step(images, labels, 0.1)
			require.NoError(t, err)
			assert.Equal(t, other, m)
		})
	}
}

func TestStepReportsDivergedParameters(t *testing.T) {
	set, _ := load(t)
	images, labels := set.Images()[:batch*digits.Pixels], set.Labels()[:batch]
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		m := initialised(1)
		for i := range m.W1 {
			m.W1[i] = float32(bad)
		}
		w2 := slices.Clone(m.W2)
		trainer, err := digits.NewTrainer(m)
		require.NoError(t, err)
		_, err = trainer.Step(images, labels, 0.1)
		assert.ErrorIs(t, err, digits.ErrDiverged)
		assert.Equal(t, w2, m.W2)
	}
}

func TestPredictNamesTheDigitAndItsProbability(t *testing.T) {
	m := digits.NewModel()
	m.B2[7] = 2
	digit, sure, err := digits.Predict(m, make([]float32, digits.Pixels))
	require.NoError(t, err)
	assert.Equal(t, 7, digit)
	assert.InDelta(t, math.Exp(2)/(math.Exp(2)+9), sure, 1e-6)
	_, _, err = digits.Predict(m, make([]float32, digits.Pixels-1))
	assert.ErrorIs(t, err, digits.ErrBatch)

	accuracy, err := digits.Accuracy(m, make([]float32, 4*digits.Pixels), []byte{7, 7, 1, 255})
	require.NoError(t, err)
	assert.Equal(t, 0.5, accuracy)
	_, err = digits.Accuracy(m, nil, nil)
	assert.ErrorIs(t, err, digits.ErrBatch)
}

func TestModelOfWrongShapeIsRefused(t *testing.T) {
	good := digits.NewModel()
	require.NoError(t, good.Check())
	for i, p := range digits.Params() {
		values := int64(1)
		for _, d := range p.Shape {
			values *= d
		}
		m := digits.NewModel()
		part := []*[]float32{&m.W1, &m.B1, &m.W2, &m.B2}[i]
		assert.Len(t, *part, int(values))
		*part = (*part)[1:]
		assert.ErrorIs(t, m.Check(), digits.ErrModel)
		assert.ErrorContains(t, m.Check(), p.Name)
		assert.ErrorIs(t, m.CopyTo(good), digits.ErrModel)
		assert.ErrorIs(t, good.CopyTo(m), digits.ErrModel)
		_, err := digits.NewTrainer(m)
		assert.ErrorIs(t, err, digits.ErrModel)
		_, err = digits.Accuracy(m, make([]float32, digits.Pixels), []byte{1})
		assert.ErrorIs(t, err, digits.ErrModel)
	}
}

func BenchmarkStep(b *testing.B) {
	set, _ := load(b)
	images, labels := set.Images()[:batch*digits.Pixels], set.Labels()[:batch]
	trainer, err := digits.NewTrainer(initialised(1))
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := trainer.Step(images, labels, 0.01); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*batch/b.Elapsed().Seconds(), "samples/s")
}
