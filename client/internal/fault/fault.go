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
		return protocol.Errorf(protocol.CodeTimeout, "wait longer", "time ran out %s: %w", what, ctx.Err())
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

// IsFinal reports whether err is an answer to a resume that no broker will change.
func IsFinal(err error) bool {
	code := Code(err)
	return code == protocol.CodeExpired || code == protocol.CodeVersion
}

// UnlessLost is the error of ending a use, which a lost session has ended already.
func UnlessLost(err error) error {
	if Code(err) == protocol.CodeSessionLost {
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
