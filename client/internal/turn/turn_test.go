package turn

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWaitForATurnEndsWithItsContextAndTheTurnGoesOn(t *testing.T) {
	lock := New()
	require.NoError(t, lock.Take(t.Context()))
	require.False(t, lock.Try())
	ctx, cancel := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() { gaveUp <- lock.Take(ctx) }()
	for !lock.Awaited() {
	}
	cancel()
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	lock.End()
	lock.Must()
	next := make(chan error)
	go func() { next <- lock.Take(context.Background()) }()
	for !lock.Awaited() {
	}
	lock.End()
	require.NoError(t, <-next)
	lock.End()
	require.True(t, lock.Try())
}
