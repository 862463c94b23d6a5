package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newStopCommand) }

func newStopCommand(a *app) *cobra.Command {
	var at string
	var discard bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "End a broker for good",
		Long: `End a broker for good. Every program that has a session is told, and its calls fail
with SessionLost; what it has received it can still read. With --memory-dir names and
what waits in queues stay for a broker to come, unless --discard is given; memory
without files is gone with the last program that uses it.

To restart a broker, and lose nothing, send it TERM instead and start it again.`,
		GroupID: groupBroker,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return stopBroker(cmd.Context(), at, discard)
		},
	}
	cmd.Flags().StringVar(&at, "address", "", "socket of the broker, `unix:/path` or /path; default $BATON_ADDRESS, else that of this user's broker")
	cmd.Flags().BoolVar(&discard, "discard", false, "drop what is stored in files, too")
	return cmd
}

// stopTime is how long a broker that was told to stop may take, and its process to end
// behind that.
const stopTime = 30 * time.Second

// stopBroker tells a broker to stop and waits until its process has ended.
func stopBroker(ctx context.Context, at string, discard bool) error {
	socket, _, err := address.Resolve(at)
	if err != nil {
		return err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if errors.Is(err, fs.ErrPermission) {
		return protocol.Errorf(protocol.CodePermission, "run this as the broker's user, or as root", "the socket %s may not be used: %w", socket, err)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeNoBroker, "nothing is to be stopped; give --address for another one", "no broker answers at %s: %w", socket, err)
	}
	conn := c.(*net.UnixConn)
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(stopTime))
	ended := func() bool { return true }
	if cred, err := sys.PeerCredentials(conn); err == nil && cred.PID != 0 {
		if pidfd, err := sys.OpenPidfd(cred.PID); err == nil {
			wait, stop := sys.WaitPidfd(pidfd)
			defer stop()
			ended = wait
		}
	}
	w := wire.New(conn)
	defer w.Discard()
	if err := w.Request(1, protocol.OpStop, protocol.Stop{Discard: discard}); err != nil {
		return lostWhileStopping(err)
	}
	for answered := false; ; answered = true {
		data, fds, err := w.Read()
		wire.CloseAll(fds)
		if err != nil && answered {
			break // it has closed everything
		}
		var e protocol.Envelope
		if err == nil {
			err = json.Unmarshal(data, &e)
		}
		if err != nil {
			return lostWhileStopping(err)
		}
		if e.Error != nil {
			return e.Error
		}
	}
	// A broker that serves one command alone (baton run) ends with that, not now.
	gone := make(chan struct{})
	go func() {
		ended()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
	}
	return nil
}

func lostWhileStopping(err error) error {
	return protocol.Errorf(protocol.CodeBrokerLost, "look with baton status", "the broker did not answer that it stops: %w", err)
}
