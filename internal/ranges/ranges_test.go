package ranges

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFreeSpaceIsNeverGivenTwiceAndJoinsAgain(t *testing.T) {
	const size = 1 << 12
	rng := rand.New(rand.NewPCG(1, 2))
	var f Free
	f.Give(0, size)
	type part struct{ at, n uint64 }
	var out []part
	var taken [size]bool
	for range 20000 {
		if n := uint64(rng.IntN(64) + 1); rng.IntN(2) == 0 {
			at, ok := f.Take(n)
			if !ok {
				continue
			}
			for i := at; i < at+n; i++ {
				require.False(t, taken[i])
				taken[i] = true
			}
			out = append(out, part{at, n})
		} else if len(out) > 0 {
			k := rng.IntN(len(out))
			p := out[k]
			out[k] = out[len(out)-1]
			out = out[:len(out)-1]
			for i := p.at; i < p.at+p.n; i++ {
				taken[i] = false
			}
			f.Give(p.at, p.n)
		}
	}
	for _, p := range out {
		f.Give(p.at, p.n)
	}
	require.True(t, f.Has(size))
	require.Len(t, f.runs, 1)
}
