package client

import (
	"context"
	"strconv"

	"github.com/baton-ipc/baton/protocol"
)

// late gives a request that the broker did not answer before the deadline of ctx
// the code of the wait that it was part of.
func (t *topic) late(ctx context.Context, err error, code protocol.Code) error {
	if protocolCode(err) != protocol.CodeTimeout || ctx.Err() != context.DeadlineExceeded {
		return err
	}
	if code == protocol.CodeFull && t.info.Overwrite {
		return err
	}
	return protocol.Errorf(code, "wait longer", "%s: %w", t.title(), err)
}

// timeout describes a wait that ended without what it waited for.
func (t *topic) timeout(ctx context.Context, code protocol.Code, what string) error {
	if ctx.Err() != nil && ctx.Err() != context.DeadlineExceeded {
		return contextError(ctx, "waiting on "+t.title())
	}
	e := protocol.Errorf(code, "wait longer, or look with `baton show`", "%s in %s", what, t.title()).Because(context.DeadlineExceeded)
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

// title names the topic for people.
func (t *topic) title() string { return titleOf(t.info.Kind, t.info.Name) }

func titleOf(kind, name string) string {
	if name == "" {
		return "a private " + kind
	}
	return kind + " " + name
}
