//go:build !race

package digits_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/digits"
)

// Left out under the race detector: racing on the parameters is what Hogwild does.
func TestTrainersOnOneModelConvergeWithoutLocks(t *testing.T) {
	set, heldOut := load(t)
	m := initialised(1)
	var workers sync.WaitGroup
	for seed := range uint64(4) {
		trainer, err := digits.NewTrainer(m)
		require.NoError(t, err)
		workers.Go(func() {
			sampler := digits.NewSampler(set.Len(), seed)
			images, labels, idx := make([]float32, batch*digits.Pixels), make([]byte, batch), make([]int, batch)
			for range 600 {
				sampler.Draw(idx)
				if !assert.NoError(t, set.FillBatch(images, labels, idx)) {
					return
				}
				if _, err := trainer.Step(images, labels, 0.2); !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	workers.Wait()
	snapshot := digits.NewModel()
	require.NoError(t, m.CopyTo(snapshot))
	accuracy, err := digits.Accuracy(snapshot, heldOut.Images(), heldOut.Labels())
	require.NoError(t, err)
	t.Logf("accuracy %.3f", accuracy)
	assert.GreaterOrEqual(t, accuracy, 0.95)
}
