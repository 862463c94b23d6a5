package client

import (
	"context"
	"strconv"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Waitable is what WaitAny waits for: a *Reader, a *Watch or a *Queue.
type Waitable interface {
	awaited() lanes.Awaited
}

func (r *Reader) awaited() lanes.Awaited { return r.r }
func (w *Watch) awaited() lanes.Awaited  { return w.r.r }
func (q *Queue) awaited() lanes.Awaited  { return &queueItems{q, q.t.Items()} }

// queueItems are those of a queue as long as this use of it is open.
type queueItems struct {
	q     *Queue
	items *lanes.Items
}

func (i *queueItems) Ready() bool                      { return i.q.closed.Load() || i.items.Ready() }
func (i *queueItems) Place() (*waits.Hub, shm.WaitSet) { return i.items.Place() }
func (i *queueItems) HasNext(ctx context.Context) (bool, error) {
	if i.q.closed.Load() {
		return false, fault.Closed(i.q.t.Title())
	}
	return i.items.HasNext(ctx)
}

// WaitAny waits until at least one of several readers, watches and queues is ready, and
// returns the indices of all that are, in their order: a call that does not wait
// (Reader.TryReceive, Watch.TryNext, Queue.TryGet) would give something, a message or the
// error that it ends with. ErrTimeout at the deadline of ctx; with one that has passed it
// looks once. ErrInvalid without objects.
//
//	ready, err := client.WaitAny(ctx, commands, work)
//	for _, i := range ready {
//		switch i {
//		case 0:
//			m, err = commands.TryReceive(ctx)
//		case 1:
//			m, err = work.TryGet(ctx) // nil: another taker was faster
//		}
//	}
//
// It takes nothing, and what is not taken is ready at the next call too. Between the wait
// and the call another taker may take an item, or a sender overwrite a message: the call then
// gives nil. An object may stand there twice, and those of several Clients beside each
// other. A Reader or Watch is this goroutine's meanwhile; Queue.Close, End and Client.Close
// in another one end the wait.
func WaitAny(ctx context.Context, objects ...Waitable) ([]int, error) {
	if len(objects) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "give at least one", "a wait for no objects has no end")
	}
	all := make([]lanes.Awaited, len(objects))
	for i, o := range objects {
		all[i] = o.awaited()
	}
	hub, _ := all[0].Place()
	for spun := false; ; {
		var ready []int
		for i, o := range all {
			if has, err := o.HasNext(ctx); has || err != nil {
				ready = append(ready, i)
			}
		}
		if ready != nil {
			if spun {
				hub.Happened(sys.Monotonic())
			}
			return ready, nil
		}
		spin := hub.Budget(!spun)
		spun = true
		if lanes.Await(ctx, spin, all) != nil {
			hub.GaveUp()
			return nil, fault.Context(ctx, "waiting for any of "+strconv.Itoa(len(objects)))
		}
	}
}
