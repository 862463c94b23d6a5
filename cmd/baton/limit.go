package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

func init() { register(newLimitCommand) }

// sizeFlag is a number of bytes that may be left out.
type sizeFlag struct{ to **uint64 }

func (v *sizeFlag) Type() string   { return "size" }
func (v *sizeFlag) String() string { return "" }

func (v *sizeFlag) Set(s string) error {
	n, err := settings.ParseSize(s)
	*v.to = &n
	return err
}

var _ pflag.Value = (*sizeFlag)(nil)

func newLimitCommand(a *app) *cobra.Command {
	var f clientFlags
	var to protocol.Limit
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "limit",
		Short: "Show or change the memory limits of the broker that runs",
		Long: `Show the limits of the broker that runs, or change them. A limit below what is granted
takes nothing away: new grants are refused until less is granted. 0 takes a limit
away; of --memory it takes the default.

A change holds until the broker ends, or reads its settings again at HUP. To keep it,
change the setting of baton serve as well. A broker that a program starts in this one's
place has it, too.`,
		Example: "  baton limit --memory 20GiB --session-memory 4GiB",
		GroupID: groupSteer,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.limit(cmd.Context(), &f, to, asJSON)
		},
	}
	f.add(cmd, waitForBroker)
	fl := cmd.Flags()
	fl.Var(&sizeFlag{&to.Memory}, "memory", "`size` of all shared memory together (8GiB, 512M)")
	fl.Var(&sizeFlag{&to.SessionMemory}, "session-memory", "`size` that one session may be granted")
	fl.Var(&sizeFlag{&to.DeviceMemory}, "device-memory", "`size` of all memory together on each GPU")
	fl.Var(&sizeFlag{&to.SessionDeviceMemory}, "session-device-memory", "`size` that one session may be granted on each GPU")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (a *app) limit(ctx context.Context, f *clientFlags, to protocol.Limit, asJSON bool) error {
	l, err := a.look(ctx, f)
	if err != nil {
		return err
	}
	defer l.close()
	var before, now protocol.LimitReply
	if err := l.Broker(ctx, protocol.OpLimit, protocol.Limit{}, &before); err != nil {
		if to != (protocol.Limit{}) {
			err = nothingDone(err)
		}
		return err
	}
	now = before
	if to != (protocol.Limit{}) {
		err := l.change(ctx, protocol.OpLimit, to, &now, "baton limit")
		if errors.Is(err, protocol.ErrInvalid) { // as where `baton serve` is given it
			return &usage{cause: err}
		}
		if err != nil {
			return err
		}
	}
	if asJSON {
		return a.printJSON(now)
	}
	var rows [][2]string
	for _, r := range []struct {
		name     string
		was, now uint64
	}{{"memory", before.Memory, now.Memory}, {"of a session", before.SessionMemory, now.SessionMemory},
		{"on each GPU", before.DeviceMemory, now.DeviceMemory}, {"of a session there", before.SessionDeviceMemory, now.SessionDeviceMemory}} {
		text := limitText(r.now)
		if r.was != r.now {
			text += ", was " + limitText(r.was)
		}
		rows = append(rows, [2]string{r.name, text})
	}
	if to.Memory != nil {
		if rows, err = beyondMachine(ctx, l, rows, now.Memory); err != nil {
			return err
		}
	}
	granted, used := size(now.Granted), now.Granted+now.Lanes
	if now.Lanes > 0 {
		granted += ", and " + size(now.Lanes) + " in lanes"
	}
	if now.Memory > 0 && used > now.Memory {
		granted += fmt.Sprintf(": %s more than the limit, so that new grants are refused until they are given back", size(used-now.Memory))
	}
	return a.println(a.pairs(append(rows, [2]string{"granted", granted})))
}

// beyondMachine adds a warning where the limit is more than there is: the machine's memory is the limit then.
func beyondMachine(ctx context.Context, l *looker, rows [][2]string, limit uint64) ([][2]string, error) {
	machine, err := sys.ReadMemory()
	if err != nil || limit <= machine.Bound() {
		return rows, nil // nothing is known here, or nothing is to be said
	}
	var status broker.Status
	if err := l.Broker(ctx, protocol.OpStatus, nil, &status); err != nil {
		return rows, err
	}
	if status.Memory.Dir != "" { // files, which may be more than memory
		return rows, nil
	}
	return append(rows, [2]string{"warning", fmt.Sprintf("--memory is more than the %s that this machine, or its container, has: what is free there bounds grants", size(machine.Bound()))}), nil
}

func limitText(n uint64) string {
	if n == 0 {
		return "no limit"
	}
	return size(n)
}
