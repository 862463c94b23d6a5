package sessionfiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// NoMemory turns a failed file or mapping into an error that a client can act on.
func NoMemory(err error, what string) error {
	var of *os.PathError
	if sys.IsNoSpace(err) && errors.As(err, &of) {
		dir := filepath.Dir(of.Path)
		return protocol.Errorf(protocol.CodeOutOfMemory, fmt.Sprintf("make room in the file system of %s (df), or start the broker with another --memory-dir", dir),
			"no room for %s in %s: %w", what, dir, err)
	}
	if sys.IsNoSpace(err) {
		return protocol.Errorf(protocol.CodeOutOfMemory, "free memory on this machine, or raise the broker's container limit",
			"no memory for %s: %w", what, err)
	}
	if sys.IsTooLarge(err) {
		return protocol.Errorf(protocol.CodeOutOfMemory, "raise the broker's limit of the size of files, which binds memory files too (ulimit -f)",
			"cannot make %s: %w", what, err)
	}
	return AsError(fmt.Errorf("cannot make %s: %w", what, err))
}

// Awaited is the error about a file that no session has handed to this broker: it may still come,
// or it can come no more.
func (s *Store) Awaited(k Key, what string) error {
	if !s.Awaits(k) {
		return protocol.Errorf(protocol.CodeExpired, "take it where it is mapped already, or have it made anew",
			"no client of the previous broker handed over the %s", what)
	}
	return Awaited(what)
}

// Awaits tells whether a file that is not here may still be handed over.
func (s *Store) Awaits(k Key) bool {
	_, missing := s.Missing[k]
	return missing || !s.AllBack
}

// Awaited is the error about a file that this broker was not handed yet.
func Awaited(what string) error {
	return protocol.Errorf(protocol.CodeBusy, "try again when the clients of the previous broker are back: baton ls sessions shows those that are not",
		"this broker was not handed the %s yet", what).Because(ErrAwaited)
}

// ErrAwaited is the cause of the errors of Awaited.
var ErrAwaited = errors.New("a file was not handed over yet")

// AsError makes an error fit for the socket.
func AsError(err error) *protocol.Error {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e
	}
	if sys.IsNoDescriptors(err) {
		return protocol.Errorf(protocol.CodeTooMany, "raise the broker's limit of open files (ulimit -n)", "%w", err)
	}
	return protocol.Errorf(protocol.CodeInternal, "see the broker's log", "%w", err)
}
