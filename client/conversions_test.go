package client_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// conversions are those that every language has: see its doc.
type conversions struct {
	Values [][3]string
	Calls  [][2]string
}

func readConversions(t *testing.T) (all conversions) {
	text, err := os.ReadFile("../protocol/testdata/conversions.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	require.Greater(t, len(all.Values), 150)
	return all
}

// valueOf makes the value of a text.
func valueOf(t *testing.T, c *client.Client, text string) any {
	kind, rest, _ := strings.Cut(text, " ")
	switch kind {
	case "none":
		return nil
	case "bool":
		return rest == "true"
	case "int":
		n, ok := new(big.Int).SetString(rest, 10)
		require.True(t, ok, text)
		if n.IsInt64() {
			return n.Int64()
		}
		return n
	case "float":
		f, err := strconv.ParseFloat(rest, 64)
		require.NoError(t, err)
		return f
	case "str":
		return rest
	case "bytes":
		b, err := hex.DecodeString(rest)
		require.NoError(t, err)
		return b
	case "list":
		return []any{}
	case "tuple":
		return protocol.ValueTuple{}
	case "dict":
		return map[string]any{}
	case "dtype":
		d, err := dlpack.ParseDType(rest)
		require.NoError(t, err)
		return d
	case "tensor":
		parts := strings.Split(rest, " ")
		require.Len(t, parts, 3)
		d, err := dlpack.ParseDType(parts[0])
		require.NoError(t, err)
		shape := []int64{1}
		if parts[1] == "0d" {
			shape = []int64{}
		}
		x, err := c.Alloc(limited(t), d, shape)
		require.NoError(t, err)
		b, err := x.Bytes()
		require.NoError(t, err)
		n, err := hex.Decode(b, []byte(parts[2]))
		require.NoError(t, err)
		require.Len(t, b, n)
		t.Cleanup(x.Release)
		return x
	}
	t.Fatalf("no value: %s", text)
	return nil
}

func sameValue(t *testing.T, got, want any) bool {
	switch want := want.(type) {
	case float64:
		f, is := got.(float64)
		return is && (math.IsNaN(f) && math.IsNaN(want) || math.Float64bits(f) == math.Float64bits(want))
	case *client.Tensor:
		x, is := got.(*client.Tensor)
		if !is || x.DType() != want.DType() || len(x.Shape()) != len(want.Shape()) {
			return false
		}
		a, err := x.Bytes()
		require.NoError(t, err)
		b, err := want.Bytes()
		require.NoError(t, err)
		return bytes.Equal(a, b)
	}
	return reflect.DeepEqual(got, want)
}

func TestConversionsAreThoseOfEveryLanguage(t *testing.T) {
	ctx, c, p := pair(t)
	var runs atomic.Int64
	for at, k := range readConversions(t).Values {
		name := fmt.Sprintf("f%d", at)
		r := handle(t, p, name, func(_ context.Context, in client.Args) (any, error) {
			runs.Add(1)
			v, err := in.At(0)
			if x, is := v.(*client.Tensor); is {
				return x.Retain(), err
			}
			return v, err
		}, client.TakesArgs(client.Parameter("x", k[1], "", "")))
		before := runs.Load()
		got, err := client.Call[any](ctx, c, name, valueOf(t, c, k[0]))
		if k[2] == "refused" {
			require.ErrorIs(t, err, protocol.ErrInvalid, k)
			require.ErrorContains(t, err, "parameter x", k)
			require.Equal(t, before, runs.Load(), k)
		} else {
			require.NoError(t, err, k)
			require.True(t, sameValue(t, got, valueOf(t, c, k[2])), "%v gave %v", k, got)
			if x, is := got.(*client.Tensor); is {
				x.Release()
			}
		}
		require.NoError(t, r.Close(ctx))
	}
}

func TestArgumentsAreBoundAsInEveryLanguage(t *testing.T) {
	ctx, c, p := pair(t)
	var runs atomic.Int64
	handle(t, p, "f", func(_ context.Context, in client.Args) (int64, error) { return runs.Add(1), nil },
		client.TakesArgs(client.Parameter("p", "int64", "position", ""), client.Parameter("a", "int64", "", ""), client.Parameter("b", "float", "name", "2.0")))
	for _, k := range readConversions(t).Calls {
		var args []any
		for _, text := range strings.Split(k[0], " | ") {
			switch name, value, named := strings.Cut(text, "="); {
			case named:
				args = append(args, client.Arg(name, valueOf(t, c, value)))
			case text != "":
				args = append(args, valueOf(t, c, text))
			}
		}
		before := runs.Load()
		_, err := client.Call[int64](ctx, c, "f", args...)
		if k[1] == "given" {
			require.NoError(t, err, k)
			continue
		}
		require.ErrorIs(t, err, protocol.ErrInvalid, k)
		require.Regexp(t, `\b`+k[1]+`\b`, strings.Split(err.Error(), "; the function takes")[0], k)
		require.Equal(t, before, runs.Load(), k)
	}
}
