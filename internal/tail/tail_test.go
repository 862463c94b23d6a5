package tail

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBufferKeepsTheEndOfWhatWasWritten(t *testing.T) {
	b := New(4096)
	for range 100 {
		n, err := b.Write([]byte(strings.Repeat("x", 99) + "\n"))
		require.NoError(t, err)
		require.Equal(t, 100, n)
	}
	_, err := b.Write([]byte("the last line\n"))
	require.NoError(t, err)
	assert.Len(t, b.String(), 4096-1)
	assert.True(t, strings.HasSuffix(b.String(), "x\nthe last line"))
}
