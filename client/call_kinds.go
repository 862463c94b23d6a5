package client

import (
	"strings"
	"sync"

	"github.com/baton-ipc/baton/protocol"
)

// registered are the errors of a program by their kinds: func(*RemoteError) error by string.
var registered sync.Map

// RegisterError has errors of functions that have a kind be errors of the program as well: errors.Is and errors.As see
// what of returns for such a RemoteError, which they also stay. It is for this process, and for causes, too. of runs where
// the call was made, and a panic of it is one there. A function that returns an error with a method Kind() string, or one
// of OfKind, gives it that kind in every language.
//
// Errors: ErrConflict if the kind was registered already; ErrInvalid for one of Baton's own (baton.…) or an empty one,
// and without of.
func RegisterError(kind string, of func(*RemoteError) error) error {
	if of == nil {
		return protocol.Errorf(protocol.CodeInvalid, "give a function that makes the error of a RemoteError", "nothing makes the errors of the kind %q", kind)
	}
	if kind == "" || strings.HasPrefix(kind, "baton.") {
		return protocol.Errorf(protocol.CodeInvalid, "use a name of your own, as shop.OutOfStock", "%q cannot be the kind of an error of a program", kind)
	}
	if _, was := registered.LoadOrStore(kind, of); was {
		return protocol.Errorf(protocol.CodeConflict, "register it once, at the start of the program", "the kind of errors %s is registered already", kind)
	}
	return nil
}

func registeredFor(e *RemoteError) error {
	if of, is := registered.Load(e.Kind); is {
		return of.(func(*RemoteError) error)(e)
	}
	return nil
}

// OfKind gives an error of a function a kind, by which callers in any language know it. Of no error it makes none: with
// a nil err it returns nil, and so a function may end with it whether or not it has failed.
//
//	return out, client.OfKind("shop.OutOfStock", err)
func OfKind(kind string, err error) error {
	if err == nil {
		return nil
	}
	return &ofKind{kind, err}
}

type ofKind struct {
	kind string
	err  error
}

func (e *ofKind) Error() string { return e.err.Error() }
func (e *ofKind) Unwrap() error { return e.err }
func (e *ofKind) Kind() string  { return e.kind }
