package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/baton-ipc/baton/protocol"
)

// RemoteError is how the function of a call failed, as its provider says: errors.Is tells it from others by
// ErrRemote. A function that returns one gives Kind and Message to callers in any language.
type RemoteError struct {
	// Kind is the type of the error there: ValueError of Python, baton.Expired of Baton, panic.
	Kind    string
	Message string
	// Trace is where it happened, in the form of its language; "" where that is not told.
	Trace string
	// Cause is the error that led to it; nil: none is told.
	Cause *RemoteError
	// Function is its name, and Provider that of the session that ran it; "" in an error that a function returns.
	Function, Provider string

	own error // what was registered for its kind; nil: nothing
}

// Error tells function, kind and message.
func (e *RemoteError) Error() string {
	text := e.Message
	if e.Kind != "" {
		text = e.Kind + ": " + text
	}
	if e.Function != "" {
		where := ""
		if e.Provider != "" {
			where = " in " + e.Provider
		}
		text = "baton: function " + e.Function + " failed" + where + ": " + text
	}
	return text
}

// Unwrap gives ErrRemote with kind, message and trace as details.
func (e *RemoteError) Unwrap() error {
	p := protocol.Errorf(protocol.CodeRemote, "", "%s", strings.TrimPrefix(e.Error(), "baton: "))
	p.With("kind", e.Kind).With("message", e.Message).With("trace", e.Trace).With("provider", e.Provider)
	if e.Function != "" {
		p.With("function", e.Function)
	}
	return p
}

// Is tells whether it is an error that was registered for its kind by RegisterError.
func (e *RemoteError) Is(target error) bool { return e.own != nil && errors.Is(e.own, target) }

// As gives an error that was registered for its kind by RegisterError.
func (e *RemoteError) As(target any) bool { return e.own != nil && errors.As(e.own, target) }

// failure is the error that a reply brings.
func (r *received) failure(function string) error {
	e := &RemoteError{Function: function, Provider: r.m.Sender}
	for name, to := range map[string]*string{"kind": &e.Kind, "message": &e.Message, "trace": &e.Trace} {
		v, _, err := r.named(name)
		if err != nil {
			return err
		}
		text, is := v.(string)
		if v != nil && !is {
			return malformed("an error whose " + name + " is no text")
		}
		*to = text
	}
	v, _, err := r.named("cause")
	if err != nil {
		return err
	}
	e.Cause = causeOf(v)
	e.own = registeredFor(e)
	return e
}

// causeOf reads a cause, which is a dict of the same texts.
func causeOf(v any) *RemoteError {
	m, is := v.(map[string]any)
	if !is {
		return nil
	}
	text := func(key string) string { s, _ := m[key].(string); return s }
	e := &RemoteError{Kind: text("kind"), Message: text("message"), Trace: text("trace"), Cause: causeOf(m["cause"])}
	e.own = registeredFor(e)
	return e
}

// panicked is the error of a function that panicked.
func panicked(v any, stack []byte) *RemoteError {
	return &RemoteError{Kind: "panic", Message: fmt.Sprint(v), Trace: strings.TrimSpace(string(stack))}
}

// remoteOf is how an error of a function is told to its caller. It calls methods of the error, which may panic.
func remoteOf(err error) *RemoteError {
	if r, is := err.(*RemoteError); is {
		if r.Kind == "" {
			named := *r
			named.Kind = kindOther
			return &named
		}
		return r
	}
	e := &RemoteError{Kind: kindOther, Message: err.Error()}
	var kinded interface{ Kind() string }
	if errors.As(err, &kinded) {
		e.Kind = cmp.Or(kinded.Kind(), kindOther)
	}
	if p, is := err.(*protocol.Error); is {
		e.Kind, e.Message = "baton."+string(p.Code), p.Message
		if p.Remedy != "" {
			e.Message += " (" + p.Remedy + ")"
		}
	}
	var cause *RemoteError
	if errors.As(err, &cause) {
		e.Cause = cause
	}
	return e
}

// kindOther is the kind of an error that has none of its own.
const kindOther = "error"

// Kinds of errors that say how a call ended, in every language.
const (
	kindTimeout   = "baton." + string(protocol.CodeTimeout)
	kindCancelled = "baton." + string(protocol.CodeCancelled)
	kindClosed    = "baton." + string(protocol.CodeClosed) // of a function that was an argument
)

// lentNoMore is the error of a call of a function whose own call is over.
func lentNoMore() error {
	return protocol.Errorf(protocol.CodeClosed, "call it while that runs, or register it",
		"the call is over with which the function came")
}

// ownEnd is an error of a function that ends since its call does, of the kind that says so in every language; another
// one as it is.
func (k *callContext) ownEnd(err error) error {
	_, named := err.(*protocol.Error)
	if _, remote := err.(*RemoteError); named || remote || err == nil {
		return err
	}
	for ended, kind := range map[error]string{
		context.DeadlineExceeded: kindTimeout, context.Canceled: kindCancelled,
	} {
		if errors.Is(err, ended) && k.Err() == ended {
			told := remoteOf(err)
			told.Kind = kind
			return told
		}
	}
	return err
}

// mostCauses bounds a chain of causes.
const mostCauses = 16

// keepsTraces tells whether a value of BATON_NO_REMOTE_TRACES keeps traces here. A mistyped one does: what was
// told cannot be taken back.
func keepsTraces(value string) bool { return value != "" && value != "0" && value != "false" }

// withoutTraces is the error as it is told where traces stay in the provider's process.
func (e *RemoteError) withoutTraces(depth int) *RemoteError {
	if e == nil || depth > mostCauses { // more are not told
		return nil
	}
	told := *e
	told.Trace, told.Cause = "", e.Cause.withoutTraces(depth+1)
	return &told
}

// mostText bounds a text of an error: a longer one says no more.
const mostText = 64 << 10

func printable(s string) string {
	if len(s) > mostText {
		s = s[:mostText] + "…"
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

func (e *RemoteError) tree(depth int) any {
	if e == nil || depth == mostCauses {
		return nil
	}
	m := map[string]any{"kind": printable(e.Kind), "message": printable(e.Message), "trace": printable(e.Trace)}
	if cause := e.Cause.tree(depth + 1); cause != nil {
		m["cause"] = cause
	}
	return m
}

// addError makes the arguments of a reply that is an error.
func (m *callMessage) addError(e *RemoteError) error {
	m.record.Flags |= protocol.CallFailed
	m.record.Args = m.args[:0]
	texts := []struct {
		name string
		v    any
	}{{"kind", printable(e.Kind)}, {"message", printable(e.Message)}, {"trace", printable(e.Trace)}, {"cause", e.Cause.tree(0)}}
	for _, t := range texts {
		if t.v == nil {
			continue
		}
		if err := m.add(t.name, t.v); err != nil {
			return err
		}
	}
	return nil
}
