package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newDeleteCommand) }

func newDeleteCommand(a *app) *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete names",
		Long: `Delete names. Who has got a bundle under one keeps it; its memory goes back when
the last of them lets go.`,
		GroupID: groupCarry,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.delete(cmd.Context(), &f, args)
		},
		ValidArgsFunction: a.completeRows(&f, protocol.ListNames),
	}
	f.add(cmd, waitForBroker)
	return cmd
}

// delete goes on after a name that fails, so that the rest is done.
func (a *app) delete(ctx context.Context, f *clientFlags, names []string) (err error) {
	for _, name := range names {
		if err := protocol.CheckName(name); err != nil {
			return &usage{cause: err}
		}
	}
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	var failed []error
	for _, name := range names {
		if err := l.Broker(ctx, protocol.OpNameDelete, protocol.NameRef{Name: name, Namespace: l.namespace}, nil); err != nil {
			failed = append(failed, err)
			continue
		}
		if err := a.println("deleted " + name); err != nil {
			return err
		}
	}
	if len(failed) == 1 {
		return failed[0]
	}
	return errors.Join(failed...)
}
