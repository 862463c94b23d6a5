package main_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// A client asks for larger segments the more it has. Where one is too large for the quota it
// takes a smaller one, of which no operator needs to hear.
func TestProgramThatGetsItsMemoryIsNotAmongTheRefused(t *testing.T) {
	p := newPlace(t)
	broker := p.serve("--memory", "64MiB")
	c := p.client()
	for range 12 {
		_, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{4 << 20})
		require.NoError(t, err)
	}
	assert.NotContains(t, p.must("events", "--kind", "refused"), "refused")
	assert.NotContains(t, broker.err.String(), "refused")
	_, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{48 << 20})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	assert.Contains(t, p.must("events", "--kind", "refused"), "QuotaExceeded")
}
