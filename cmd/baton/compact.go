package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newCompactCommand) }

func newCompactCommand(a *app) *cobra.Command {
	var f clientFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "compact NAME...",
		Short: "Copy names into memory of their own, to let go of what they keep",
		Long: `Copy the bundles of names into memory that is just large enough, and publish the copies
as new revisions. A small tensor keeps the whole storage that it is a view of, and with
--memory-dir or huge pages the whole segment of a program that has ended; the copy keeps
nothing else. A program that has got the old revision keeps its bytes.

Without --memory-dir the broker alone has the copy until a program gets the name. Until
then the name ends with a broker that is killed or restarted; serve --replace keeps it.

A name that is set meanwhile stays as it is then. Live names are refused, since
all write them in place, and ephemeral ones, which end with their setter.`,
		GroupID: groupSteer,
		Args:    takes(1, anyNumber),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.compact(cmd.Context(), &f, args, asJSON)
		},
		ValidArgsFunction: a.completeRows(&f, protocol.ListNames),
	}
	f.add(cmd, waitForBroker)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// compacted is the result for one name.
type compacted struct {
	Name     string `json:"name"`
	Revision uint64 `json:"revision"`
	Before   uint64 `json:"before"` // revision
	Bytes    int64  `json:"bytes"`
	// BrokersAlone: no other process has the copy, which ends with the broker unless one gets the name before.
	BrokersAlone bool `json:"brokers_alone"`
}

// compact goes on after a name that fails, so that the rest is done.
func (a *app) compact(ctx context.Context, f *clientFlags, names []string, asJSON bool) (err error) {
	for _, name := range names {
		if err := protocol.CheckName(name); err != nil {
			return &usage{cause: err}
		}
	}
	l, err := a.lookToChange(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	var status broker.Status
	if err := l.Broker(ctx, protocol.OpStatus, nil, &status); err != nil {
		return nothingDone(err)
	}
	c, err := a.connect(ctx, f, false)
	if err != nil {
		return nothingDone(err)
	}
	defer closeClient(c, &err)
	return each(a, names, asJSON, func(name string) (*compacted, string, error) {
		bounded, cancel := f.within(ctx)
		defer cancel()
		l.bound(f)
		done, err := compactName(bounded, l, c, name)
		if err != nil {
			return nil, "", err
		}
		text := fmt.Sprintf("compacted %s: revision %d in place of %d, %s", name, done.Revision, done.Before, size(uint64(done.Bytes)))
		if done.BrokersAlone = status.Memory.Dir == ""; done.BrokersAlone {
			text += "; until a program gets it the broker alone has it, and it ends with that unless by serve --replace"
		}
		return done, text, nil
	})
}

func compactName(ctx context.Context, l *looker, c *client.Client, name string) (*compacted, error) {
	rows, err := l.fetch(ctx, protocol.ListNames, name)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, protocol.Errorf(protocol.CodeNotFound, "baton ls names lists what there is", "no name %q is set in namespace %s", name, l.namespace)
	}
	var row broker.NameRow
	if err := json.Unmarshal(rows[0], &row); err != nil {
		return nil, err
	}
	if row.Live || row.Ephemeral {
		return nil, protocol.Errorf(protocol.CodeUnsupported, "have its setter set it anew", "name %s is live or ephemeral: a copy would not be what its users have", name)
	}
	old, err := c.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	defer old.Release()
	copied, err := c.Compact(ctx, old)
	if err != nil {
		return nil, err
	}
	defer copied.Release()
	opts := []client.SetOption{client.Replaces(old.Revision)}
	if meta := old.RawMeta(); meta != nil {
		opts = append(opts, client.Meta(meta))
	}
	revision, err := c.Set(ctx, name, copied, opts...)
	if err != nil {
		return nil, maybeDone(err, "baton show name "+name)
	}
	return &compacted{Name: name, Revision: revision, Before: old.Revision, Bytes: copied.NumBytes()}, nil
}
