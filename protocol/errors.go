package protocol

import (
	"errors"
	"fmt"
	"strings"
)

// Code names an error across languages; testdata/errors.json lists each with
// its name in every language. Match by code, never by text.
type Code string

// Codes, grouped by the moment they occur.
const (
	// Connecting.
	CodeNoBroker    Code = "NoBroker"    // none answers at the address
	CodeBrokerLost  Code = "BrokerLost"  // it was there and has gone
	CodeVersion     Code = "Version"     // other protocol or layout
	CodeProtocol    Code = "Protocol"    // malformed frame or message
	CodeUnsupported Code = "Unsupported" // unknown op or feature
	CodePermission  Code = "PermissionDenied"
	// Allocating.
	CodeOutOfMemory Code = "OutOfMemory"
	CodeQuota       Code = "QuotaExceeded"
	CodeTooMany     Code = "TooMany" // sessions, topics, lanes, chunks: a table is full
	// Describing.
	CodeInvalid Code = "InvalidArgument" // shape, dtype, name, option
	CodeHandle  Code = "InvalidHandle"   // malformed, outside its segment, or of another broker that this one does not reach
	// Taking and handing over.
	CodeExpired  Code = "Expired" // the storage has been recycled
	CodeClosed   Code = "Closed"
	CodeConflict Code = "Conflict" // differs from what exists
	CodeNotFound Code = "NotFound"
	CodeTimeout  Code = "Timeout"
	CodeEmpty    Code = "Empty"
	CodeFull     Code = "Full"
	CodeReadOnly Code = "ReadOnly"
	CodeBusy     Code = "Busy" // not possible now
	CodeInternal Code = "Internal"
	// Calling functions.
	CodeNoProvider   Code = "NoProvider"   // no process provides the function
	CodeProviderDied Code = "ProviderDied" // the process that ran it has ended without a reply
	CodeCancelled    Code = "Cancelled"    // the caller wanted the call no more
	CodeRemote       Code = "Remote"       // the function itself failed
	// What is on other hosts.
	CodeUnreachable Code = "Unreachable" // nothing is known of the host now: this host's own link is down, or it does not answer
	CodeHostLost    Code = "HostLost"    // the host that has the bytes is gone
	// Any time.
	CodeSessionLost Code = "SessionLost" // the broker said that the session is over
)

// Error is what crosses the socket and what clients return.
type Error struct {
	Code    Code           `json:"code"`
	Message string         `json:"message"`          // what happened, to what
	Remedy  string         `json:"remedy,omitempty"` // what to do next
	Detail  map[string]any `json:"detail,omitempty"`
	cause   error
}

// Error gives message and remedy in one line.
func (e *Error) Error() string {
	s := "baton: " + e.Message
	if e.Remedy != "" {
		s += " (" + e.Remedy + ")"
	}
	return s
}

// Is compares codes, so that an error that crossed the socket still matches.
// Empty and Full are timeouts as well.
func (e *Error) Is(target error) bool {
	var t *Error
	if !errors.As(target, &t) {
		return false
	}
	if t.Code == CodeTimeout && (e.Code == CodeEmpty || e.Code == CodeFull) {
		return true
	}
	return e.Code == t.Code
}

// Unwrap gives the local cause, if any; it does not cross the socket.
func (e *Error) Unwrap() error { return e.cause }

// Errorf makes an Error of a code; %w keeps a cause for errors.Is and As. Of a cause
// that is an Error the message has the message alone: its remedy would stand in the
// middle.
func Errorf(code Code, remedy, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Message: err.Error(), Remedy: remedy, cause: errors.Unwrap(err)}
	var inner *Error
	if errors.As(e.cause, &inner) {
		e.Message = strings.ReplaceAll(e.Message, inner.Error(), inner.Message)
	}
	return e
}

// Because keeps a cause that the message does not tell, and returns the error.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// Plain is the text of an error without the remedy, and without the word baton, of the Error in it: for
// places that have the remedy beside it, or none.
func Plain(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return strings.ReplaceAll(err.Error(), e.Error(), e.Message)
	}
	return err.Error()
}

// CodeOf is the code of an error, "" of none; one that has no code is Internal.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// With adds a value to the detail and returns the error.
func (e *Error) With(key string, value any) *Error {
	if e.Detail == nil {
		e.Detail = map[string]any{}
	}
	e.Detail[key] = value
	return e
}

// Sentinels for errors.Is, one for each code.
var (
	ErrNoBroker         = &Error{Code: CodeNoBroker, Message: "no broker answers"}
	ErrBrokerLost       = &Error{Code: CodeBrokerLost, Message: "the broker has gone"}
	ErrVersion          = &Error{Code: CodeVersion, Message: "the broker speaks another version"}
	ErrProtocol         = &Error{Code: CodeProtocol, Message: "malformed message"}
	ErrUnsupported      = &Error{Code: CodeUnsupported, Message: "not supported"}
	ErrPermissionDenied = &Error{Code: CodePermission, Message: "permission denied"}
	ErrOutOfMemory      = &Error{Code: CodeOutOfMemory, Message: "out of memory"}
	ErrQuotaExceeded    = &Error{Code: CodeQuota, Message: "quota exceeded"}
	ErrTooMany          = &Error{Code: CodeTooMany, Message: "a table is full"}
	ErrInvalid          = &Error{Code: CodeInvalid, Message: "invalid argument"}
	ErrInvalidHandle    = &Error{Code: CodeHandle, Message: "invalid handle"}
	ErrExpired          = &Error{Code: CodeExpired, Message: "expired"}
	ErrClosed           = &Error{Code: CodeClosed, Message: "closed"}
	ErrConflict         = &Error{Code: CodeConflict, Message: "differs from what exists"}
	ErrNotFound         = &Error{Code: CodeNotFound, Message: "not found"}
	ErrTimeout          = &Error{Code: CodeTimeout, Message: "timed out"}
	ErrEmpty            = &Error{Code: CodeEmpty, Message: "empty"}
	ErrFull             = &Error{Code: CodeFull, Message: "full"}
	ErrReadOnly         = &Error{Code: CodeReadOnly, Message: "read-only"}
	ErrBusy             = &Error{Code: CodeBusy, Message: "still held"}
	ErrInternal         = &Error{Code: CodeInternal, Message: "internal error"}
	ErrNoProvider       = &Error{Code: CodeNoProvider, Message: "no process provides the function"}
	ErrProviderDied     = &Error{Code: CodeProviderDied, Message: "the provider of the function has ended"}
	ErrCancelled        = &Error{Code: CodeCancelled, Message: "the call was cancelled"}
	ErrRemote           = &Error{Code: CodeRemote, Message: "the function failed"}
	ErrUnreachable      = &Error{Code: CodeUnreachable, Message: "the host cannot be reached"}
	ErrHostLost         = &Error{Code: CodeHostLost, Message: "the host is gone"}
	ErrSessionLost      = &Error{Code: CodeSessionLost, Message: "the session is lost"}
)
