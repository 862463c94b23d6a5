package client_test

import (
	"context"
	"errors"
	"math/big"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// level is a number with a text.
type level int

func (l level) MarshalText() ([]byte, error) {
	if l < 0 {
		return nil, errors.New("no level")
	}
	return []byte("level " + string(rune('0'+l))), nil
}

func (l *level) UnmarshalText(text []byte) error {
	if len(text) != 7 {
		return errors.New("no level")
	}
	*l = level(text[6] - '0')
	return nil
}

// stamped has its text from a field; the others are not in that.
type stamped struct {
	time.Time
	Note string
}

type texts struct {
	At      time.Time
	Maybe   *time.Time `baton:"maybe"`
	Addr    netip.Addr
	Factor  *big.Float `baton:"factor"`
	Rank    level      `baton:"rank,default=\"level 3\""`
	Seen    []time.Time
	ByAddr  map[netip.Addr]level `baton:"by_addr"`
	Stamped stamped
}

type onlyHidden struct{ n int }

type hasHidden struct {
	Name string
	Of   onlyHidden
}

func TestGoTypesWithATextAreCarriedAsText(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "f", func(_ context.Context, in texts) (texts, error) { return in, nil })
	f, err := c.Function(ctx, "f")
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, "(at: str, maybe: str|none = …, addr: str, factor: str|none = …, rank: str = \"level 3\", "+
		"seen: list, by_addr: dict, stamped: dict) -> dict", f.Signature())

	at := time.Date(2024, 5, 6, 7, 8, 9, 123456789, time.FixedZone("", 3600))
	addr := netip.MustParseAddr("2001:db8::1")
	args := []any{client.Arg("at", at), client.Arg("maybe", &at), client.Arg("addr", addr), client.Arg("factor", big.NewFloat(0.5)),
		client.Arg("seen", []time.Time{at}), client.Arg("by_addr", map[netip.Addr]level{addr: 7}), client.Arg("stamped", stamped{at, "a"})}
	got, err := client.CallOf[texts](ctx, f, args...)
	require.NoError(t, err)
	require.True(t, got.At.Equal(at) && got.Maybe.Equal(at) && got.Seen[0].Equal(at) && got.Stamped.Time.Equal(at), got)
	require.Equal(t, addr, got.Addr)
	require.Zero(t, got.Factor.Cmp(big.NewFloat(0.5)))
	require.Equal(t, level(3), got.Rank, "the default")
	require.Equal(t, map[netip.Addr]level{addr: 7}, got.ByAddr)
	require.Equal(t, "a", got.Stamped.Note)

	plain, err := f.Call(ctx, args...)
	require.NoError(t, err)
	require.Equal(t, map[string]any{"at": "2024-05-06T07:08:09.123456789+01:00", "maybe": "2024-05-06T07:08:09.123456789+01:00", "addr": "2001:db8::1",
		"factor": "0.5", "rank": "level 3", "seen": []any{"2024-05-06T07:08:09.123456789+01:00"}, "by_addr": map[string]any{"2001:db8::1": "level 7"},
		"stamped": map[string]any{"time": "2024-05-06T07:08:09.123456789+01:00", "note": "a"}}, plain)

	for what, arg := range map[string]client.NamedArg{
		"rank is str, and a int is given": client.Arg("rank", 3),
		"has no text: no level":           client.Arg("rank", level(-1)),
	} {
		_, err = client.CallOf[any](ctx, f, append(args, arg)...)
		require.ErrorIs(t, err, protocol.ErrInvalid)
		require.ErrorContains(t, err, what)
	}
	_, err = client.CallOf[any](ctx, f, append(args, client.Arg("rank", "high"))...)
	require.ErrorIs(t, err, protocol.ErrRemote, "what the signature does not tell is found at the provider")
	require.ErrorContains(t, err, "the parameter rank: the str is no client_test.level: no level")

	handle(t, p, "one", func(_ context.Context, at time.Time) (time.Time, error) { return at.Add(time.Second), nil })
	later, err := client.Call[time.Time](ctx, c, "one", at)
	require.NoError(t, err)
	require.True(t, later.Equal(at.Add(time.Second)), later)
	handle(t, p, "big", func(_ context.Context, n *big.Int) (*big.Int, error) { return n, nil })
	n, err := client.Call[any](ctx, c, "big", big.NewInt(5))
	require.NoError(t, err)
	require.Equal(t, int64(5), n, "an int has a kind of its own")
}

