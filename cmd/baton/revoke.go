package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newRevokeCommand) }

func newRevokeCommand(a *app) *cobra.Command {
	var f clientFlags
	var yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke LEASE...",
		Short: "End leases",
		Long: `End leases, by their number in baton ls leases. A handle whose lease has ended keeps its
memory no more, and is Expired once that is used anew. Until then a program that has the
handle can still open it, and programs that have opened it keep it: revoke frees memory,
and takes no access away.`,
		GroupID: groupSteer,
		Args:    takes(1, anyNumber),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.revoke(cmd.Context(), &f, args, yes, asJSON)
		},
		ValidArgsFunction: a.completeLeases(&f),
	}
	f.add(cmd, waitForBroker)
	yesFlag(cmd, &yes)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// revoked is what became of one lease.
type revoked struct {
	Lease uint64 `json:"lease"`
	protocol.RevokeReply
}

func (a *app) revoke(ctx context.Context, f *clientFlags, leases []string, yes, asJSON bool) error {
	var numbers []uint64
	for _, text := range leases {
		n, err := strconv.ParseUint(text, 10, 53)
		if err != nil {
			return &usage{cause: fmt.Errorf("%q is no number of a lease", text), remedy: "baton ls leases lists them"}
		}
		numbers = append(numbers, n)
	}
	what := "lease"
	if len(leases) > 1 {
		what = "leases"
	}
	if err := a.confirmAt(ctx, f, yes, "end "+what+" "+series(leases)+": handles that were not opened yet keep their memory no more"); err != nil {
		return err
	}
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	return each(a, numbers, asJSON, func(n uint64) (revoked, string, error) {
		r := revoked{Lease: n}
		err := l.Broker(ctx, protocol.OpLeaseRevoke, protocol.LeaseRef{Lease: n}, &r.RevokeReply)
		return r, fmt.Sprintf("revoked lease %d of %s, of %s", n, r.Maker, plural(int64(r.Storages), "storage")), err
	})
}
