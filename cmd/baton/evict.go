package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newEvictCommand) }

func newEvictCommand(a *app) *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "evict SESSION...",
		Short: "End sessions of which nothing is known",
		Long: `End sessions in the state "unknown", by their number in baton ls sessions: a
broker that took over could not find out whether their processes live, so they keep
what they hold. End them only when you know that their processes are gone: what a
process still reads is given to others. Of sessions in the state "ended" the file is
awaited though their processes are gone: evicting them gives up what they sent.`,
		GroupID: groupLook,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.evict(cmd.Context(), &f, args)
		},
	}
	f.add(cmd, waitForBroker)
	return cmd
}

func (a *app) evict(ctx context.Context, f *clientFlags, sessions []string) (err error) {
	var serials []uint64
	for _, text := range sessions {
		serial, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return &usage{cause: fmt.Errorf("%q is no serial of a session", text)}
		}
		serials = append(serials, serial)
	}
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	for _, serial := range serials {
		if err := l.Broker(ctx, protocol.OpEvict, protocol.Evict{Serial: serial}, nil); err != nil {
			return err
		}
		if err := a.println(fmt.Sprintf("evicted session %d", serial)); err != nil {
			return err
		}
	}
	return nil
}
