package waits

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// spun counts the waits that spin among n, each answered after some ns.
func spun(s *Spinner, n int, after uint64) (count int) {
	for range n {
		if s.budgetAt(1000) > 0 {
			count++
		}
		s.Happened(1000 + after)
	}
	return count
}

func TestSpinnerSpinsWhereThatIsSoonAnsweredAndSeldomElsewhere(t *testing.T) {
	var s Spinner
	assert.Equal(t, 100, spun(&s, 100, 20_000))
	assert.Less(t, spun(&s, 10_000, 1_000_000), 200)
	spun(&s, maxRest+1, 20_000)
	assert.Equal(t, 100, spun(&s, 100, 20_000), "it finds out when answers come soon again")
}

func TestSpinnerCountsAWaitInVainAsALongOne(t *testing.T) {
	var s Spinner
	require.Positive(t, s.budgetAt(1))
	s.GaveUp()
	require.Zero(t, s.budgetAt(2))
	// A stamp from before the wait is no long one, whatever it says.
	require.Positive(t, s.budgetAt(3))
	s.Happened(1)
	require.Positive(t, s.budgetAt(4))
}
