package protocol

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAppendUintWritesAsStrconvDoes(t *testing.T) {
	numbers := []uint64{0, math.MaxUint64, math.MaxUint64 - 1}
	for n := uint64(1); ; n *= 10 {
		numbers = append(numbers, n-1, n, n+1, 3*n+7)
		if n > math.MaxUint64/10 {
			break
		}
	}
	for shift := range 64 {
		numbers = append(numbers, 1<<shift, 1<<shift-1)
	}
	for _, n := range numbers {
		require.Equal(t, "x"+strconv.FormatUint(n, 10), string(appendUint([]byte("x"), n)))
	}
}
