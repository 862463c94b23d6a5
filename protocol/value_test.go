package protocol_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// leaf is a tensor for these tests.
type leaf struct{ id int }

func isLeaf(v any) bool { _, ok := v.(leaf); return ok }

func pick(tensors []protocol.NamedTensor) func(int) (any, error) {
	return func(i int) (any, error) {
		if i >= len(tensors) {
			return nil, fmt.Errorf("no tensor %d", i)
		}
		return tensors[i].Tensor, nil
	}
}

func names(tensors []protocol.NamedTensor) []string {
	out := []string{}
	for _, x := range tensors {
		out = append(out, x.Name)
	}
	return out
}

func bigInt(s string) *big.Int {
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		panic(s)
	}
	return n
}

func TestTreeIsWrittenAsDocumented(t *testing.T) {
	for _, c := range []struct {
		value any
		tree  string
		names []string
	}{
		{nil, `null`, nil},
		{true, `true`, nil},
		{-7, `-7`, nil},
		{uint8(255), `255`, nil},
		{int64(protocol.MaxSafeInt), `9007199254740991`, nil},
		{int64(protocol.MaxSafeInt + 1), `{"$":"int","v":"9007199254740992"}`, nil},
		{uint64(math.MaxUint64), `{"$":"int","v":"18446744073709551615"}`, nil},
		{int64(math.MinInt64), `{"$":"int","v":"-9223372036854775808"}`, nil},
		{bigInt("-123456789012345678901234567890"), `{"$":"int","v":"-123456789012345678901234567890"}`, nil},
		{big.NewInt(5), `5`, nil},
		{1.0, `1.0`, nil},
		{math.Copysign(0, -1), `-0.0`, nil},
		{0.1, `0.1`, nil},
		{1e300, `1e+300`, nil},
		{1e15, `1000000000000000.0`, nil},
		{float32(0.5), `0.5`, nil},
		{math.NaN(), `{"$":"float","v":"nan"}`, nil},
		{math.Inf(1), `{"$":"float","v":"inf"}`, nil},
		{math.Inf(-1), `{"$":"float","v":"-inf"}`, nil},
		{"a\"\\\n\x01ü", `"a\"\\\n\u0001ü"`, nil},
		{[]byte{0, 1, 255}, `{"$":"bytes","v":"AAH/"}`, nil},
		{[]any{}, `[]`, nil},
		{protocol.ValueTuple{1, "a"}, `{"$":"tuple","v":[1,"a"]}`, nil},
		{map[string]any{"b": 1, "a": nil}, `{"a":null,"b":1}`, nil},
		{map[string]any{"$": 1}, `{"$":"dict","v":[["$",1]]}`, nil},
		{protocol.Dict{{2, "x"}, {"k", leaf{}}, {protocol.ValueTuple{1, nil}, leaf{}}},
			`{"$":"dict","v":[[2,"x"],["k",{"$":"tensor","i":0}],[{"$":"tuple","v":[1,null]},{"$":"tensor","i":1}]]}`,
			[]string{"k", `{"$":"tuple","v":[1,null]}`}},
		{[]any{protocol.ValueFunction{Name: "a/b@1"}}, `[{"$":"function","name":"a/b@1"}]`, nil},
		{[]any{protocol.ValueFunction{Token: "000102030405060708090a0b0c0d0e0f", Object: 7}}, `[{"$":"function","object":7,"token":"000102030405060708090a0b0c0d0e0f"}]`, nil},
		{protocol.Dataclass{Type: "m:C", Value: map[string]any{"x": leaf{}}}, `{"$":"dataclass","type":"m:C","v":{"x":{"$":"tensor","i":0}}}`, []string{"x"}},
		{leaf{}, ``, []string{""}},
		{map[string]any{"b": leaf{}, "a/~": leaf{}}, ``, []string{"a~1~0", "b"}},
		{map[string]any{}, ``, nil},
		{map[string]any{"": leaf{}}, `{"":{"$":"tensor","i":0}}`, []string{""}},
		{map[string]any{"": []any{leaf{}}}, `{"":[{"$":"tensor","i":0}]}`, []string{"/0"}},
		{map[string]any{"$": leaf{}}, ``, []string{"$"}},
		{protocol.ValueTuple{leaf{}, map[string]any{"w": leaf{}, "n": 3}},
			`{"$":"tuple","v":[{"$":"tensor","i":0},{"n":3,"w":{"$":"tensor","i":1}}]}`, []string{"0", "1/w"}},
		{[]any{leaf{}}, `[{"$":"tensor","i":0}]`, []string{"0"}},
	} {
		tree, tensors, err := protocol.EncodeTree(c.value, isLeaf)
		require.NoError(t, err, "%v", c.value)
		assert.Equal(t, c.tree, string(tree))
		assert.ElementsMatch(t, c.names, names(tensors), "%v", c.value)
	}
}

