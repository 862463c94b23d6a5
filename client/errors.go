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
