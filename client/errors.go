package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/baton-ipc/baton/protocol"
)

// protocolCode is the code of an error of the protocol, "" of any other.
func protocolCode(err error) protocol.Code {
	if e, ok := err.(*protocol.Error); ok {
		return e.Code
	}
	return ""
}

// isLost tells of an error that says that the connection to the broker has ended.
func isLost(err error) bool { return protocolCode(err) == protocol.CodeBrokerLost }

// uncertain tells of an error that leaves open whether the broker has carried
// the request out.
func uncertain(err error) bool {
	code := protocolCode(err)
	return err != nil && (code == "" || code == protocol.CodeTimeout || code == protocol.CodeBrokerLost)
}

// contextError is a Timeout for a deadline and the context's own error otherwise.
func contextError(ctx context.Context, what string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return protocol.Errorf(protocol.CodeTimeout, "wait longer", "time ran out %s: %w", what, ctx.Err())
	}
	return fmt.Errorf("baton: given up %s: %w", what, ctx.Err())
}

func errClosed(what string) error {
	return protocol.Errorf(protocol.CodeClosed, "open a new one", "%s is closed", what)
}

func errReleased(what string) error {
	return protocol.Errorf(protocol.CodeClosed, "Retain it for longer use", "%s was released", what)
}

func errExpired(why string) error {
	return protocol.Errorf(protocol.CodeExpired, "ask the sender for it again, or hold a lease", "the tensor is no longer kept: %s", why)
}

// messageOf is what an error says, without its code: a lost session is no other error.
func messageOf(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

// isFinal reports whether err is an answer to a resume that no broker will change.
func isFinal(err error) bool {
	code := protocolCode(err)
	return code == protocol.CodeExpired || code == protocol.CodeVersion
}

// unlessLost is the error of ending a use, which a lost session has ended already.
func unlessLost(err error) error {
	if protocolCode(err) == protocol.CodeSessionLost {
		return nil
	}
	return err
}

// aboutDevice marks an error that says that this process cannot reach a device:
// another reader may.
func aboutDevice(err error, device string) error {
	if e, ok := err.(*protocol.Error); ok {
		return e.With("device", device)
	}
	return err
}

// unreachable tells of such an error.
func unreachable(err error) bool {
	e, ok := err.(*protocol.Error)
	return ok && e.Detail["device"] != nil
}