func randomKey(r *rand.Rand) any {
	switch r.IntN(6) {
	case 0:
		return r.Int64()
	case 1:
		return r.NormFloat64()
	case 2:
		return protocol.ValueTuple{int64(r.IntN(9)), nil, true}
	case 3:
		return []byte{byte(r.Uint32())}
	default:
		return fmt.Sprintf("k/%d~", r.IntN(1000))
	}
}

// randomValue makes what DecodeTree gives, so that it can be compared.
func randomValue(r *rand.Rand, depth int, next *int) any {
	kinds := 14
	if depth == 0 {
		kinds = 9
	}
	switch r.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return r.IntN(2) == 0
	case 2:
		return int64(r.Uint64())
	case 3:
		return math.Float64frombits(r.Uint64() &^ (1 << 62)) // finite
	case 4:
		return strings.Repeat("$\u2028\U0001f600\x00/~", r.IntN(3))
	case 5:
		return []byte(strings.Repeat("\xff\x00", r.IntN(3)))
	case 6:
		return new(big.Int).Lsh(big.NewInt(1+r.Int64N(9)), 64+uint(r.IntN(100)))
	case 7, 8:
		*next++
		return leaf{*next}
	case 9:
		out := []any{}
		for range r.IntN(4) {
			out = append(out, randomValue(r, depth-1, next))
		}
		return out
	case 10:
		out := protocol.ValueTuple{}
		for range r.IntN(4) {
			out = append(out, randomValue(r, depth-1, next))
		}
		return out
	case 11:
		out := map[string]any{}
		for range r.IntN(4) {
			key := []string{"$", "", "a/b", "~", "x", "é"}[r.IntN(6)]
			if _, twice := out[key]; !twice {
				out[key] = randomValue(r, depth-1, next)
			}
		}
		return out
	case 12:
		out := protocol.Dict{{Key: true, Value: nil}}
		for i := range r.IntN(4) {
			out = append(out, protocol.DictItem{Key: protocol.ValueTuple{int64(i), randomKey(r)}, Value: randomValue(r, depth-1, next)})
		}
		return out
	default:
		return protocol.Dataclass{Type: "pkg.mod:Outer.<locals>.C", Value: map[string]any{"f": randomValue(r, depth-1, next)}}
	}
}

func TestValueDecodesToWhatWasEncoded(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		next := 0
		want := randomValue(r, 5, &next)
		tree, tensors, err := protocol.EncodeTree(want, isLeaf)
		require.NoError(t, err)
		require.Len(t, tensors, next)
		got, err := protocol.DecodeValue(tree, names(tensors), pick(tensors))
		require.NoError(t, err, "%s", tree)
		require.Equal(t, want, got, "%s", tree)
		again, _, err := protocol.EncodeTree(got, isLeaf)
		require.NoError(t, err)
		require.Equal(t, string(tree), string(again))
	}
}

func TestEncodeTreeGivesEqualBytesForEqualMaps(t *testing.T) {
	flat, mixed := map[string]any{}, map[string]any{"$": 1}
	for i := range 50 {
		flat[fmt.Sprint("key", i)], mixed[fmt.Sprint("key", i)] = leaf{i}, leaf{i}
	}
	for _, m := range []any{flat, mixed, []any{flat}, protocol.Dataclass{Type: "m:C", Value: flat}} {
		tree, tensors, err := protocol.EncodeTree(m, isLeaf)
		require.NoError(t, err)
		for range 20 {
			again, others, err := protocol.EncodeTree(m, isLeaf)
			require.NoError(t, err)
			require.Equal(t, tree, again)
			require.Equal(t, tensors, others)
		}
	}
}

