package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newStopCommand) }

func newStopCommand(a *app) *cobra.Command {
	var at string
	var discard, yes, asJSON bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "End a broker for good",
		Long: `End a broker for good. Every program that has a session is told, and its calls fail
with SessionLost; what it has received it can still read. With --memory-dir names and
what waits in queues stay for a broker to come, unless --discard is given, which asks
first; memory without files is gone with the last program that uses it.

It returns when the broker's process has ended, so that another one can have its socket,
its HTTP address and its NATS at once.

Where no broker runs, the settings that the last one has recorded are forgotten: a
program then starts one with its own.

To restart a broker, and lose nothing, send it TERM instead and start it again.`,
		GroupID: groupBroker,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timeout <= 0 {
				return badUsage("--timeout %s is not positive", timeout)
			}
			if discard {
				if err := a.confirm(cmd.Context(), yes, "end the broker and remove what it has stored in files"); err != nil {
					return err
				}
			}
			return a.stop(cmd.Context(), at, discard, timeout, asJSON)
		},
	}
	cmd.Flags().StringVar(&at, "address", "", "socket of the broker, `unix:/path` or /path; default $BATON_ADDRESS, else that of this user's broker")
	cmd.Flags().BoolVar(&discard, "discard", false, "drop what is stored in files, too")
	yesFlag(cmd, &yes)
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "how long the broker may take until its process has ended; status 5 then")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// stopped is what `stop --json` prints.
type stopped struct {
	Socket string `json:"socket"`
	PID    int    `json:"pid,omitempty"` // 0: no broker ran, or its process is not known here
	// Ended: its process has ended, as far as that can be seen here. That of a broker that serves one command ends with the command.
	Ended     bool `json:"ended"`
	Discarded bool `json:"discarded"` // what it had stored in files
	Forgotten bool `json:"forgotten"` // no broker ran, and the settings of the last one are forgotten
}

// stop tells a broker to stop, and says what became of it.
func (a *app) stop(ctx context.Context, at string, discard bool, timeout time.Duration, asJSON bool) error {
	socket, _, err := address.Resolve(at)
	if err != nil {
		return err
	}
	s := &stopped{Socket: socket}
	if err := a.stopBroker(ctx, s, discard, timeout); err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(s)
	}
	if s.Forgotten {
		return a.println("no broker runs; the settings that the last one had recorded are forgotten")
	}
	return nil
}

// stopBroker tells a broker to stop and waits until its process has ended.
func (a *app) stopBroker(ctx context.Context, s *stopped, discard bool, timeout time.Duration) error {
	socket := s.Socket
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := reach.Dial(bounded, socket)
	if reach.Absent(err) {
		if s.Forgotten, err = forget(socket); s.Forgotten || err != nil {
			return err
		}
		return reach.None(socket, "nothing is to be stopped; give --address for another one")
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	until, _ := bounded.Deadline()
	conn.SetDeadline(until)
	watched, ended := false, func() bool { return true }
	if cred, err := sys.PeerCredentials(conn); err == nil && cred.PID != 0 {
		s.PID = cred.PID
		if pidfd, err := sys.OpenPidfd(cred.PID); err == nil {
			wait, stop := sys.WaitPidfd(pidfd)
			defer stop()
			watched, ended = true, wait
		}
	}
	w := wire.New(conn)
	defer w.Discard()
	// A broker that refuses the connection says so, and may have closed it before this is sent.
	sent := w.Request(1, protocol.OpStop, protocol.Stop{Discard: discard})
	for answered := false; ; answered = true {
		data, fds, err := w.Read()
		wire.CloseAll(fds)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && sent != nil {
			err = sent
		}
		if err != nil && answered && !errors.Is(err, os.ErrDeadlineExceeded) {
			break // it has closed everything, and its process ends with that
		}
		if err != nil && answered && reach.Suspended(socket) {
			return reach.Silent(socket)
		}
		if err != nil && answered {
			return protocol.Errorf(protocol.CodeTimeout, "wait longer (--timeout), look into its log, or end the process (kill -KILL)",
				"the broker stops, and its process %d has not ended within %s: it may wait for its clients (3s) and for NATS (as long as its --drain-timeout)", s.PID, timeout).With("pid", s.PID)
		}
		var e protocol.Envelope
		if err == nil {
			err = json.Unmarshal(data, &e)
		}
		if err != nil {
			unread := sys.GiveUp(conn) || sent != nil
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return notStopped(socket, unread, timeout)
			}
			return s.lost(err, watched, endsSoon(ctx, ended))
		}
		if e.Error != nil {
			return e.Error
		}
	}
	// The process of a broker that serves one command alone (baton run) ends with that, not now.
	s.Discarded = discard
	if !endsSoon(ctx, ended) {
		return ctx.Err()
	}
	s.Ended = watched
	return nil
}

// endsSoon tells whether a process has ended, or does within a moment.
func endsSoon(ctx context.Context, ended func() bool) bool {
	gone := make(chan bool, 1)
	go func() { gone <- ended() }()
	select {
	case is := <-gone:
		return is
	case <-ctx.Done():
	case <-time.After(lastMoment):
	}
	return false
}

// lastMoment is how long a process that ends may take from the end of its connections on.
const lastMoment = time.Second

// notStopped is the error of a broker that has not said that it stops, in time. It has not read that it should where
// unread is true, and does not stop then.
func notStopped(socket string, unread bool, timeout time.Duration) error {
	e := error(protocol.Errorf(protocol.CodeTimeout, "wait longer (--timeout), or look whether its process is suspended",
		"the broker has not stopped within %s", timeout))
	if reach.Suspended(socket) {
		e = reach.Silent(socket)
	}
	if unread {
		return nothingDone(e)
	}
	return maybeDone(e, "baton status")
}

// lost is the error of a broker whose connection has ended before it said that it stops. It stands for its process where
// that has ended: it was killed, or has failed, and has told its programs nothing.
func (s *stopped) lost(err error, watched, ended bool) error {
	switch {
	case watched && ended:
		return protocol.Errorf(protocol.CodeBrokerLost, "run baton stop once more, to have its settings forgotten; programs go on with the next broker that is started",
			"the broker, process %d, has ended, and not by this: it was killed, or has failed, before it said that it stops", s.PID).With("pid", s.PID)
	case watched:
		return protocol.Errorf(protocol.CodeBrokerLost, "look with baton status", "the broker did not answer that it stops, and its process %d has not ended: %w", s.PID, err).With("pid", s.PID)
	}
	return protocol.Errorf(protocol.CodeBrokerLost, "look with baton status", "the broker did not answer that it stops, and its process cannot be seen from here: %w", err)
}

// forget has the settings forgotten that the last broker at a socket has recorded, unless one
// runs. It tells whether there were any.
func forget(socket string) (forgot bool, err error) {
	dir := filepath.Dir(socket)
	if st, err := statefile.Read(dir); err != nil || st.Socket != socket || st.Settings == nil && !st.Supervised {
		return false, nil
	}
	lock, err := sys.OpenLock(filepath.Join(dir, reach.LockName))
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if err := lock.Lock(false); err != nil { // a broker begins or ends just now, or cannot be reached
		return false, nil
	}
	if err := statefile.Forget(dir); err != nil {
		return false, err
	}
	return true, nil
}
