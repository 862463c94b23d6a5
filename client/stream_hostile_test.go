package client

import (
	"context"
	"maps"
	"math"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// A provider that numbers its parts as it should not, or sends what is none: the stream ends once, and the next one is
// a good one.
func TestOddPartsEndAStreamOnceAndTheNextGoesOn(t *testing.T) {
	all, ctx := sessions(t, 2), t.Context()
	c, p := all[0], all[1]
	require.NoError(t, provideOddParts(p, "odd"))
	ends := maps.Clone(oddParts)
	ends["of-another-type"] = oddEnd{0, protocol.CodeInvalid} // than this caller asks for
	for how, want := range ends {
		n := 0
		var ended error
		for part, err := range Parts[int](ctx, c, "odd", how) {
			if ended = err; err == nil {
				require.Equal(t, n, part, how)
				n++
			}
		}
		require.Equal(t, want, oddEnd{n, protocol.CodeOf(ended)}, "%s: %v", how, ended)
		for range Parts[int](ctx, c, "odd", "none") {
			t.Fatal(how)
		}
	}
	for _, err := range Parts[int](ctx, c, "odd", "more-than-there-is-room") {
		if err != nil { // the end may have had none
			require.Equal(t, protocol.CodeProtocol, protocol.CodeOf(err))
		}
	}
	for range Parts[int](ctx, c, "odd", "none") {
		t.Fatal("a part")
	}
}

// Requests that ask for what a function is not are answered; those that are none end.
func TestRequestsForPartsAndObjectsThatAreNotThere(t *testing.T) {
	all, ctx := sessions(t, 3), t.Context()
	c, p, other := all[0], all[1], all[2]
	_, err := Handle(p, "plain", func(_ context.Context, x any) (any, error) { return x, nil })
	require.NoError(t, err)
	_, err = Handle(p, "anything", func(context.Context, Args) (any, error) { return nil, nil })
	require.NoError(t, err)
	_, err = Call[any](ctx, c, "anything", Arg("k", 1), Arg("k", 2))
	require.ErrorContains(t, err, "the argument k is given twice")
	_, err = HandleStream(p, "parts", func(_ context.Context, x any, send func(any) error) error { return send(x) })
	require.NoError(t, err)
	var door *Function // of c, as p has it open
	_, err = Handle(p, "calls", func(ctx context.Context, f *Function) (any, error) {
		door = &Function{opened: f.opened}
		door.hold()
		outside, err := other.openDoor(ctx, f.t.Info.Token)
		require.NoError(t, err)
		defer outside.Close()
		stranger := &Function{opened: outside.opened, object: f.object}
		_, err = stranger.Call(ctx, 1)
		require.ErrorIs(t, err, protocol.ErrClosed, "the call is of another session")
		return f.Call(ctx, 1)
	})
	require.NoError(t, err)
	_, err = Call[int](ctx, c, "calls", Func(func(_ context.Context, x int) (int, error) { return x, nil }))
	require.NoError(t, err)
	defer door.done()

	odd := func(from *Client, f *Function, change func(*protocol.Call)) *received {
		t.Helper()
		e, err := from.endpoint(ctx, 0, 0)
		require.NoError(t, err)
		defer e.close()
		m := &callMessage{}
		require.NoError(t, m.addAll([]any{1}))
		m.record = protocol.Call{Kind: protocol.CallRequest, Number: e.begins(false), Topic: e.t.Info.Topic, TopicID: e.t.Info.ID, Token: e.token, Args: m.record.Args}
		change(&m.record)
		require.NoError(t, f.send(ctx, m))
		k := callUnderWay{f: f, e: e, m: m, sent: m.sent}
		r, err := k.await(ctx)
		if err != nil {
			require.ErrorIs(t, err, protocol.ErrProtocol)
			return nil
		}
		defer r.m.Release()
		require.NotZero(t, r.record.Flags&protocol.CallFailed)
		return r
	}
	kind := func(r *received) any {
		t.Helper()
		require.NotNil(t, r)
		v, _, err := r.named("kind")
		require.NoError(t, err)
		return v
	}
	open := func(name string) *Function {
		f, err := c.Function(ctx, name)
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	plain, parts, anything := open("plain"), open("parts"), open("anything")
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, parts, func(*protocol.Call) {})))
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, plain, func(r *protocol.Call) { r.Flags, r.Window = protocol.CallTakesParts, 4 })))
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, plain, func(r *protocol.Call) { r.Object = 1 })))
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, parts, func(r *protocol.Call) { r.Flags, r.Window, r.Object = protocol.CallTakesParts, 4, 9 })))
	twice := func(r *protocol.Call) { r.Args = []protocol.CallArg{{Name: "x"}, {Name: "x"}} }
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, plain, twice)))
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, anything, twice)), "a function that takes anything")
	require.Nil(t, odd(c, plain, func(r *protocol.Call) { r.Window = 4 }), "a window without the flag")
	require.Nil(t, odd(c, plain, func(r *protocol.Call) { r.Flags = protocol.CallTakesParts }), "the flag without a window")
	for _, object := range []uint64{0, 1, 2, math.MaxUint64} { // 1 was one, and its call has ended
		require.Equal(t, "baton.Closed", kind(odd(p, door, func(r *protocol.Call) { r.Object = object })))
	}
	require.Equal(t, "baton.InvalidArgument", kind(odd(p, door, func(r *protocol.Call) { r.Flags, r.Window, r.Object = protocol.CallTakesParts, 4, 1 })))

	for _, f := range []protocol.ValueFunction{{Token: "000102030405060708090a0b0c0d0e0f", Object: 1}, {Name: "not/there"}} {
		m := &callMessage{nested: []any{f}}
		require.NoError(t, m.encode())
		require.Equal(t, "baton.NotFound", kind(oddTree(t, ctx, c, plain, m.tree)))
	}
	n, err := CallOf[int](ctx, plain, 7)
	require.NoError(t, err)
	require.Equal(t, 7, n)
}

// oddTree calls a function with a tree as its one argument.
func oddTree(t *testing.T, ctx context.Context, c *Client, f *Function, tree []byte) *received {
	e, err := c.endpoint(ctx, 0, 0)
	require.NoError(t, err)
	defer e.close()
	m := &callMessage{tree: tree}
	m.record = protocol.Call{Kind: protocol.CallRequest, Number: e.begins(false), Topic: e.t.Info.Topic, TopicID: e.t.Info.ID, Token: e.token,
		Args: []protocol.CallArg{{Code: protocol.ArgTree}}}
	require.NoError(t, f.send(ctx, m))
	k := callUnderWay{f: f, e: e, m: m, sent: m.sent}
	r, err := k.await(ctx)
	require.NoError(t, err)
	t.Cleanup(r.m.Release)
	return r
}
