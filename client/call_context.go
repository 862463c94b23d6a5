package client

import (
	"context"
	"sync"
	"time"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Running tells a function about the call that it runs for.
type Running struct {
	// Function is its name, with its version.
	Function string
	// Caller is the name of the session that calls.
	Caller string
	// Attempt is how often the call was begun, this time included: above 1 only for an idempotent function
	// whose provider ended.
	Attempt int
	// Deadline is until when the caller waits; zero: without a limit.
	Deadline time.Time
}

// CurrentCall tells about the call that a function runs for, by the context that it got or one of that; nil if
// there is none.
func CurrentCall(ctx context.Context) *Running {
	if k := running(ctx); k != nil {
		return &k.info
	}
	return nil
}

type runningKey struct{}

func running(ctx context.Context) *callContext {
	k, _ := ctx.Value(runningKey{}).(*callContext)
	return k
}

// callContext is the context of a function while it runs: done when its caller cancels the call or has gone, when
// its deadline has passed, and when the function has returned. What that takes is made when it is first asked for.
type callContext struct {
	c       *Client
	claimed lanes.Claimed
	record  *protocol.Call
	topicID uint64
	info    Running

	mu     sync.Mutex // guards what follows
	inner  context.Context
	cancel context.CancelFunc
	over   bool
	given  []*Function // arguments, for the use of its function; no guard
}

func newCallContext(c *Client, topic *lanes.Topic, claimed lanes.Claimed, record *protocol.Call) *callContext {
	k := &callContext{c: c, claimed: claimed, record: record, topicID: topic.Info.ID}
	k.info = Running{Function: topic.Info.Name, Caller: claimed.Caller(), Attempt: int(claimed.BegunBefore) + 1}
	if record.Deadline != 0 {
		k.info.Deadline = time.Now().Add(time.Duration(int64(record.Deadline) - int64(sys.Monotonic())))
	}
	return k
}

// link is this call in the chain of those within it.
func (k *callContext) link() protocol.CallLink {
	return protocol.CallLink{TopicID: k.topicID, Slot: k.c.s.Files.Slot}
}

// Deadline is until when the caller waits.
func (k *callContext) Deadline() (time.Time, bool) { return k.info.Deadline, !k.info.Deadline.IsZero() }

// late tells whether the deadline has passed.
func (k *callContext) late() bool { return isLate(k.record) }

// isLate tells whether the deadline of a request has passed.
func isLate(request *protocol.Call) bool {
	return request.Deadline != 0 && sys.Monotonic() >= request.Deadline
}

// Done is closed when the function is to end.
func (k *callContext) Done() <-chan struct{} { return k.begin().Done() }

// Err tells why.
func (k *callContext) Err() error {
	k.mu.Lock()
	inner, over := k.inner, k.over
	k.mu.Unlock()
	if inner == nil && !over && !k.claimed.IsCancelled() && !k.late() {
		return nil
	}
	inner = k.begin()
	if k.claimed.IsCancelled() {
		k.cancel()
	}
	if k.late() {
		<-inner.Done()
	}
	return inner.Err()
}

// Value finds the call itself; what is not there has no value.
func (k *callContext) Value(key any) any {
	if key == (runningKey{}) {
		return k
	}
	k.mu.Lock()
	inner := k.inner
	k.mu.Unlock()
	if inner == nil {
		return nil
	}
	return inner.Value(key) // package context asks so whether it knows the context
}

// begin makes what ends with the call.
func (k *callContext) begin() context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.inner != nil {
		return k.inner
	}
	if k.info.Deadline.IsZero() {
		k.inner, k.cancel = context.WithCancel(context.Background())
	} else {
		k.inner, k.cancel = context.WithDeadline(context.Background(), k.info.Deadline)
	}
	if k.over {
		k.cancel()
	} else {
		k.c.calls.watched.add(k)
	}
	return k.inner
}

// stop has the function see that it is wanted no more.
func (k *callContext) stop() {
	k.mu.Lock()
	k.over = true
	inner := k.inner
	k.mu.Unlock()
	if inner != nil {
		k.cancel()
	}
}

// end ends it with its function.
func (k *callContext) end() {
	for _, f := range k.given {
		f.leave()
	}

	k.mu.Lock()
	k.over = true
	inner := k.inner
	k.mu.Unlock()
	if inner != nil {
		k.c.calls.watched.remove(k)
		k.cancel()
	}
}

// watched are the calls whose functions wait for their end. One goroutine looks for it while there are any.
type watched struct {
	mu    sync.Mutex // guards what follows
	calls map[*callContext]struct{}
	looks bool // the goroutine runs
}

func (w *watched) add(k *callContext) {
	w.mu.Lock()
	if w.calls == nil {
		w.calls = map[*callContext]struct{}{}
	}
	w.calls[k] = struct{}{}
	begin := !w.looks
	w.looks = true
	w.mu.Unlock()
	if begin {
		go w.look(k.c)
		return
	}
	k.c.s.Waits.WakeAll() // its caller may have cancelled it before it was listed
}

func (w *watched) remove(k *callContext) {
	w.mu.Lock()
	delete(w.calls, k)
	w.mu.Unlock()
}

// found lists those that were cancelled; none: there is nothing to look for any more.
func (w *watched) found(take bool) (over []*callContext, none bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.calls {
		if k.claimed.IsCancelled() {
			over = append(over, k)
			if take {
				delete(w.calls, k)
			}
		}
	}
	if none = len(w.calls) == 0; none && take {
		w.looks = false
	}
	return over, none
}

func (w *watched) look(c *Client) {
	for {
		c.s.Topics.AwaitAny(context.Background(), func() bool {
			over, none := w.found(false)
			return none || len(over) > 0
		})
		over, none := w.found(true)
		for _, k := range over {
			k.cancel()
		}
		if c.s.Life.Ended() != nil {
			w.cancelAll()
			return
		}
		if none {
			return
		}
	}
}

// cancelAll ends all, with their session.
func (w *watched) cancelAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k := range w.calls {
		k.cancel()
	}
	clear(w.calls)
	w.looks = false
}
