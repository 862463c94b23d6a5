package lanes

import (
	"context"
	"errors"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Awaited is one object of a wait for several: a reader, or the items of a queue.
type Awaited interface {
	// HasNext tells whether a call that does not wait would give a message, or with which error
	// it would end. It takes nothing, and claims nothing in a group.
	HasNext(ctx context.Context) (bool, error)
	// Ready tells whether that is to be looked at. It is cheap, and changes nothing.
	Ready() bool
	// Place is where it is waited for: in the set in which each message rings. One that may not
	// take what it was woken for stands in no group's.
	Place() (*waits.Hub, shm.WaitSet)
}

// moment is how long one object of several may keep the others waiting for the broker.
const moment = time.Second

// HasNext is that of Awaited.
func (r *Reader) HasNext(ctx context.Context) (bool, error) {
	if r.view.at != uint32(r.t.version()) {
		short, cancel := context.WithTimeout(ctx, moment)
		defer cancel()
		ctx = short
	}
	ended, err := r.attend(ctx)
	if err != nil {
		if unanswered(ctx, err) {
			r.tried = 0 // it asks again
			return false, nil
		}
		return false, err
	}
	if r.hasNext() {
		return true, nil
	}
	if ended {
		return false, fault.Closed(r.t.Title())
	}
	return false, nil
}

// unanswered tells that the broker has not answered in time.
func unanswered(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (fault.Code(err) == protocol.CodeTimeout || errors.Is(err, context.Canceled))
}

// hasNext tells whether choose would find a message. Of the order in which they are taken it
// changes nothing.
func (r *Reader) hasNext() bool {
	r.lookFullyIfDue()
	for _, at := range r.scan.Look(r.pending) {
		if _, _, ok := r.next(r.cursors[at]); ok {
			return true
		}
	}
	return false
}

// Place is that of Awaited.
func (r *Reader) Place() (*waits.Hub, shm.WaitSet) { return r.t.set.waits, r.t.all }

// Items is what a queue holds, for a session that need not be one of its takers. One goroutine
// at a time.
type Items struct {
	t      *Topic
	lanes  *lanesView
	groups *groupsView
	claims []claims
	tried  uint64 // version that was last asked for
	epoch  uint64 // of the connection that was asked
}

// claims are those of one lane in one group.
type claims struct {
	*sessionfiles.Lane
	group shm.GroupLane
}

// Items looks at the items of a queue.
func (t *Topic) Items() *Items { return &Items{t: t} }

func (i *Items) isCurrent() bool {
	v := i.t.version()
	return i.lanes != nil && i.lanes.at == uint32(v) && i.groups.at == uint32(v>>32)
}

// Ready is that of Awaited.
func (i *Items) Ready() bool {
	return i.hasNext() || !i.isCurrent() && (i.t.version() != i.tried || i.epoch != i.t.set.broker.Epoch()) || i.finished()
}

func (i *Items) hasNext() bool {
	for _, c := range i.claims {
		if _, _, ok := c.group.Next(c.Ring.Head()); ok && c.Current() {
			return true
		}
	}
	return false
}

// finished is as that of a reader.
func (i *Items) finished() bool {
	if !i.t.isClosed() || !i.t.Info.Redeliver || i.t.isDeleted() {
		return i.t.isClosed()
	}
	for _, c := range i.claims {
		head := c.Ring.Head()
		for n := c.FirstIn(head); n <= head && c.Current(); n++ {
			if !c.group.Done(n) {
				return false
			}
		}
	}
	return true
}

// HasNext is that of Awaited.
func (i *Items) HasNext(ctx context.Context) (bool, error) {
	if err := i.t.set.life.Ended(); err != nil {
		return false, err
	}
	ended := i.finished() // before the look: what was put earlier is seen
	if !i.isCurrent() {
		i.tried, i.epoch = i.t.version(), i.t.set.broker.Epoch()
		if err := i.follow(ctx); err != nil {
			return false, err
		}
	}
	if i.hasNext() {
		return true, nil
	}
	if ended {
		return false, fault.Closed(i.t.Title())
	}
	return false, nil
}

func (i *Items) follow(ctx context.Context) error {
	// While the broker is away the former view serves. Where there is none, the others do not wait for it.
	if i.t.set.broker.IsAway() && (i.t.lanes.Load() == nil || !i.t.groups.Load().whole) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, moment)
	defer cancel()
	lanes, err := i.t.lanesNow(ctx)
	if err == nil {
		var groups *groupsView
		if groups, err = i.t.groupsNow(ctx); err == nil {
			return i.see(lanes, groups)
		}
	}
	if unanswered(ctx, err) {
		i.tried = 0 // it asks again
		return nil
	}
	if fault.IsLost(err) { // the next one is asked
		return nil
	}
	return err
}

func (i *Items) see(lanes *lanesView, groups *groupsView) error {
	i.lanes, i.groups, i.claims = lanes, groups, i.claims[:0]
	for _, l := range lanes.lanes {
		for _, g := range groups.groups {
			gl, err := shm.NewGroupLane(g.file.Region, l.Number, i.t.Info.Slots)
			if err != nil {
				return err
			}
			i.claims = append(i.claims, claims{l, gl})
		}
	}
	return nil
}

// Place is that of Awaited.
func (i *Items) Place() (*waits.Hub, shm.WaitSet) { return i.t.set.waits, i.t.all }

// side is what is waited for in one session.
type side struct {
	hub     *waits.Hub
	objects []Awaited
	sets    []shm.WaitSet
}

func (s *side) wait(ctx context.Context, spin time.Duration) error {
	return s.hub.Wait(ctx, spin, func() bool {
		for _, o := range s.objects {
			if o.Ready() {
				return true
			}
		}
		return false
	}, s.sets...)
}

// Await waits until one of the objects may be ready, or with the context's error. They may be
// those of several sessions.
func Await(ctx context.Context, spin time.Duration, objects []Awaited) error {
	var sides []*side
	of := map[*waits.Hub]*side{}
	for _, o := range objects {
		hub, set := o.Place()
		s := of[hub]
		if s == nil {
			s = &side{hub: hub}
			of[hub], sides = s, append(sides, s)
		}
		s.objects, s.sets = append(s.objects, o), append(s.sets, set)
	}
	if len(sides) == 1 {
		return sides[0].wait(ctx, spin)
	}
	first, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{}, len(sides))
	for _, s := range sides {
		go func() {
			defer func() { done <- struct{}{} }()
			s.wait(first, spin)
			cancel() // whichever it was, the others look no more
		}()
	}
	for range sides {
		<-done
	}
	return ctx.Err()
}