func TestEncodeTreeNamesPathAndTypeOfWhatItRefuses(t *testing.T) {
	deep := func(bad any) any {
		return map[string]any{"a/b": []any{1, protocol.ValueTuple{bad}}}
	}
	for text, v := range map[string]any{
		`"a~1b/1/0" of the value has the Go type struct {}`:             deep(struct{}{}),
		`"a~1b/1/0" of the value has the Go type map[string]int`:        deep(map[string]int{}),
		`"a~1b/1/0" of the value has the Go type chan int`:              deep(make(chan int)),
		`"a~1b/1/0" of the value is text that is not UTF-8`:             deep("\xff"),
		`"a~1b/1/0" of the value is a nil *big.Int`:                     deep((*big.Int)(nil)),
		`"a~1b/1/0" of the value is an integer of more than`:            deep(new(big.Int).Lsh(big.NewInt(1), 1<<20)),
		`"a~1b/1/0" of the value is a dataclass of type ""`:             deep(protocol.Dataclass{}),
		`"a~1b/1/0" of the value is a dataclass with a field named $`:   deep(protocol.Dataclass{Type: "m:C", Value: map[string]any{"$": 1}}),
		`"a~1b/1/0" of the value has the Go type map[string]interface `: deep(protocol.Dict{{map[string]any{}, 1}}),
		`"a~1b/1/0" of the value has the Go type []interface {}`:        deep(protocol.Dict{{[]any{}, 1}}),
		`"a~1b/1/0" of the value has the Go type protocol_test.leaf`:    deep(protocol.Dict{{leaf{}, 1}}),
		`"a~1b/1/0" of the value has the key 3 twice`:                   deep(protocol.Dict{{3, 1}, {int8(3), 1}}),
		`the value has the Go type complex128`:                          1i,
		`"%d\xff" of the value is text that is not UTF-8`:               map[string]any{"%d\xff": 1},
		`"%d\xff" of the value has a path that is not UTF-8`:            map[string]any{"%d\xff": leaf{}},
		`of the value has a path of 64473 bytes`:                        map[string]any{strings.Repeat("x", protocol.MaxTensorName+1): leaf{}},
		`of the value makes the description longer than`:                []any{make([]byte, protocol.MaxBody)},
	} {
		_, _, err := protocol.EncodeTree(v, isLeaf)
		assert.ErrorIs(t, err, protocol.ErrInvalid, text)
		assert.ErrorContains(t, err, text)
	}
}

func TestEncodeTreeRefusesValueThatContainsItself(t *testing.T) {
	list := []any{nil, nil}
	list[0], list[1] = list, list
	m := map[string]any{}
	m["m"] = protocol.ValueTuple{m}
	d := protocol.Dict{{1, nil}}
	d[0].Value = d
	for _, v := range []any{list, m, d} {
		_, _, err := protocol.EncodeTree(v, isLeaf)
		assert.ErrorIs(t, err, protocol.ErrInvalid)
		assert.ErrorContains(t, err, "nested deeper")
		assert.Less(t, len(err.Error()), 200, "of a long path both ends are said")
	}
}

func TestEncodeTreeNamesBothEndsOfALongPath(t *testing.T) {
	var deep any = make(chan int)
	for range 20 {
		deep = []any{deep}
	}
	_, _, err := protocol.EncodeTree(deep, isLeaf)
	assert.ErrorContains(t, err, `"0/0/0/0/…/0/0/0/0" of the value`)
	_, _, err = protocol.EncodeTree(map[string]any{"x": 1, strings.Repeat("é", 1000): make(chan int)}, isLeaf)
	half := strings.Repeat("é", 30)
	assert.ErrorContains(t, err, `"`+half+"…"+half+`" of the value`)
}

func TestTreeDepthIsTheSameForBothSides(t *testing.T) {
	for name, inner := range map[string]any{"list": []any{}, "tensor": leaf{}, "float": math.Inf(1), "bytes": []byte{}} {
		v := inner
		for range protocol.MaxTreeDepth - 1 {
			v = []any{v}
		}
		tree, tensors, err := protocol.EncodeTree(v, isLeaf)
		require.NoError(t, err, name)
		_, err = protocol.DecodeTree(tree, pick(tensors))
		require.NoError(t, err, name)
		_, _, err = protocol.EncodeTree([]any{v}, isLeaf)
		assert.ErrorIs(t, err, protocol.ErrInvalid, name)
		_, err = protocol.DecodeTree([]byte("["+string(tree)+"]"), pick(tensors))
		assert.ErrorIs(t, err, protocol.ErrProtocol, name)
	}
}

