package broker

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/protocol"
)

// opConnect stands in metrics and events for the attempt to connect, which is no op.
const opConnect = "connect"

// refusals are the errors that may need an operator: limits that were reached, and requests
// that a session may not make.
var refusals = map[protocol.Code]bool{protocol.CodeQuota: true, protocol.CodeOutOfMemory: true, protocol.CodeTooMany: true,
	protocol.CodePermission: true, protocol.CodeInternal: true}

// carriedOut counts a request that was carried out, and notes a refusal.
func (c *conn) carriedOut(op string, data []byte, began time.Time, err error) {
	if hasFallback(op, data, err) {
		err = nil // the program gets its memory, or the refusal of what it asks for next
	}
	c.observe(op, began, err)
	c.logRefusal(op, err)
	if protocol.CodeOf(err) == protocol.CodeCancelled && !(op == protocol.OpLimit && asksLimits(data)) {
		c.noteAbandoned(op)
	}
}

// refusedEarly notes a refusal that carriedOut does not see: before a request was carried out,
// or of one that begins or ends a connection.
func (c *conn) refusedEarly(op string, err error) {
	if !refusals[protocol.CodeOf(err)] {
		return
	}
	if isOp(op) {
		c.observe(op, time.Now(), err)
	}
	c.logRefusal(op, err)
}

func (c *conn) observe(op string, began time.Time, err error) {
	if observe := c.b.cfg.Observe; observe != nil {
		observe(op, time.Since(began), protocol.CodeOf(err))
	}
}

// logRefusal writes a line about a refusal that may need an operator, with the program that
// got it: that of the session, or of a connection without one.
func (c *conn) logRefusal(op string, err error) {
	code := protocol.CodeOf(err)
	if !refusals[code] {
		return
	}
	args := []any{events.Of(events.Refused), "code", code, "op", sessionfiles.Printable(op, 32)}
	if s := c.session; s != nil {
		args = append(args, "name", s.Name, "pid", s.PID)
	} else {
		args = append(args, "pid", c.cred.PID)
	}
	c.b.sparing.Warn(c.causer(), "refused", append(args, "uid", c.cred.UID, "error", err)...)
}

// causer is the program that has connected, or all programs of a user that may not connect.
func (c *conn) causer() causer {
	if c.stranger {
		return causer{uid: c.cred.UID}
	}
	return causer{c.cred.UID, c.cred.PID}
}

// hasFallback tells whether the client asks for less, or once more, after this refusal: then
// its program has not been refused anything yet.
func hasFallback(op string, data []byte, err error) bool {
	if e := new(protocol.Error); errors.As(err, &e) && e.Detail[protocol.DetailGivenUp] != nil {
		return true
	}
	if code := protocol.CodeOf(err); op != protocol.OpGrant || code != protocol.CodeQuota && code != protocol.CodeOutOfMemory {
		return false
	}
	var r protocol.Grant
	return json.Unmarshal(data, &r) == nil && r.Fallback
}

// isOp tells whether an op exists: metrics have labels only for such.
func isOp(op string) bool {
	switch op {
	case opConnect, protocol.OpHello, protocol.OpStop, protocol.OpReplace, protocol.OpRestore, protocol.OpRestored, protocol.OpOffer, protocol.OpHandleFetch:
		return true
	}
	return ops[op] != nil || takesMemory[op] != nil || steers[op] != nil
}
