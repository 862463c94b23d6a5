package client

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRepeatedCallsAskNoBroker(t *testing.T) {
	all, ctx := sessions(t, 2), t.Context()
	c, p := all[0], all[1]
	_, err := Handle(p, "f", func(_ context.Context, x *Tensor) (*Tensor, error) { return x, nil })
	require.NoError(t, err)
	x := alloc(t, c)
	defer x.Release()
	one := func() {
		y, err := Call[*Tensor](ctx, c, "f", x)
		require.NoError(t, err)
		y.Release()
	}
	one()
	before := [2]uint64{requests(c), requests(p)}
	for range 100 {
		one()
	}
	require.Equal(t, before, [2]uint64{requests(c), requests(p)})
}
