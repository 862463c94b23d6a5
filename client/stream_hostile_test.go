package client

import (
	"context"
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
	raw := func(k *callContext, number uint64, flags, part uint32, v any) {
		m := &callMessage{}
		require.NoError(t, m.addAll([]any{v}))
		m.record = protocol.Call{Kind: protocol.CallReply, Number: number, Flags: flags, Topic: part, Args: m.record.Args}
		_, err := p.sendReply(ctx, k.record, m)
		require.NoError(t, err)
	}
	_, err := HandleStream(p, "odd", func(ctx context.Context, how string, send func(int) error) error {
		k := running(ctx)
		n := k.record.Number
		place, err := p.replyPlace(ctx, k.record)
		require.NoError(t, err)
		switch how {
		case "twice":
			raw(k, n, protocol.CallPart, 0, 0)
			raw(k, n, protocol.CallPart, 0, 8)
			raw(k, n, protocol.CallPart, 1, 1)
			raw(k, n, protocol.CallPart, 0, 8)
			raw(k, n, 0, 0, nil)
		case "one left out":
			raw(k, n, protocol.CallPart, 0, 0)
			raw(k, n, protocol.CallPart, 2, 8)
		case "a large number":
			raw(k, n, protocol.CallPart, math.MaxUint32, 8)
		case "of another call":
			raw(k, n+1, protocol.CallPart, 0, 8)
			raw(k, n+1<<40, 0, 0, 8)
		case "behind the end":
			raw(k, n, protocol.CallPart, 0, 0)
			raw(k, n, 0, 0, nil)
			raw(k, n, protocol.CallPart, 1, 8)
		case "no record":
			x := alloc(t, p)
			defer x.Release()
			require.NoError(t, p.send(ctx, place.t, &place.out, x, 0, nil))
		case "a part that is an error":
			raw(k, n, protocol.CallPart|protocol.CallFailed, 0, "what")
		case "of another type":
			raw(k, n, protocol.CallPart, 0, "text")
		case "more than there is room":
			for i := range uint32(3 * defaultAhead) {
				raw(k, n, protocol.CallPart, i, int(i))
			}
		}
		return nil
	})
	require.NoError(t, err)
	for how, want := range map[string]struct {
		parts int
		code  protocol.Code
	}{"": {}, "twice": {2, ""}, "one left out": {1, protocol.CodeProtocol}, "a large number": {0, protocol.CodeProtocol}, "of another call": {},
		"behind the end": {1, ""}, "no record": {0, protocol.CodeProtocol}, "a part that is an error": {0, protocol.CodeProtocol}, "of another type": {0, protocol.CodeInvalid}} {
		n := 0
		var ended error
		for part, err := range Parts[int](ctx, c, "odd", how) {
			if ended = err; err == nil {
				require.Equal(t, n, part, how)
				n++
			}
		}
		require.Equal(t, want.code, protocol.CodeOf(ended), "%s: %v", how, ended)
		require.Equal(t, want.parts, n, how)
		for range Parts[int](ctx, c, "odd", "") {
			t.Fatal(how)
		}
	}
	for _, err := range Parts[int](ctx, c, "odd", "more than there is room") {
		if err != nil { // the end may have had none
			require.Equal(t, protocol.CodeProtocol, protocol.CodeOf(err))
		}
	}
	for range Parts[int](ctx, c, "odd", "") {
		t.Fatal("a part")
	}
}

// Requests that ask for what a function is not are answered; those that are none end.
func TestRequestsForPartsAndObjectsThatAreNotThere(t *testing.T) {
	all, ctx := sessions(t, 3), t.Context()
	c, p, other := all[0], all[1], all[2]
	_, err := Handle(p, "plain", func(_ context.Context, x any) (any, error) { return x, nil })
	require.NoError(t, err)
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
		e, err := from.endpoint(ctx, 0)
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
	plain, parts := open("plain"), open("parts")
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, parts, func(*protocol.Call) {})))
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, plain, func(r *protocol.Call) { r.Flags, r.Window = protocol.CallTakesParts, 4 })))
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, plain, func(r *protocol.Call) { r.Object = 1 })))
	require.Equal(t, "baton.InvalidArgument", kind(odd(c, parts, func(r *protocol.Call) { r.Flags, r.Window, r.Object = protocol.CallTakesParts, 4, 9 })))
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
	e, err := c.endpoint(ctx, 0)
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
