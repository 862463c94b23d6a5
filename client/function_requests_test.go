package client

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"

	"github.com/stretchr/testify/require"
)

func TestRepeatedCallsAskNoBroker(t *testing.T) {
	all, ctx := sessions(t, 2), t.Context()
	c, p := all[0], all[1]
	_, err := Handle(p, "f", func(_ context.Context, x *Tensor) (*Tensor, error) { return x, nil })
	require.NoError(t, err)
	x := alloc(t, c)
	defer x.Release()
	one := func() {
		y, err := Call[*Tensor](ctx, c, "f", x)
		require.NoError(t, err)
		y.Release()
	}
	one()
	before := [2]uint64{requests(c), requests(p)}
	for range 100 {
		one()
	}
	require.Equal(t, before, [2]uint64{requests(c), requests(p)})
}

// Callers in all languages know the kind. What a caller looks at behind the deadline is the end of the time, all the
// same whether it looks before or behind the function's own word.
func TestAFunctionThatEndsByItsDeadlineSaysSo(t *testing.T) {
	all, ctx := sessions(t, 2), t.Context()
	_, err := Handle(all[1], "late", func(ctx context.Context, _ struct{}) (any, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("it asked: %w", ctx.Err())
	})
	require.NoError(t, err)
	f, err := all[0].Function(ctx, "late")
	require.NoError(t, err)
	defer f.Close()
	for begun := false; !begun; { // one whose time is over before is not begun
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		k, err := f.begin(short, nil, 0)
		if protocol.CodeOf(err) == protocol.CodeTimeout { // before it was sent
			cancel()
			continue
		}
		require.NoError(t, err)
		for state := shm.CallWaits; state != shm.CallDone; _, state = k.sent.State() {
			runtime.Gosched()
		}
		r, err := k.e.reply(ctx)
		require.NoError(t, err)
		if begun = r != nil; begun {
			var e *RemoteError
			require.ErrorAs(t, r.failure("late"), &e)
			require.Equal(t, []string{"baton.Timeout", "it asked: context deadline exceeded"}, []string{e.Kind, e.Message})
			require.ErrorIs(t, k.failure(r), protocol.ErrTimeout)
			r.m.Release()
			k.over = true
		}
		k.end()
		cancel()
	}
}

// The protocol has a provider answer a call that was cancelled while it ran, without what its function returned.
func TestACallThatIsCancelledWhileItRunsIsAnsweredWithThat(t *testing.T) {
	all, ctx := sessions(t, 2), t.Context()
	began := make(chan struct{})
	_, err := Handle(all[1], "cancelled", func(ctx context.Context, _ struct{}) (int, error) {
		close(began)
		<-ctx.Done()
		return 1, nil
	})
	require.NoError(t, err)
	f, err := all[0].Function(ctx, "cancelled")
	require.NoError(t, err)
	defer f.Close()
	k, err := f.begin(ctx, nil, 0)
	require.NoError(t, err)
	defer k.end()
	<-began
	k.sent.Cancel()
	for state := shm.CallWaits; state != shm.CallDone; _, state = k.sent.State() {
		runtime.Gosched()
	}
	r, err := k.e.reply(ctx)
	require.NoError(t, err)
	require.NotNil(t, r)
	defer r.m.Release()
	var e *RemoteError
	require.ErrorAs(t, r.failure("cancelled"), &e)
	require.Equal(t, "baton.Cancelled", e.Kind)
	require.ErrorIs(t, k.failure(r), protocol.ErrCancelled)
}

// A caller that is late to look has the function's own error, where that was sent well before the deadline.
func TestAnErrorFromBeforeTheDeadlineStaysWhatItIs(t *testing.T) {
	all, ctx := sessions(t, 2), t.Context()
	_, err := Handle(all[1], "fails", func(context.Context, struct{}) (any, error) {
		return nil, &RemoteError{Kind: "ValueError", Message: "odd"}
	})
	require.NoError(t, err)
	f, err := all[0].Function(ctx, "fails")
	require.NoError(t, err)
	defer f.Close()
	for early := false; !early; { // this process may have been late itself
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		k, err := f.begin(short, nil, 0)
		require.NoError(t, err)
		for _, state := k.sent.State(); state != shm.CallDone; _, state = k.sent.State() {
			runtime.Gosched()
		}
		<-short.Done()
		r, err := k.e.reply(ctx)
		require.NoError(t, err)
		if r != nil && r.m.Stamp+uint64(aboutDeadline) < k.m.record.Deadline {
			early = true
			var e *RemoteError
			require.ErrorAs(t, k.failure(r), &e)
			require.Equal(t, "ValueError", e.Kind)
		}
		if r != nil {
			r.m.Release()
			k.over = true
		}
		k.end()
		cancel()
	}
}
