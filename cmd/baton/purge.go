package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newPurgeCommand) }

func newPurgeCommand(a *app) *cobra.Command {
	var f clientFlags
	var yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "purge TOPIC|QUEUE...",
		Short: "Drop what topics keep and queues have waiting",
		Long: `Drop the messages that a topic keeps, or the items that wait in a queue. One without a name
is called by the number that ls topics --all shows. Readers that join
later would get what a topic keeps; not so of a lossless topic, where a reader has what is
sent after it was made. What a reader has taken it keeps. So does a taker of a queue that redelivers, until
it has released the item: that item is not purged, and another one gets it if its taker
ends before. Senders that wait for room go on, except behind such an item. The memory goes
back when they look next, which they are asked to do at once.`,
		GroupID: groupSteer,
		Args:    takes(1, anyNumber),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := protocol.CheckName(name); err != nil {
					return &usage{cause: err}
				}
			}
			what := func(l *looker) (string, error) {
				for _, name := range args {
					if _, err := l.topicCalled(cmd.Context(), name); err != nil {
						return "", err
					}
				}
				return "drop all messages that are kept in " + series(args), nil
			}
			if err := a.confirmFound(cmd.Context(), &f, yes, what); err != nil {
				return err
			}
			return a.purge(cmd.Context(), &f, args, asJSON)
		},
		ValidArgsFunction: a.completeRows(&f, protocol.ListTopics),
	}
	f.add(cmd, waitForBroker)
	yesFlag(cmd, &yes)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// purged is what became of one topic or queue.
type purged struct {
	Name string `json:"name"`
	protocol.PurgeReply
}

// purge drops the messages of one topic or queue after the other.
func (a *app) purge(ctx context.Context, f *clientFlags, names []string, asJSON bool) error {
	l, err := a.lookToChange(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	return each(a, names, asJSON, func(name string) (purged, string, error) {
		p := purged{Name: name}
		t := &protocol.TopicByName{Name: name, Namespace: l.namespace}
		if isNumber(name) { // perhaps one without a name
			var err error
			if t, err = l.topicCalled(ctx, name); err != nil {
				return p, "", nothingDone(err)
			}
		}
		err := l.change(ctx, protocol.OpPurge, t, &p.PurgeReply, "baton ls topics")
		return p, dropped("purged", name, &p.PurgeReply), err
	})
}

// topicCalled finds a topic or queue by its name, or one without a name by its number.
func (l *looker) topicCalled(ctx context.Context, what string) (*protocol.TopicByName, error) {
	rows, err := candidates(ctx, l, protocol.ListTopics, what)
	if err != nil {
		return nil, err
	}
	t := &protocol.TopicByName{Namespace: l.namespace}
	for _, raw := range rows {
		var row broker.TopicRow
		if err := json.Unmarshal(raw, &row); err != nil {
			return nil, err
		}
		if row.Name == what {
			t.Name, t.ID = what, 0
			return t, nil
		}
		if row.Former == "" && isCalled(protocol.ListTopics, raw, what) {
			t.ID, t.Namespace = row.ID, row.Namespace
		}
	}
	if t.ID == 0 {
		return nil, protocol.Errorf(protocol.CodeNotFound, "baton ls topics lists what there is, with --all those without a name, too", "there is no topic or queue %q in namespace %s", what, l.namespace)
	}
	return t, nil
}

// dropped says what became of a topic or queue.
func dropped(did, name string, r *protocol.PurgeReply) string {
	return fmt.Sprintf("%s %s %s: %s dropped; %s had it open", did, r.Kind, name,
		plural(int64(min(r.Messages, 1<<62)), "message"), plural(int64(r.Openers), "session"))
}

// plural counts things.
func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return termtext.Count(n) + " " + what
}
