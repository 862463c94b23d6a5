package fault

import (
	"context"
	"errors"
	"fmt"

	"github.com/baton-ipc/baton/protocol"
)

// Code is the code of an error of the protocol, "" of any other.
func Code(err error) protocol.Code {
	if e, ok := err.(*protocol.Error); ok {
		return e.Code
	}
	return ""
}

// GaveUp tells whether the broker has given up pickles for what it refused, and Elsewhere whether memory of
// others came free by that.
func GaveUp(err error) bool { return detail(err, protocol.DetailGivenUp) }

// Elsewhere is explained at GaveUp.
func Elsewhere(err error) bool { return detail(err, protocol.DetailElsewhere) }

func detail(err error, key string) bool {
	e, ok := err.(*protocol.Error)
	return ok && e.Detail[key] != nil
}

// IsLost reports whether an error says that the connection to the broker has ended.
func IsLost(err error) bool { return Code(err) == protocol.CodeBrokerLost }

// Uncertain reports whether an error leaves open whether the broker has carried
// the request out.
func Uncertain(err error) bool {
	code := Code(err)
	return err != nil && (code == "" || code == protocol.CodeTimeout || code == protocol.CodeBrokerLost)
}

// Context is a Timeout for a deadline and the context's own error otherwise.
func Context(ctx context.Context, what string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return protocol.Errorf(protocol.CodeTimeout, "give the call a longer timeout", "time ran out %s: %w", what, ctx.Err())
	}
	return fmt.Errorf("baton: given up %s: %w", what, ctx.Err())
}

// Closed is the error of a use of what was closed.
func Closed(what string) error {
	return protocol.Errorf(protocol.CodeClosed, "open a new one", "%s is closed", what)
}

// Released is the error of a use of what was released.
func Released(what string) error {
	return protocol.Errorf(protocol.CodeClosed, "Retain it for longer use", "%s was released", what)
}

// Expired is the error of a reference to what is no longer kept.
func Expired(why string) error {
	return protocol.Errorf(protocol.CodeExpired, "ask the sender for it again, or hold a lease", "the tensor is no longer kept: %s", why)
}

// Message is what an error says, without its code: a lost session is no other error.
func Message(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// IsUnknown reports whether err is an answer to a resume of a broker that does not know the
// session, and no other will.
func IsUnknown(err error) bool {
	code := Code(err)
	return code == protocol.CodeExpired || code == protocol.CodeVersion
}

// IsFinal reports whether err is an answer to a resume after which the session is over: no broker
// knows it, or its user may not use the broker any more.
func IsFinal(err error) bool { return IsUnknown(err) || Code(err) == protocol.CodePermission }

// sessionKey is the detail of the error of each call of a lost session.
const sessionKey = "session"

// Lost is the error of each call of a session that is over because a broker has said why: SessionLost,
// or PermissionDenied where its user may not use the broker any more.
func Lost(instance string, serial uint64, why error) *protocol.Error {
	code, remedy := protocol.CodeSessionLost, "open a new session, with Client.Reopen for one; what was received can still be read, copied and released"
	if e, ok := why.(*protocol.Error); ok && e.Code == protocol.CodePermission {
		code, remedy = e.Code, e.Remedy+"; what was received can still be read, copied and released"
	} else if ok && e.Code == protocol.CodeSessionLost && e.Remedy != "" {
		remedy = e.Remedy
	}
	return protocol.Errorf(code, remedy, "session %d of broker %s is over: %s", serial, instance, Message(why)).With(sessionKey, serial)
}

// IsSessionLost reports whether err is such an error, or a broker's to the same effect.
func IsSessionLost(err error) bool {
	e, ok := err.(*protocol.Error)
	return ok && (e.Code == protocol.CodeSessionLost || e.Code == protocol.CodePermission && e.Detail[sessionKey] != nil)
}

// UnlessLost is the error of ending a use, which a lost session has ended already.
func UnlessLost(err error) error {
	if IsSessionLost(err) {
		return nil
	}
	return err
}

// AboutDevice marks an error that says that this process cannot reach a device:
// another reader may.
func AboutDevice(err error, device string) error {
	if e, ok := err.(*protocol.Error); ok {
		return e.With("device", device)
	}
	return err
}

// Unreachable tells whether an error is such a one.
func Unreachable(err error) bool {
	e, ok := err.(*protocol.Error)
	return ok && e.Detail["device"] != nil
}
