package client

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// lateReplies is a caller and a provider, which sends its replies when a test says so.
type lateReplies struct {
	t     *testing.T
	ctx   context.Context
	c, p  *Client
	f     *Function
	began chan *callContext
	goOn  chan struct{}
}

func lateRepliesOf(t *testing.T) *lateReplies {
	all := sessions(t, 2)
	l := &lateReplies{t: t, ctx: t.Context(), c: all[0], p: all[1], began: make(chan *callContext), goOn: make(chan struct{})}
	_, err := Handle(l.p, "late", func(ctx context.Context, x *Tensor) (*Tensor, error) {
		l.began <- running(ctx)
		<-l.goOn
		return x.Retain(), nil
	})
	require.NoError(t, err)
	_, err = Handle(l.p, "soon", func(_ context.Context, x int) (int, error) { return x, nil })
	require.NoError(t, err)
	l.f, err = l.c.Function(l.ctx, "late")
	require.NoError(t, err)
	t.Cleanup(func() { l.f.Close() })
	return l
}

// givenUp is a call whose caller has given it up while its function runs.
func (l *lateReplies) givenUp() *callContext {
	l.t.Helper()
	x := alloc(l.t, l.c)
	defer x.Release()
	short, cancel := context.WithCancel(l.ctx)
	ended := make(chan error)
	go func() {
		_, err := CallOf[*Tensor](short, l.f, x)
		ended <- err
	}()
	k := <-l.began
	cancel()
	require.ErrorIs(l.t, <-ended, protocol.ErrCancelled)
	return k
}

// replies sends a reply with a tensor of the provider's, made by hand.
func (l *lateReplies) replies(k *callContext, number uint64) {
	l.t.Helper()
	y := alloc(l.t, l.p)
	defer y.Release()
	m := &callMessage{}
	m.record.Kind, m.record.Number = protocol.CallReply, number
	require.NoError(l.t, m.addAll([]any{y}))
	came, err := l.p.sendReply(l.ctx, k.record, m)
	require.NoError(l.t, err)
	require.True(l.t, came)
}

// held counts the storages that something holds.
func (l *lateReplies) held() int {
	l.t.Helper()
	l.c.Collect()
	l.p.Collect()
	var reply protocol.ListReply
	require.NoError(l.t, l.c.Broker(l.ctx, protocol.OpList, protocol.List{What: protocol.ListStorages}, &reply))
	return len(reply.Rows)
}

func (l *lateReplies) goesOn() {
	l.t.Helper()
	n, err := Call[int](l.ctx, l.c, "soon", 7)
	require.NoError(l.t, err)
	require.Equal(l.t, 7, n)
}

// The reply of a function that ran on when its caller had given the call up has a tensor, and so have some that are no
// call's, which came before: nothing holds any of them.
func TestALateReplyWithTensorsLeavesNothingHeld(t *testing.T) {
	l := lateRepliesOf(t)
	for _, odd := range []bool{false, true} {
		k := l.givenUp()
		if odd {
			l.replies(k, k.record.Number+1)
			l.replies(k, k.record.Number+1<<40)
		}
		require.NotZero(t, l.held())
		l.goOn <- struct{}{}
		eventually(t, "nothing is held", func() bool { return l.held() == 0 })
		l.goesOn()
	}
}

// What a provider replies once more, when the place of the reply waits for the next call, that call lets go.
func TestASecondReplyWithTensorsIsLetGoByTheNextCall(t *testing.T) {
	l := lateRepliesOf(t)
	k := l.givenUp()
	l.goOn <- struct{}{}
	eventually(t, "the place of the reply is free", func() bool {
		l.c.calls.mu.Lock()
		defer l.c.calls.mu.Unlock()
		return len(l.c.calls.spare) == 1
	})
	l.replies(k, k.record.Number)
	require.NotZero(t, l.held())
	l.goesOn()
	eventually(t, "nothing is held", func() bool { return l.held() == 0 })
}

// Each call is given up at some time, also while its result is under way: nothing holds any of them.
func TestResultsOfCancelledCallsAreLetGo(t *testing.T) {
	l := lateRepliesOf(t)
	_, err := Handle(l.p, "big", func(_ context.Context, n int) (*Tensor, error) {
		return l.p.Alloc(l.ctx, dlpack.Uint8, []int64{int64(n)})
	})
	require.NoError(t, err)
	big, err := l.c.Function(l.ctx, "big")
	require.NoError(t, err)
	defer big.Close()
	for i := range 300 {
		short, cancel := context.WithCancel(l.ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if x, err := CallOf[*Tensor](short, big, 1<<20); err == nil {
				x.Release()
			}
		}()
		for range i % 30 {
			runtime.Gosched()
		}
		cancel()
		<-ended
	}
	eventually(t, "nothing is held", func() bool { return l.held() == 0 })
}

// endsWhenToldTo is a context whose deadline passes when a test says so.
type endsWhenToldTo struct {
	context.Context
	passed chan struct{}
}

func (c endsWhenToldTo) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
func (c endsWhenToldTo) Done() <-chan struct{}       { return c.passed }

func (c endsWhenToldTo) Err() error {
	select {
	case <-c.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// A call may end by its deadline after its function was deleted: no command shows it any more, so that the error says so.
func TestTimeoutOfACallWhoseFunctionWasDeletedSaysSo(t *testing.T) {
	l := lateRepliesOf(t)
	ctx := endsWhenToldTo{l.ctx, make(chan struct{})}
	x := alloc(t, l.c)
	defer x.Release()
	ended := make(chan error)
	go func() {
		_, err := CallOf[*Tensor](ctx, l.f, x)
		ended <- err
	}()
	<-l.began
	_, err := l.c.s.Link.Call(l.ctx, protocol.OpFunctionRemove, protocol.FunctionByName{Name: "late"}, nil)
	require.NoError(t, err)
	close(ctx.passed)
	err = <-ended
	require.ErrorIs(t, err, protocol.ErrTimeout)
	require.ErrorContains(t, err, "no process provides the function: it was deleted, or its providers have ended")
	require.NotContains(t, err.Error(), "baton why")
	close(l.goOn)
}
