package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

var errOutOfStock = errors.New("out of stock")

// tooLarge is an error that names its own kind.
type tooLarge struct{ message string }

func (e *tooLarge) Error() string { return e.message }
func (e *tooLarge) Kind() string  { return "test.TooLarge" }

func TestErrorsOfRegisteredKindsAreThoseOfTheProgram(t *testing.T) {
	require.NoError(t, client.RegisterError("test.OutOfStock", func(*client.RemoteError) error { return errOutOfStock }))
	require.NoError(t, client.RegisterError("test.TooLarge", func(e *client.RemoteError) error { return &tooLarge{e.Message} }))
	require.ErrorIs(t, client.RegisterError("test.TooLarge", func(*client.RemoteError) error { return nil }), protocol.ErrConflict)
	for _, kind := range []string{"", "baton.Timeout"} {
		require.ErrorIs(t, client.RegisterError(kind, func(*client.RemoteError) error { return nil }), protocol.ErrInvalid)
	}
	ctx, c, p := pair(t)
	fail := map[string]error{
		"sentinel": client.OfKind("test.OutOfStock", fmt.Errorf("pens: %w", errOutOfStock)),
		"typed":    fmt.Errorf("order: %w", &tooLarge{"1,000 pens"}),
		"cause":    &client.RemoteError{Kind: "ValueError", Message: "no", Cause: &client.RemoteError{Kind: "test.OutOfStock"}},
		"other":    errors.New("other"),
		"unnamed":  &client.RemoteError{Message: "other"},
	}
	handle(t, p, "fail", func(_ context.Context, how string) (any, error) { return nil, fail[how] })
	ended := func(how string) (remote *client.RemoteError) {
		_, err := client.Call[any](ctx, c, "fail", how)
		require.ErrorIs(t, err, protocol.ErrRemote)
		require.ErrorAs(t, err, &remote)
		return remote
	}
	e := ended("sentinel")
	require.ErrorIs(t, e, errOutOfStock)
	require.Equal(t, []string{"test.OutOfStock", "pens: out of stock"}, []string{e.Kind, e.Message})
	var large *tooLarge
	require.False(t, errors.As(e, &large))
	e = ended("typed")
	require.ErrorAs(t, e, &large)
	require.Equal(t, "order: 1,000 pens", large.message)
	require.NotErrorIs(t, e, errOutOfStock)
	e = ended("cause")
	require.NotErrorIs(t, e, errOutOfStock)
	require.ErrorIs(t, e.Cause, errOutOfStock)
	require.Equal(t, "error", ended("other").Kind)
	require.Equal(t, "error", ended("unnamed").Kind)
}

func TestFunctionThatLingersIsRegisteredAndNotCalled(t *testing.T) {
	ctx, c, p := pair(t)
	r := handle(t, p, "lingers", func(context.Context, struct{}) (int, error) { return 1, nil }, client.Linger(1<<50))
	require.NoError(t, r.Close(ctx))
	_, err := client.Call[int](ctx, c, "lingers")
	require.ErrorIs(t, err, protocol.ErrNoProvider)
	r = handle(t, p, "goes", func(context.Context, struct{}) (int, error) { return 1, nil })
	require.NoError(t, r.Close(ctx))
	_, err = client.Call[int](ctx, c, "goes")
	require.ErrorIs(t, err, protocol.ErrNotFound)
}
