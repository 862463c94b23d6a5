package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newPingCommand) }

func newPingCommand(a *app) *cobra.Command {
	f := clientFlags{answers: leastToAnswer}
	var ready, asJSON bool
	cmd := &cobra.Command{
		Use:   "ping",
		Short: "Tell whether the broker answers",
		Long: `Tell whether the broker answers, for probes that run a command. It needs no session and
does no work in the broker. Status 0: it answers; 4: none is there; 5: it is there and
gives no answer. With --ready status 1 as well: it answers, and takes over from another
broker or ends, so that clients should wait (as /readyz of --http).`,
		GroupID: groupLook,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ping(cmd.Context(), &f, ready, asJSON)
		},
	}
	f.add(cmd, "how long to wait for a broker, and for its answer (3s at least); 0: not for a broker")
	cmd.Flags().BoolVar(&ready, "ready", false, "fail while clients should wait")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) ping(ctx context.Context, f *clientFlags, ready, asJSON bool) error {
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	var p protocol.PingReply
	if err := l.Broker(ctx, protocol.OpPing, nil, &p); err != nil {
		return err
	}
	if asJSON {
		err = a.printJSON(p)
	} else {
		err = a.println(fmt.Sprintf("broker %s (pid %d): %s", p.Version, p.PID, p.State))
	}
	if err == nil && ready && p.State != protocol.BrokerServes {
		err = exitStatus(exitError)
	}
	return err
}
