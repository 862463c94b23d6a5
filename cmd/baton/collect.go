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
slowly afterwards, until its memory is warm again. What a process that is suspended
keeps comes when it goes on.

What a program has released a moment ago it keeps for about a second, for its next tensor:
the command asks once more when that time is over. It waits until no more comes for a
moment, and says how much came.`,
		GroupID: groupSteer,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return badUsage("--wait %s is negative", wait)
			}
			return a.collect(cmd.Context(), &f, wait, asJSON)
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Second, "how long to wait for what comes back, at most")
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
	collectQuiet = 10 // looks without any change, after which no more is waited for
	// collectAgain is longer than a program keeps the memory in which it has just allocated.
	collectAgain = 1200 * time.Millisecond
)

func (a *app) collect(ctx context.Context, f *clientFlags, wait time.Duration, asJSON bool) error {
	l, err := a.lookToChange(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	var c collected
	if err := l.change(ctx, protocol.OpCollect, protocol.Collect{}, &c.CollectReply, "baton events --kind steered"); err != nil {
		return err
	}
	c.GrantedNow = c.Granted
	tick := time.NewTicker(collectLook)
	defer tick.Stop()
	began := time.Now()
	until, asked := began.Add(wait), 1
	for quiet := 0; (quiet < collectQuiet || asked == 1 && c.GrantedNow > 0) && time.Now().Before(until); quiet++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if asked == 1 && time.Since(began) >= collectAgain {
			if err := l.Broker(ctx, protocol.OpCollect, protocol.Collect{Again: true}, nil); err != nil {
				return err
			}
			asked, quiet = 2, -1
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
