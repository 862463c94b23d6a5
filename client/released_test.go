package client_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// What was let go may be another tensor's memory by then: a use of the old one must not count that down.
func TestWhatWasReleasedIsOfNoMoreUse(t *testing.T) {
	ctx, c, p := pair(t)
	x := tensor(t, c, 1)
	kept := x.Retain()
	x.Release()
	x.Release()
	again := x.Retain() // of what another holder has still
	again.Release()
	kept.Release()
	require.PanicsWithValue(t, "baton: retained after its last release", func() { x.Retain() })
	for what, err := range map[string]error{
		"reshape": second(x.Reshape(1)), "slice": second(x.Slice(0, 0, 1)), "elements": second(client.Slice[float32](x)),
	} {
		require.ErrorIs(t, err, protocol.ErrClosed, what)
	}

	_, err := p.Set(ctx, "n", tensor(t, p, 2))
	require.NoError(t, err)
	b, err := c.Get(ctx, "n")
	require.NoError(t, err)
	lent := b.Tensors()[0]
	require.NoError(t, second(client.Slice[float32](lent)))
	b.Release()
	require.ErrorIs(t, second(client.Slice[float32](lent)), protocol.ErrClosed)
	require.Panics(t, func() { lent.Retain() })
	require.Panics(t, b.Retain)
	require.Panics(t, b.Release)
}

func second[T any](_ T, err error) error { return err }