func TestKeysWithTheSameTextAreRefused(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "f", func(_ context.Context, in client.Args) (any, error) { return in.At(0) })
	at := time.Now() // it has a monotonic clock, which its text leaves out
	_, err := client.Call[any](ctx, c, "f", map[time.Time]int{at: 1, at.Round(0): 2})
	require.ErrorIs(t, err, protocol.ErrInvalid)
	require.ErrorContains(t, err, "two keys of a map[time.Time]int have the text")
}

func TestWhatCannotBeCarriedIsRefusedByItsType(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "f", func(_ context.Context, in client.Args) (any, error) { return in.At(0) })
	var results sync.Map
	handle(t, p, "gives", func(_ context.Context, name string) (any, error) {
		v, _ := results.Load(name)
		return v, nil
	})
	var failed error = &protocol.Error{Code: protocol.CodeFull}
	for what, v := range map[string]any{
		"client_test.onlyHidden has unexported": onlyHidden{1},
		"client_test.onlyHidden has":            []any{map[string]any{"a": &onlyHidden{1}}},
		"sync.Mutex has":                        &sync.Mutex{},
		"field Of of client_test.hasHidden":     hasHidden{Name: "a"},
		"Go error (*errors.errorString)":        errors.New("no"),
		"Go error (*protocol.Error)":            []error{nil, failed},
		"Go error (*errors.joinError)":          struct{ Err error }{errors.Join(failed)},
	} {
		_, err := client.Call[any](ctx, c, "f", v)
		require.ErrorIs(t, err, protocol.ErrInvalid, what)
		require.ErrorContains(t, err, what)
		require.Regexp(t, `UnixNano|err\.Error\(\)`, err.Error(), "the remedy")
		results.Store(what, v)
		_, err = client.Call[any](ctx, c, "gives", what)
		var remote *client.RemoteError
		require.ErrorAs(t, err, &remote, what)
		require.Equal(t, "baton.InvalidArgument", remote.Kind)
		require.Contains(t, remote.Message, what)
	}
	_, err := client.Handle(p, "in", func(_ context.Context, in onlyHidden) (int, error) { return 1, nil })
	require.ErrorIs(t, err, protocol.ErrInvalid)
	_, err = client.Handle(p, "field", func(_ context.Context, in hasHidden) (int, error) { return 1, nil })
	require.ErrorContains(t, err, "field Of of client_test.hasHidden: the Go type client_test.onlyHidden")
	_, err = client.Handle(p, "out", func(_ context.Context, in int) (onlyHidden, error) { return onlyHidden{}, nil })
	require.ErrorIs(t, err, protocol.ErrInvalid)
	_, err = client.HandleStream(p, "part", func(_ context.Context, in int, send func(onlyHidden) error) error { return nil })
	require.ErrorIs(t, err, protocol.ErrInvalid)

	type leaves struct {
		Name string
		Of   onlyHidden `baton:"-"`
	}
	for _, v := range []any{struct{}{}, struct{ _ int }{}, leaves{Name: "a"}, struct{ Err error }{}} {
		_, err = client.Call[any](ctx, c, "f", v)
		require.NoError(t, err, "%#v", v)
	}
}

// The values of topics, queues and names go another way, on which only what is no struct goes.
func TestValuesOfTopicsThatCannotBeCarriedAreRefused(t *testing.T) {
	ctx, c, _ := pair(t)
	w, err := c.Topic(ctx, "t")
	require.NoError(t, err)
	for _, v := range []any{time.Now(), errors.New("no"), onlyHidden{1}, netip.Addr{}, hasHidden{}} {
		for _, of := range []any{v, map[string]any{"a": []any{v}}} {
			require.ErrorIs(t, w.Send(ctx, of), protocol.ErrInvalid, "%T", of)
			_, err := c.Set(ctx, "n", of)
			require.ErrorIs(t, err, protocol.ErrInvalid, "%T", of)
		}
	}
}