func TestEncodeTreeRefusesTooManyTensors(t *testing.T) {
	v := make([]any, protocol.MaxTensors+1)
	for i := range v {
		v[i] = leaf{i}
	}
	_, _, err := protocol.EncodeTree(v, isLeaf)
	assert.ErrorIs(t, err, protocol.ErrInvalid)
	_, _, err = protocol.EncodeTree(map[string]any{strings.Repeat("x", 60000): v[1:2000]}, isLeaf)
	assert.ErrorContains(t, err, "makes the description longer", "each name has the long key")
	_, tensors, err := protocol.EncodeTree(v[1:], isLeaf)
	require.NoError(t, err)
	assert.Len(t, tensors, protocol.MaxTensors)
}

func TestDecodeTreeReadsWhatOthersMayWrite(t *testing.T) {
	for tree, want := range map[string]any{
		` [ 1 , 2.5e0 ] `:                          []any{int64(1), 2.5},
		`{"i":0,"$":"tensor"}`:                     leaf{1},
		`"\u0041\/\ud83d\ude00\b\f\r\t"`:           "A/\U0001f600\b\f\r\t",
		`1E5`:                                      1e5,
		`1e-999`:                                   0.0,
		`{"$":"dict","v":[["a",1],["$",2]]}`:       map[string]any{"a": int64(1), "$": int64(2)},
		`{"v":{},"type":"m:C","$":"dataclass"}`:    protocol.Dataclass{Type: "m:C", Value: map[string]any{}},
		`{"$":"int","v":"-9007199254740992"}`:      int64(-1 << 53),
		`{"$":"int","v":"9223372036854775808"}`:    bigInt("9223372036854775808"),
		`{"tensor":{"$":"tensor","i":0},"i":[{}]}`: map[string]any{"tensor": leaf{1}, "i": []any{map[string]any{}}},
	} {
		got, err := protocol.DecodeTree([]byte(tree), func(int) (any, error) { return leaf{1}, nil })
		require.NoError(t, err, tree)
		assert.Equal(t, want, got, tree)
	}
}

func TestDecodeTreeReturnsErrorOfTensorAsItIs(t *testing.T) {
	mine := errors.New("mine")
	_, err := protocol.DecodeTree([]byte(`[{"$":"tensor","i":3}]`), func(i int) (any, error) {
		assert.Equal(t, 3, i)
		return nil, mine
	})
	assert.Same(t, mine, err)
}

func TestMessageWithoutTreeIsOneTensorOrFlatDict(t *testing.T) {
	tensors := pick([]protocol.NamedTensor{{Tensor: leaf{1}}, {Tensor: leaf{2}}})
	for _, c := range []struct {
		names []string
		tree  string
		want  any
	}{
		{[]string{""}, `{"$":"tensor","i":0}`, leaf{1}},
		{nil, `{}`, map[string]any{}},
		{[]string{"a"}, `{"a":{"$":"tensor","i":0}}`, map[string]any{"a": leaf{1}}},
		{[]string{"a/b", "~0~1"}, `{"a/b":{"$":"tensor","i":0},"~/":{"$":"tensor","i":1}}`, map[string]any{"a/b": leaf{1}, "~/": leaf{2}}},
		{[]string{"$", "b"}, `{"$":"dict","v":[["$",{"$":"tensor","i":0}],["b",{"$":"tensor","i":1}]]}`, map[string]any{"$": leaf{1}, "b": leaf{2}}},
	} {
		tree, err := protocol.TreeOf(c.names)
		require.NoError(t, err)
		assert.Equal(t, c.tree, string(tree))
		for _, tree := range [][]byte{nil, tree} {
			got, err := protocol.DecodeValue(tree, c.names, tensors)
			require.NoError(t, err)
			assert.Equal(t, c.want, got)
		}
	}
	for _, bad := range [][]string{{"", ""}, {"a", ""}, {"a", "a"}, {"a/b", "a~1b"}, {"~"}, {"~2"}, {"\xff"}} {
		_, err := protocol.TreeOf(bad)
		assert.ErrorIs(t, err, protocol.ErrInvalid, "%q", bad)
		_, err = protocol.DecodeValue(nil, bad, tensors)
		assert.ErrorIs(t, err, protocol.ErrProtocol, "%q", bad)
	}
	_, err := protocol.DecodeTree(nil, tensors)
	assert.ErrorIs(t, err, protocol.ErrProtocol)
}

func TestTensorPathEscapesItsParts(t *testing.T) {
	assert.Equal(t, "a~1b/~0/0", protocol.TensorPath("a/b", "~", "0"))
	assert.Equal(t, "", protocol.TensorPath())
}
