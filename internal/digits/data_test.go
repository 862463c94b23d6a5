package digits_test

import (
	"hash/fnv"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/digits"
)

func load(t testing.TB) (train, heldOut *digits.Set) {
	t.Helper()
	train, heldOut, err := digits.Load()
	require.NoError(t, err)
	return train, heldOut
}

func TestLoadSplitsAllPictures(t *testing.T) {
	train, heldOut := load(t)
	assert.Equal(t, 1437, train.Len())
	assert.Equal(t, 360, heldOut.Len())

	var perDigit [digits.Classes]int
	seen := map[[digits.Pixels]float32]int{}
	for _, s := range []*digits.Set{train, heldOut} {
		require.Len(t, s.Images(), s.Len()*digits.Pixels)
		require.Len(t, s.Labels(), s.Len())
		for i := range s.Len() {
			perDigit[s.Label(i)]++
			seen[[digits.Pixels]float32(s.Image(i))]++
		}
		for _, v := range s.Images() {
			require.True(t, v >= 0 && v <= 1)
		}
	}
	// The numbers of the data set's own description.
	assert.Equal(t, [digits.Classes]int{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}, perDigit)
	assert.Len(t, seen, 1797, "no picture is in both sets")
	assert.EqualValues(t, 1, slices.Max(train.Images()))
}

func TestLoadSplitsAlike(t *testing.T) {
	train, heldOut := load(t)
	again, heldAgain := load(t)
	assert.Equal(t, train, again)
	assert.Equal(t, heldOut, heldAgain)

	// Which pictures are held out is part of what users compare between versions.
	sum := fnv.New64a()
	sum.Write(heldOut.Labels())
	assert.Equal(t, uint64(0xc43103fe8683113d), sum.Sum64())
}

func TestFillBatchCopiesTheNamedPictures(t *testing.T) {
	train, _ := load(t)
	idx := []int{7, 0, train.Len() - 1, 7}
	images, labels := make([]float32, 4*digits.Pixels), make([]byte, 4)
	require.NoError(t, train.FillBatch(images, labels, idx))
	for at, i := range idx {
		assert.Equal(t, train.Image(i), images[at*digits.Pixels:(at+1)*digits.Pixels])
		assert.Equal(t, train.Label(i), labels[at])
	}
	assert.Zero(t, testing.AllocsPerRun(10, func() { _ = train.FillBatch(images, labels, idx) }))
}

func TestFillBatchRefusesWhatDoesNotFit(t *testing.T) {
	train, _ := load(t)
	images, labels := make([]float32, 2*digits.Pixels), make([]byte, 2)
	for _, idx := range [][]int{{0}, {0, 1, 2}, {0, -1}, {0, train.Len()}} {
		assert.ErrorIs(t, train.FillBatch(images, labels, idx), digits.ErrBatch, "%v", idx)
	}
	assert.ErrorIs(t, train.FillBatch(images[1:], labels, []int{0, 1}), digits.ErrBatch)
	assert.Equal(t, make([]float32, 2*digits.Pixels), images, "nothing was written")
}

func TestSamplerDrawsEachIndexOncePerRound(t *testing.T) {
	s := digits.NewSampler(10, 1)
	rounds := make([]int, 30)
	s.Draw(rounds[:7]) // across the end of a round
	s.Draw(rounds[7:])
	for r := range 3 {
		round := slices.Sorted(slices.Values(rounds[r*10 : r*10+10]))
		assert.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, round)
	}
	assert.NotEqual(t, rounds[:10], rounds[10:20])
	assert.NotEqual(t, rounds[10:20], rounds[20:])

	again := make([]int, 30)
	digits.NewSampler(10, 1).Draw(again)
	assert.Equal(t, rounds, again)
	digits.NewSampler(10, 2).Draw(again)
	assert.NotEqual(t, rounds, again)
	assert.Zero(t, testing.AllocsPerRun(10, func() { s.Draw(again) }))

	one := []int{9, 9}
	digits.NewSampler(0, 1).Draw(one)
	assert.Equal(t, []int{0, 0}, one)
}
