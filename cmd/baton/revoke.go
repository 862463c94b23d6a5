package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/broker"
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
	what := func(l *looker) (string, error) { return l.leasesNamed(ctx, numbers) }
	if err := a.confirmFound(ctx, f, yes, what); err != nil {
		return err
	}
	l, err := a.lookToChange(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	return each(a, numbers, asJSON, func(n uint64) (revoked, string, error) {
		r := revoked{Lease: n}
		err := l.change(ctx, protocol.OpLeaseRevoke, protocol.LeaseRef{Lease: n}, &r.RevokeReply, "baton ls leases")
		return r, fmt.Sprintf("revoked lease %d of %s, of %s", n, r.Maker, plural(int64(r.Storages), "storage")), err
	})
}

// leasesNamed says whose leases will end.
func (l *looker) leasesNamed(ctx context.Context, numbers []uint64) (string, error) {
	var found []string
	for _, n := range numbers {
		rows, err := candidates(ctx, l, protocol.ListLeases, strconv.FormatUint(n, 10))
		if err != nil {
			return "", err
		}
		for _, raw := range rows {
			var r broker.LeaseRow
			if err := json.Unmarshal(raw, &r); err != nil {
				return "", err
			}
			if r.Lease == n {
				found = append(found, fmt.Sprintf("lease %d (of %s, by %s)", n, plural(int64(len(r.Storages)), "storage"), r.Maker))
			}
		}
	}
	if len(found) == 0 {
		return "", protocol.Errorf(protocol.CodeNotFound, "baton ls leases lists them", "there is no lease %d", numbers[0])
	}
	return "end " + series(found) + ": handles that were not opened yet keep their memory no more", nil
}
