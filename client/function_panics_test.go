package client_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// fragile is an error that only exists as what it points to.
type fragile struct{ why string }

func (e *fragile) Error() string { return e.why }

// hostile is an error of which one method panics.
type hostile struct{ method string }

func (e *hostile) in(method string) {
	if e.method == method {
		panic("the method " + method)
	}
}

func (e *hostile) Error() string   { e.in("Error"); return "no" }
func (e *hostile) Kind() string    { e.in("Kind"); return "test.Hostile" }
func (e *hostile) Unwrap() error   { e.in("Unwrap"); return nil }
func (e *hostile) Is(error) bool   { e.in("Is"); return false }
func (e *hostile) As(any) bool     { e.in("As"); return false }
func (e *hostile) String() string  { panic("unused") }
func (e *hostile) Format() float64 { panic("unused") }

// text is a value whose text panics.
type text struct{ n int }

func (t text) MarshalText() ([]byte, error) {
	if t.n < 0 {
		panic("no text of a negative one")
	}
	return []byte(strconv.Itoa(t.n)), nil
}

func (t *text) UnmarshalText(b []byte) (err error) {
	if t.n, err = strconv.Atoi(string(b)); t.n == 13 {
		panic("13 is read")
	}
	return err
}

// badly lists how a function may end so that what it gives panics, with the message that its caller reads.
var badly = map[string]struct {
	give func() (any, error)
	says string
}{
	"a typed nil":             {func() (any, error) { return nil, (*fragile)(nil) }, "nil pointer"},
	"a typed nil of client":   {func() (any, error) { return nil, (*client.RemoteError)(nil) }, "nil pointer"},
	"a typed nil of protocol": {func() (any, error) { return nil, (*protocol.Error)(nil) }, "nil pointer"},
	"a typed nil with a kind": {func() (any, error) { return nil, client.OfKind("test.Hostile", (*fragile)(nil)) }, "nil pointer"},
	"Error":                   {func() (any, error) { return nil, &hostile{"Error"} }, "the method Error"},
	"Kind":                    {func() (any, error) { return nil, &hostile{"Kind"} }, "the method Kind"},
	"Unwrap":                  {func() (any, error) { return nil, &hostile{"Unwrap"} }, "the method Unwrap"},
	"Is":                      {func() (any, error) { return nil, &hostile{"Is"} }, "the method Is"},
	"As":                      {func() (any, error) { return nil, &hostile{"As"} }, "the method As"},
	"a result":                {func() (any, error) { return text{-1}, nil }, "no text of a negative one"},
	"a result deep within":    {func() (any, error) { return map[string]any{"a": []text{{1}, {-1}}}, nil }, "no text of a negative one"},
	"a key of a map":          {func() (any, error) { return map[text]int{{-1}: 1}, nil }, "no text of a negative one"},
	"a cause that is its own": {func() (any, error) {
		e := &client.RemoteError{Kind: "test.Own", Message: "its own cause"}
		e.Cause = e
		return nil, e
	}, "its own cause"},
}

// endsWithATrace looks at the error of a call whose function has ended so.
func endsWithATrace(t *testing.T, how, says string, err error) {
	t.Helper()
	var remote *client.RemoteError
	require.ErrorAs(t, err, &remote, how)
	require.ErrorContains(t, err, says, how)
	if remote.Kind != "test.Own" {
		require.Equal(t, "panic", remote.Kind, how)
		require.Contains(t, remote.Trace, "goroutine", how)
	}
}

func TestPanicOfWhatAFunctionGivesIsAnErrorWithItsTrace(t *testing.T) {
	ctx, c, p := pair(t)
	handle(t, p, "badly", func(_ context.Context, how string) (any, error) { return badly[how].give() })
	handle(t, p, "back", func(ctx context.Context, f *client.Function) (any, error) { return f.Call(ctx) })
	_, err := client.HandleStream(p, "parts", func(_ context.Context, how string, send func(any) error) error {
		v, err := badly[how].give()
		if err != nil {
			return err
		}
		return send(v)
	})
	require.NoError(t, err)
	_, err = client.HandleMethods(p, "methods", givesBadly{})
	require.NoError(t, err)
	t.Setenv("BATON_NO_REMOTE_TRACES", "1")
	handle(t, p, "untraced", func(_ context.Context, how string) (any, error) { return badly[how].give() })
	for how, one := range badly {
		for _, name := range []string{"badly", "methods/give"} {
			_, err := client.Call[any](ctx, c, name, how)
			endsWithATrace(t, how, one.says, err)
		}
		_, err := client.Call[any](ctx, c, "untraced", how)
		require.ErrorContains(t, err, one.says, how)
		for _, err = range client.Parts[any](ctx, c, "parts", how) {
		}
		endsWithATrace(t, how, one.says, err)
		_, err = client.Call[any](ctx, c, "back", client.Func(func(context.Context, struct{}) (any, error) { return one.give() }))
		require.ErrorIs(t, err, protocol.ErrRemote, how)
		require.ErrorContains(t, err, one.says, how)
	}
	v, err := client.Call[any](ctx, c, "methods/give", "well")
	require.NoError(t, err)
	require.Equal(t, "7", v)
}

// numbered is a result of which one field panics when it is read.
type numbered struct {
	X *client.Tensor
	N text
}

type givesBadly struct{}

func (givesBadly) Give(_ context.Context, how string) (any, error) {
	if how == "well" {
		return text{7}, nil
	}
	return badly[how].give()
}

// What the caller's own code reads a reply by panics where the call was made, as all that a goroutine calls, and what
// came is given back.
func TestPanicOfACallersOwnCodeReachesTheCallerAndHoldsNothing(t *testing.T) {
	ctx, c, p := pair(t)
	kind := fmt.Sprintf("test.Panics%p", t) // each run registers its own
	require.NoError(t, client.RegisterError(kind, func(e *client.RemoteError) error { panic(e.Message) }))
	handle(t, p, "fails", func(context.Context, struct{}) (any, error) { return nil, client.OfKind(kind, errors.New("as asked")) })
	_, err := client.HandleStream(p, "parts", func(_ context.Context, _ struct{}, _ func(int) error) error {
		return client.OfKind(kind, errors.New("as asked"))
	})
	require.NoError(t, err)
	handle(t, p, "13", func(_ context.Context, x *client.Tensor) (map[string]any, error) {
		return map[string]any{"x": x, "n": "13"}, nil
	})
	x := tensor(t, c, 1)
	for range 100 { // more than there are places for replies
		require.PanicsWithValue(t, "as asked", func() { _, _ = client.Call[any](ctx, c, "fails") })
		require.PanicsWithValue(t, "as asked", func() {
			for range client.Parts[int](ctx, c, "parts") {
			}
		})
		require.PanicsWithValue(t, "13 is read", func() { _, _ = client.Call[numbered](ctx, c, "13", x) })
	}
	x.Release()
	nothingLives(t, c, p)
}
