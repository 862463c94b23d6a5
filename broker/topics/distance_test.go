package topics

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// edits is the distance by its definition.
func edits(a, b string) int {
	switch {
	case a == "":
		return len(b)
	case b == "":
		return len(a)
	case a[0] == b[0]:
		return edits(a[1:], b[1:])
	}
	return 1 + min(edits(a[1:], b), edits(a, b[1:]), edits(a[1:], b[1:]))
}

func TestDistanceIsTheNumberOfEditsUpToThree(t *testing.T) {
	text := func() string {
		b := make([]byte, rand.IntN(7))
		for i := range b {
			b[i] = "abc"[rand.IntN(3)]
		}
		return string(b)
	}
	for range 20000 {
		a, b := text(), text()
		require.Equal(t, min(edits(a, b), 3), distance(a, b), "%q and %q", a, b)
	}
}
