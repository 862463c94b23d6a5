package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// both writes to two writers, whatever becomes of one.
type both [2]io.Writer

func (b both) Write(p []byte) (int, error) {
	b[0].Write(p)
	return b[1].Write(p)
}

// beginWithin is how long a broker that a client starts may take until it serves. Its client may have given up by then.
const beginWithin = time.Minute

// standIn makes this process one that begins as a broker in the place of a client's: other clients see that by the lock
// of the place, and start none meanwhile. It ends the process where it does not serve within a time: what it waits for,
// such as a file system that does not answer, may never come. What a service manager said to the client is not for the
// broker.
func (a *app) standIn(s *settings.Settings, e *early, within time.Duration) error {
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "FDSTORE"} {
		os.Unsetenv(name)
	}
	socket, dir, err := standInPlace(s)
	if err != nil {
		return err
	}
	said := both{os.Stdin, a.err}
	e.late = time.AfterFunc(within, func() {
		(&app{err: said}).report(protocol.Errorf(protocol.CodeTimeout, "look at the file systems of its settings' files, and at what runs on this machine; the next program starts another one",
			"the broker that a program started has not begun to serve within %s, and ends", within))
		a.flushLog()
		os.Exit(exitTimeout)
	})
	lock, err := sys.OpenLock(filepath.Join(dir, reach.LockName))
	if err != nil {
		return nil // the broker itself says what is wrong
	}
	if err := lock.Lock(false); err != nil {
		lock.Close()
		if pid := reach.Owner(dir, socket); sys.IsLocked(err) && pid != 0 && !reach.Listens(socket) {
			return reach.CutOff(protocol.CodeConflict, pid, socket)
		}
		return nil
	}
	if err := lock.Sign(fmt.Sprintf("%d\n", os.Getpid())); err != nil {
		lock.Close() // as above
		return nil
	}
	e.lock = lock
	return nil
}

// standInPlace is where a broker that a client starts is.
func standInPlace(s *settings.Settings) (socket, dir string, err error) {
	if socket, _, err = address.Resolve(s.Address); err != nil {
		return "", "", err
	}
	if dir = s.RuntimeDir; dir == "" {
		dir = filepath.Dir(socket)
	}
	return socket, dir, nil
}

// standInSettings loads the settings of a broker that a client starts: those that the
// previous broker recorded, which the environment of that client does not change.
func standInSettings(s *settings.Settings) (*settings.Settings, error) {
	_, dir, err := standInPlace(s)
	if err != nil {
		return nil, err
	}
	if next, err := replay(s, dir); next != nil || err != nil {
		return next, err
	}
	return s, s.Load(os.Getenv)
}

// replay makes the settings that the last broker of a runtime directory has recorded; nil where
// it has recorded none. An error says what to do where they cannot start a broker.
func replay(s *settings.Settings, dir string) (*settings.Settings, error) {
	st, err := statefile.Read(dir)
	if err != nil || st.Settings == nil {
		return nil, nil
	}
	next, err := s.Replay(st.Settings)
	if err != nil {
		return nil, &usage{cause: fmt.Errorf("the settings that the last broker has recorded in %s cannot start another one: %w", filepath.Join(dir, statefile.Name), err),
			remedy: "put right what they name, start a broker with settings that are right (baton serve), or have these forgotten (baton stop)"}
	}
	return next, nil
}

// loaded loads settings. A signal ends the wait for their files.
func loaded(ctx context.Context, load func() (*settings.Settings, error)) (*settings.Settings, error) {
	type result struct {
		s   *settings.Settings
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := load()
		done <- result{s, err}
	}()
	select {
	case r := <-done:
		return r.s, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
