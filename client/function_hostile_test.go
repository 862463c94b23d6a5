package client

import (
	"context"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// A provider that replies what it should not: replies of other calls, several, and what is none.
func TestOddRepliesEndACallOnceAndTheNextGoesOn(t *testing.T) {
	all, ctx := sessions(t, 2), t.Context()
	c, p := all[0], all[1]
	require.NoError(t, provideOdd(p, "odd"))
	for how, code := range oddReplies {
		n, err := Call[int](ctx, c, "odd", how)
		require.Equal(t, code, protocol.CodeOf(err), "%s: %v", how, err)
		if code == "" {
			require.Equal(t, 1, n, how)
		}
		n, err = Call[int](ctx, c, "odd", "none")
		require.NoError(t, err, how)
		require.Equal(t, 1, n)
	}
	if _, err := Call[int](ctx, c, "odd", "more-than-there-is-room"); err != nil { // the reply itself may have had none
		require.Equal(t, protocol.CodeProtocol, protocol.CodeOf(err))
	}
	n, err := Call[int](ctx, c, "odd", "none")
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// A caller that asks for its reply where no session waits, or sends what is no request, is not answered, and holds
// nothing up.
func TestOddRequestsHoldNoProviderUp(t *testing.T) {
	all, ctx := sessions(t, 2), t.Context()
	c, p := all[0], all[1]
	_, err := Handle(p, "f", func(_ context.Context, x int) (int, error) { return x, nil })
	require.NoError(t, err)
	f, err := c.Function(ctx, "f")
	require.NoError(t, err)
	defer f.Close()
	e, err := c.endpoint(ctx, 0, 0)
	require.NoError(t, err)
	defer e.close()
	odd := func(change func(*protocol.Call)) {
		m := &callMessage{}
		m.record = protocol.Call{Kind: protocol.CallRequest, Number: 1, Topic: e.t.Info.Topic, TopicID: e.t.Info.ID, Token: e.token}
		require.NoError(t, m.add("", 1))
		change(&m.record)
		wait, err := c.attempt(ctx, f.t, &f.out, false, m, protocol.SlotWritable, nil)
		require.Nil(t, wait)
		require.NoError(t, err)
		n, err := CallOf[int](ctx, f, 7)
		require.NoError(t, err)
		require.Equal(t, 7, n)
	}
	odd(func(r *protocol.Call) { r.Token = [16]byte{1} })
	odd(func(r *protocol.Call) { r.Topic++ })
	odd(func(r *protocol.Call) { r.TopicID++ })
	odd(func(r *protocol.Call) { r.Kind, r.TopicID, r.Token = protocol.CallReply, 0, [16]byte{} })
	odd(func(r *protocol.Call) { r.Args = nil })
	odd(func(r *protocol.Call) { r.Args[0] = protocol.CallArg{Code: protocol.ArgTensor, N: 9} })
	odd(func(r *protocol.Call) { r.Args[0] = protocol.CallArg{Code: protocol.ArgTree, N: 9} })
	odd(func(r *protocol.Call) { r.Deadline = 1 })
	x := alloc(t, c)
	defer x.Release()
	require.NoError(t, c.send(ctx, f.t, &f.out, x, 0, nil))
	n, err := CallOf[int](ctx, f, 7)
	require.NoError(t, err)
	require.Equal(t, 7, n)
}
