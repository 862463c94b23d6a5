package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newCollectCommand) }

func newCollectCommand(a *app) *cobra.Command {
	var f clientFlags
	var wait time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "collect",
		Short: "Have programs and the broker give unused memory back",
		Long: `Ask all sessions to give back the memory that they keep warm and do not use, and the
broker to do the same. Nothing that is held is touched. A program that works
keeps what it has just allocated in. A program allocates more
slowly afterwards, until its memory is warm again. What a process that stands still
keeps comes when it goes on.

The command waits until no more comes for a moment, and says how much came.`,
		GroupID: groupSteer,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return badUsage("--wait %s is negative", wait)
			}
			return a.collect(cmd.Context(), &f, wait, asJSON)
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().DurationVar(&wait, "wait", 2*time.Second, "how long to wait for what comes back, at most")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// collected is what a collection has brought so far.
type collected struct {
	protocol.CollectReply
	GrantedNow uint64 `json:"granted_bytes_now"`
}

const (
	collectLook  = 50 * time.Millisecond
	collectQuiet = 6 // looks without any change, after which no more is waited for
)

func (a *app) collect(ctx context.Context, f *clientFlags, wait time.Duration, asJSON bool) error {
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	var c collected
	if err := l.Broker(ctx, protocol.OpCollect, nil, &c.CollectReply); err != nil {
		return err
	}
	c.GrantedNow = c.Granted
	tick := time.NewTicker(collectLook)
	defer tick.Stop()
	until := time.Now().Add(wait)
	for quiet := 0; quiet < collectQuiet && time.Now().Before(until); quiet++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		var now protocol.LimitReply
		if err := l.Broker(ctx, protocol.OpLimit, protocol.Limit{}, &now); err != nil {
			return err
		}
		if now.Granted != c.GrantedNow {
			c.GrantedNow, quiet = now.Granted, -1
		}
	}
	if asJSON {
		return a.printJSON(c)
	}
	return a.println(fmt.Sprintf("asked %s: %s granted, %s before", plural(int64(c.Sessions), "session"), size(c.GrantedNow), size(c.Granted)))
}
