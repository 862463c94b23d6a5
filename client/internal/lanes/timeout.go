package lanes

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Moment is how long a wait lets alone what it cannot have now, such as what it needs a broker for.
const Moment = 10 * time.Millisecond

// AwaitMoment waits until what a wait could not have may be looked at again, or it is over.
func (s *Topics) AwaitMoment(ctx context.Context, over func() bool) {
	soon, cancel := context.WithTimeout(ctx, Moment)
	defer cancel()
	s.AwaitAny(soon, over)
}

// LooksAgain tells whether a wait for a message goes on after an error of a look: no broker has answered, which has to
// be asked for what the message lies in, and ctx has not ended. It waits a moment.
func (t *Topic) LooksAgain(ctx context.Context, err error) bool {
	over := func() bool { return t.set.life.Ended() != nil || t.isClosed() }
	if code := fault.Code(err); code != protocol.CodeTimeout && code != protocol.CodeBrokerLost || ctx.Err() != nil || over() {
		return false
	}
	t.set.AwaitMoment(ctx, over)
	return true
}

// DeadlineError gives a request that the broker did not answer before the deadline of ctx
// the code of the wait that it was part of, which is none where it waits for room and there is no broker.
func (t *Topic) DeadlineError(ctx context.Context, err error, code protocol.Code) error {
	away := fault.Code(err) == protocol.CodeBrokerLost && code != protocol.CodeFull
	if fault.Code(err) != protocol.CodeTimeout && !away || ctx.Err() != context.DeadlineExceeded {
		return err
	}
	if code == protocol.CodeFull && t.Info.Overwrite {
		return err
	}
	return protocol.Errorf(code, "give the call a longer timeout", "%s: %w", t.Title(), err)
}

// Timeout describes a wait that ended without what it waited for.
func (t *Topic) Timeout(ctx context.Context, code protocol.Code, what string) error {
	if ctx.Err() != nil && ctx.Err() != context.DeadlineExceeded {
		return fault.Context(ctx, "waiting on "+t.Title())
	}
	remedy := "wait longer"
	if t.Info.Name != "" {
		remedy += ", or look with `" + t.set.broker.Typed("why", t.Info.Kind, t.Info.Name) + "`"
	}
	if code == protocol.CodeFull && t.Info.Kind == protocol.KindFunction {
		what = "no room for another call: an older one of this session, which has " + strconv.Itoa(int(t.Info.Depth)) + " at most under way, goes on"
		remedy = "wait longer, give calls deadlines, or make those that run for long by a session of their own"
		if t.Info.Name != "" { // a lent one is in no listing
			remedy += "; `" + t.set.broker.Typed("why", t.Info.Kind, t.Info.Name) + "` shows them"
		}
	}
	held := ""
	if code == protocol.CodeFull {
		held = t.heldUp()
	}
	e := protocol.Errorf(code, remedy, "%s in %s", what, t.Title()).Because(context.DeadlineExceeded)
	writers, readers, lastLeft := t.count()
	if t.listed() == nil {
		e.With("writers", writers).With("readers", readers).With("last_left", lastLeft)
		e.Message += ": " + plural(writers, "writer") + " and " + plural(readers, "reader") + " attached"
		if lastLeft != "" {
			e.Message += ", " + lastLeft + " left last"
		}
	}
	e.Message += held
	if t.set.broker.IsAway() {
		e.Message += "; the broker is away"
	}
	return e
}

// heldUp says which item of this sender leaves it no room though others behind it were taken; "": none does, or it is not
// known, as where another caller sends just now. A taker is a number here: the broker alone knows its session.
func (t *Topic) heldUp() string {
	if t.Info.Overwrite || t.Info.Kind == protocol.KindFunction || !t.mu.Try() {
		return ""
	}
	defer t.mu.End()
	view, depth := t.groups.Load(), uint64(t.Info.Depth)
	if !t.writing || view == nil || t.head < depth || t.done(view, t.head+1-depth) {
		return ""
	}
	first, waiting, claimed := t.head+1-depth, uint64(0), false
	for _, k := range view.groups {
		g, err := shm.NewGroupLane(k.file.Region, t.laneNo, t.Info.Slots)
		if err != nil {
			return ""
		}
		open := uint64(0)
		for i := first; i <= t.head; i++ {
			if g.Open(i) {
				open++
			}
		}
		waiting = max(waiting, open) // of the group that has taken least
		claimed = claimed || g.Claimant(first) != 0
	}
	runtime.KeepAlive(view)
	if waiting >= depth {
		return "" // it is full
	}
	has := "no taker has"
	if claimed {
		has = "a taker has and has not released"
	}
	return fmt.Sprintf("; item %d of this sender holds it up, which %s: %d of %d items wait", first, has, waiting, depth)
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return strconv.Itoa(n) + " " + word + "s"
}

// Title names the topic in messages.
func (t *Topic) Title() string { return TitleOf(t.Info.Kind, t.Info.Name) }

// TitleOf names a topic of a kind in messages.
func TitleOf(kind, name string) string {
	if name == "" {
		return "a private " + kind
	}
	return kind + " " + name
}
