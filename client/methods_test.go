package client_test

import (
	"context"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

type store struct{ kept map[string]int }

func (s *store) Put(_ context.Context, in struct {
	Key   string
	Value int `baton:",optional"`
}) (int, error) {
	s.kept[in.Key] = in.Value
	return len(s.kept), nil
}

func (s *store) Get(_ context.Context, key string) (int, error) {
	n, has := s.kept[key]
	if !has {
		return 0, &client.RemoteError{Kind: "KeyError", Message: key}
	}
	return n, nil
}

func (s *store) Each(ctx context.Context, all client.Args, send func(string) error) error {
	for i := range all.Len() {
		v, err := all.At(i)
		if err == nil {
			err = send(v.(string))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *store) Len() int                               { return len(s.kept) }
func (s *store) Many(_ context.Context, _ ...int) error { return nil }

func TestMethodsAreFunctionsOfOneGroup(t *testing.T) {
	ctx, c, p := pair(t)
	g, err := client.HandleMethods(p, "store", &store{map[string]int{}}, client.Doc("A store."))
	require.NoError(t, err)
	var names []string
	for _, r := range g.Registrations() {
		names = append(names, r.Name())
	}
	require.Equal(t, []string{"store/each", "store/get", "store/put"}, names)
	n, err := client.Call[int](ctx, c, "store/put", "a", client.Arg("value", 7))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	n, err = client.Call[int](ctx, c, "store/get", "a")
	require.NoError(t, err)
	require.Equal(t, 7, n)
	_, err = client.Call[int](ctx, c, "store/get", "b")
	require.ErrorContains(t, err, "KeyError: b")
	_, err = client.Call[int](ctx, c, "store/get", 1)
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.Equal(t, []string{"x", "y"}, collect(t, client.Parts[string](ctx, c, "store/each", "x", "y")))
	_, err = client.HandleMethods(p, "store", &store{}, client.Override())
	require.ErrorIs(t, err, protocol.ErrConflict, "once in a session")
	require.NoError(t, g.Close(ctx))
	_, err = client.Call[int](ctx, c, "store/get", "a")
	require.Error(t, err)
	for _, v := range []any{store{}, 1, nil} {
		_, err = client.HandleMethods(p, "store", v)
		require.ErrorIs(t, err, protocol.ErrInvalid)
	}
	_, err = client.HandleMethods(p, "no such", &store{})
	require.ErrorIs(t, err, protocol.ErrInvalid)
}
