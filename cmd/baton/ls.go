package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/cmd/baton/internal/top"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newLsCommand) }

func newLsCommand(a *app) *cobra.Command {
	var f clientFlags
	var asJSON, everything bool
	cmd := &cobra.Command{
		Use:   "ls [" + strings.Join(lsKinds(), "|") + "] [PATTERN]",
		Short: "List names, topics, functions, sessions, segments, storages, leases or hosts",
		Long: `List what the broker has; without a kind, names, topics and sessions.

PATTERN picks rows by name (of segments, storages and leases: by their maker's);
* stands for any characters. Names, topics and functions are those of the namespace,
all else is the whole broker's; this command's own session is left out. Topics and queues
without a name are left out, and counted in one line, unless --all is given: each caller of
functions has one for its replies.

Of a topic "kept" are the last messages of each sender, depth of them at most, also those that all
readers have taken: they hold their memory until newer ones are sent. Of a queue they are the
items that were not taken, or not released, and those whose takers have released them since their
sender sent last: it gives these up at its next item, or when baton collect asks.

functions tells how many sessions provide each, which of its calls run and wait, how many
sessions call it, what it takes and gives, whose it is and since when.

hosts lists the brokers on the same NATS with --span, this one first: those that answer are
reachable, and of the others it says why they cannot be talked to.

storages shows the holders of each: size, age, maker, each holder, and with BATON_TRACE=1
in its maker's environment the line of code. A storage is shown while anything
holds it.

--json prints an array of the broker's rows; without a kind, an object of them.`,
		Example: `  baton ls names 'weights/*'
  baton ls functions 'vision/*'
  baton ls storages --json`,
		GroupID: groupLook,
		Args:    takes(0, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ls(cmd.Context(), &f, args, everything, asJSON)
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return lsKinds(), cobra.ShellCompDirectiveNoFileComp
		},
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVar(&everything, "all", false, "list topics and queues without a name as well")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) ls(ctx context.Context, f *clientFlags, args []string, everything, asJSON bool) (err error) {
	wanted := []string{protocol.ListNames, protocol.ListTopics, protocol.ListSessions}
	pattern := ""
	if len(args) > 0 {
		l, known := findAll(args[0])
		if !known {
			return badUsage("%q is no kind: use one of %s", args[0], strings.Join(lsKinds(), ", "))
		}
		wanted = []string{l.what}
	}
	if len(args) > 1 {
		pattern = args[1]
	}
	look, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer look.close()
	all := map[string][]json.RawMessage{}
	for _, what := range wanted {
		if all[what], err = look.fetch(ctx, what, pattern); err != nil {
			return err
		}
	}
	private := 0
	if rows, is := all[protocol.ListTopics]; is && !everything {
		all[protocol.ListTopics] = slices.DeleteFunc(rows, isPrivate)
		private = len(rows) - len(all[protocol.ListTopics])
	}
	switch {
	case asJSON && len(wanted) == 1:
		return a.printJSON(all[wanted[0]])
	case asJSON:
		return a.printJSON(all)
	}
	for i, what := range wanted {
		l, _ := findAll(what)
		text, err := a.list(l, all[what])
		if err != nil {
			return err
		}
		if left := top.LeftOut(private); left != "" && what == protocol.ListTopics {
			text += "\n" + left
		}
		if i > 0 {
			text = "\n" + text
		}
		if err := a.println(text); err != nil {
			return err
		}
	}
	return nil
}

// lsKinds are what ls lists.
func lsKinds() []string { return append(kinds(), hostListing.what) }

// isPrivate tells whether a row is a topic or queue that never had a name.
func isPrivate(raw json.RawMessage) bool {
	var r broker.TopicRow
	return json.Unmarshal(raw, &r) == nil && top.IsPrivate(&r)
}