func TestNilSlicesAndMapsAreEmptyOnes(t *testing.T) {
	ctx, c, p := pair(t)
	type lists struct {
		Numbers []int
		Texts   map[string]string
		Ints    map[int]string
		Bytes   []byte
		Any     []any
		At      *time.Time
		Of      error
	}
	type raw []byte
	echo := func(_ context.Context, in client.Args) (any, error) { return in.At(0) }
	handle(t, p, "echo", echo)
	for _, k := range []struct{ given, want any }{
		{[]int(nil), []any{}}, {[]any(nil), []any{}}, {map[string]int(nil), map[string]any{}}, {map[int]int(nil), map[string]any{}},
		{[]byte(nil), []byte{}}, {raw(nil), []byte{}}, {protocol.ValueTuple(nil), protocol.ValueTuple{}}, {protocol.Dict(nil), map[string]any{}},
		{map[string]any(nil), map[string]any{}}, {[]any{[]int(nil), map[string]any(nil), []byte(nil)}, []any{[]any{}, map[string]any{}, []byte{}}},
		{lists{}, map[string]any{"numbers": []any{}, "texts": map[string]any{}, "ints": map[string]any{}, "bytes": []byte{}, "any": []any{}, "at": nil, "of": nil}},
		{(*lists)(nil), nil}, {(*[]int)(nil), nil}, {nil, nil}, {(*big.Int)(nil), nil},
	} {
		got, err := client.Call[any](ctx, c, "echo", k.given)
		require.NoError(t, err, "%T", k.given)
		require.Equal(t, k.want, got, "%T", k.given)
	}
	// Where lists, dicts and bytes are wanted.
	handle(t, p, "takes", func(_ context.Context, in struct {
		L []int
		D map[string]int
		B []byte
	}) (bool, error) {
		return in.L != nil && in.D != nil && len(in.L)+len(in.D)+len(in.B) == 0, nil
	})
	empty, err := client.Call[bool](ctx, c, "takes", []int(nil), map[string]int(nil), []byte(nil))
	require.NoError(t, err)
	require.True(t, empty)
	handle(t, p, "gives", func(context.Context, struct{}) ([]int, error) { return nil, nil })
	v, err := client.Call[any](ctx, c, "gives")
	require.NoError(t, err)
	require.Equal(t, []any{}, v)
}

func TestTextsOfCallsAreUTF8(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "f", func(_ context.Context, in client.Args) (any, error) { return in.At(0) })
	handle(t, p, "gives", func(context.Context, struct{}) (string, error) { return "a\xff", nil })
	for _, v := range []any{"a\xff", []any{"a\xff"}, map[string]any{"a": "\xff"}, client.Arg("\xff", 1)} {
		_, err := client.Call[any](ctx, c, "f", v)
		require.ErrorIs(t, err, protocol.ErrInvalid, "%q", v)
		require.ErrorContains(t, err, "not UTF-8")
	}
	_, err := client.Call[string](ctx, c, "gives")
	var remote *client.RemoteError
	require.ErrorAs(t, err, &remote)
	require.Equal(t, "baton.InvalidArgument", remote.Kind)
	require.Contains(t, remote.Message, "not UTF-8")
	bytes, err := client.Call[[]byte](ctx, c, "f", []byte("a\xff"))
	require.NoError(t, err)
	require.Equal(t, "a\xff", string(bytes))
}

func TestTuplesAndDictsAreTakenAsSuch(t *testing.T) {
	ctx, c, p := pair(t)
	type both struct {
		T protocol.ValueTuple
		D protocol.Dict
	}
	handle(t, p, "tuple", func(_ context.Context, in struct{ X protocol.ValueTuple }) (protocol.ValueTuple, error) {
		return in.X, nil
	})
	handle(t, p, "both", func(_ context.Context, in both) (any, error) { return []any{in.T, in.D}, nil })
	tuple := protocol.ValueTuple{int64(1), "a"}
	got, err := client.Call[protocol.ValueTuple](ctx, c, "tuple", tuple)
	require.NoError(t, err)
	require.Equal(t, tuple, got)
	_, err = client.Call[any](ctx, c, "tuple", []any{1})
	require.ErrorIs(t, err, protocol.ErrInvalid)
	all, err := client.Call[[]any](ctx, c, "both", tuple, map[string]any{"b": 2, "a": 1})
	require.NoError(t, err)
	require.Equal(t, []any{tuple, map[string]any{"a": int64(1), "b": int64(2)}}, all)
	odd := protocol.Dict{{Key: int64(3), Value: "c"}}
	all, err = client.Call[[]any](ctx, c, "both", tuple, odd)
	require.NoError(t, err)
	require.Equal(t, []any{tuple, odd}, all)
	nils, err := client.Call[any](ctx, c, "both", tuple, map[string]*big.Int{"a": nil})
	require.NoError(t, err)
	require.Equal(t, []any{tuple, map[string]any{"a": nil}}, nils)
}
