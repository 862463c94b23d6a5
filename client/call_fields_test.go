package client_test

import (
	"context"
	"math/big"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

func TestOptionalPointersAreLeftOutOrNil(t *testing.T) {
	ctx, c, p := pair(t)
	type in struct {
		N    *big.Int         `baton:"n,optional"`
		M    *int64           `baton:"m"`
		X    *client.Tensor   `baton:"x,optional"`
		F    *client.Function `baton:"f,optional"`
		Null *big.Int         `baton:"null,default=null"`
		Last *big.Int         `baton:"last,default=7"`
	}
	handle(t, p, "big", func(_ context.Context, in in) (string, error) {
		require.Nil(t, in.X)
		require.Nil(t, in.F)
		require.Nil(t, in.Null)
		if in.N == nil {
			return "none " + in.Last.String(), nil
		}
		return in.N.String() + " " + in.Last.String(), nil
	})
	f, err := c.Function(ctx, "big")
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, "(n: int|none = …, m: int64|none = …, x: tensor|none = …, f: function|none = …, null: int|none = null, last: int = 7) -> str", f.Signature())
	var none *big.Int
	huge := new(big.Int).Lsh(big.NewInt(1), 100)
	for _, row := range []struct {
		want string
		args []any
	}{
		{"none 7", nil},
		{"none 7", []any{nil}},
		{"none 7", []any{none, none, nil, nil, none}},
		{"5 7", []any{5}},
		{huge.String() + " 7", []any{huge}},
		{"none " + huge.String(), []any{client.Arg("last", huge), client.Arg("n", none)}},
	} {
		got, err := client.CallOf[string](ctx, f, row.args...)
		require.NoError(t, err)
		require.Equal(t, row.want, got)
	}
	_, err = client.CallOf[string](ctx, f, client.Arg("last", nil))
	require.ErrorIs(t, err, protocol.ErrInvalid)
}

func TestADefaultIsAnotherOneForEachCall(t *testing.T) {
	ctx, c, p := pair(t)
	type in struct {
		N *big.Int       `baton:"n,default={\"$\":\"int\",\"v\":\"1267650600228229401496703205376\"}"`
		M map[string]any `baton:"m,default={\"a\":1}"`
		L any            `baton:"l,default=[1]"`
	}
	handle(t, p, "changes", func(_ context.Context, in in) (string, error) {
		was := in.N.String()
		in.N.Add(in.N, big.NewInt(1))
		l := in.L.([]any)
		require.Equal(t, int64(1), l[0])
		require.Len(t, in.M, 1)
		l[0], in.M["b"] = int64(2), 2
		return was, nil
	})
	for range 3 {
		got, err := client.Call[string](ctx, c, "changes")
		require.NoError(t, err)
		require.Equal(t, "1267650600228229401496703205376", got)
	}
}

func TestParametersWithOddNamesAreRefusedAsTheyAreProvided(t *testing.T) {
	_, _, p := pair(t)
	_, err := client.Handle(p, "odd", func(context.Context, struct {
		X int `baton:"a b"`
	}) (int, error) {
		return 0, nil
	})
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.ErrorContains(t, err, "the name of parameter 1 has white space or a control character (use letters, digits and _)")
}
