package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/internal/termplot"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newPurgeCommand) }

func newPurgeCommand(a *app) *cobra.Command {
	var f clientFlags
	var yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "purge TOPIC|QUEUE...",
		Short: "Drop what topics keep and queues have waiting",
		Long: `Drop the messages that a topic keeps for late readers, or the items that wait in a
queue. What a reader has taken it keeps, and so does a taker of a queue that redelivers
until it has released the item. Senders that wait for room go on. Their memory goes
back when they look next, which they are asked to do at once.`,
		GroupID: groupSteer,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := protocol.CheckName(name); err != nil {
					return &usage{cause: err}
				}
			}
			what := "drop all messages that are kept in " + series(args)
			if err := a.confirmAt(cmd.Context(), &f, yes, what); err != nil {
				return err
			}
			return a.dropMessages(cmd.Context(), &f, protocol.OpPurge, "purged", args, asJSON)
		},
		ValidArgsFunction: a.completeRows(&f, protocol.ListTopics),
	}
	f.add(cmd, waitForBroker)
	yesFlag(cmd, &yes)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// confirmAt is confirm once it is known that a broker is there.
func (a *app) confirmAt(ctx context.Context, f *clientFlags, yes bool, what string) error {
	if yes {
		return nil
	}
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	l.close()
	return a.confirm(ctx, false, what)
}

// purged is what became of one topic or queue.
type purged struct {
	Name string `json:"name"`
	protocol.PurgeReply
}

// dropMessages carries out an op that drops messages, of one topic or queue after the other.
func (a *app) dropMessages(ctx context.Context, f *clientFlags, op, did string, names []string, asJSON bool) error {
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	var failed []error
	all := []purged{}
	for _, name := range names {
		p := purged{Name: name}
		if err := l.Broker(ctx, op, protocol.TopicByName{Name: name, Namespace: l.namespace}, &p.PurgeReply); err != nil {
			failed = append(failed, err)
			continue
		}
		all = append(all, p)
		if !asJSON {
			if err := a.println(fmt.Sprintf("%s %s %s: %s dropped; %s had it open", did, p.Kind, name,
				plural(int64(min(p.Messages, 1<<62)), "message"), plural(int64(p.Openers), "session"))); err != nil {
				return err
			}
		}
	}
	if asJSON {
		if err := a.printJSON(all); err != nil {
			return err
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}

// plural counts things.
func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return termplot.Count(n) + " " + what
}
