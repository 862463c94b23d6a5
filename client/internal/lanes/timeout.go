package lanes

import (
	"context"
	"strconv"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/protocol"
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
		remedy += ", or look with `baton why " + t.Info.Kind + " " + t.Info.Name + "`"
	}
	if code == protocol.CodeFull && t.Info.Kind == protocol.KindFunction {
		what = "no room for another call: an older one of this session, which has " + strconv.Itoa(int(t.Info.Depth)) + " at most under way, goes on"
		remedy = "wait longer, give calls deadlines, or make those that run for long by a session of their own; `baton why function` shows them"
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
	if t.set.broker.IsAway() {
		e.Message += "; the broker is away"
	}
	return e
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
