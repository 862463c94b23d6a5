package fault

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

func TestWhatAnErrorLeavesOpen(t *testing.T) {
	for _, c := range []struct {
		err                           error
		lost, uncertain, final, about bool
	}{
		{err: nil},
		{err: errors.New("other"), uncertain: true},
		{err: protocol.Errorf(protocol.CodeBrokerLost, "", "gone"), lost: true, uncertain: true},
		{err: protocol.Errorf(protocol.CodeTimeout, "", "late"), uncertain: true},
		{err: protocol.Errorf(protocol.CodeExpired, "", "unknown"), final: true},
		{err: protocol.Errorf(protocol.CodeConflict, "", "refused")},
		{err: AboutDevice(protocol.Errorf(protocol.CodeUnsupported, "", "no driver"), "cuda:0"), about: true},
	} {
		require.Equal(t, c.lost, IsLost(c.err), "%v", c.err)
		require.Equal(t, c.uncertain, Uncertain(c.err), "%v", c.err)
		require.Equal(t, c.final, IsFinal(c.err), "%v", c.err)
		require.Equal(t, c.about, Unreachable(c.err), "%v", c.err)
	}
}

func TestEndOfAContextIsATimeoutAtItsDeadlineAlone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	require.ErrorIs(t, Context(ctx, "waiting"), protocol.ErrTimeout)
	given, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Context(given, "waiting"), context.Canceled)
	require.NotErrorIs(t, Context(given, "waiting"), protocol.ErrTimeout)
}
