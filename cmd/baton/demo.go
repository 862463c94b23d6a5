package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/internal/demo"
)

func init() {
	register(newDemoCommand)
	register(newDemoRoleCommand)
}

func newDemoCommand(a *app) *cobra.Command {
	var o demo.Options
	var seconds float64
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Train a network in several processes, and kill one",
		Long: `Train a network that reads digits, in several processes over shared memory.

A loader hands batches to workers, which train one set of weights in place and
without locks; an evaluator measures what they publish. Half-way one worker is
killed with SIGKILL. Where a Python with the package baton is at hand, two of the
workers are Python processes. All use a broker that is started for this and ends with it:
yours is left alone.

The command fails when the accuracy is below 95 %, or when memory is left over.`,
		GroupID: groupTry,
		Args:    takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Workers < demo.LeastWorkers || o.Workers > demo.MostWorkers {
				return badUsage("--workers %d is not %d to %d: one is killed, and the others go on", o.Workers, demo.LeastWorkers, demo.MostWorkers)
			}
			if seconds < 0 {
				return badUsage("--seconds %v is negative", seconds)
			}
			if o.Batches < 0 {
				return badUsage("--batches %d is negative", o.Batches)
			}
			o.Limit = time.Duration(seconds * float64(time.Second))
			if !asJSON {
				o.Progress, o.Style = a.out, a.style
			}
			r, err := demo.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				err = a.printJSON(r)
			} else {
				var drawn string
				if drawn, err = r.Draw(a.style); err == nil {
					err = a.println("\n" + drawn)
				}
			}
			if err != nil {
				return err
			}
			return r.Check()
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Batches, "batches", 0, "train this `number` of batches of 64 pictures; default 40000, or what --seconds allows")
	f.Float64Var(&seconds, "seconds", 0, "train no longer than so many seconds; 0: no limit")
	f.IntVar(&o.Workers, "workers", demo.DefaultWorkers, "`number` of training processes, 2 or more")
	f.Uint64Var(&o.Seed, "seed", demo.DefaultSeed, "`number` that the first weights and the order of pictures follow from")
	f.StringVar(&o.BrokerMemory, "broker-memory", "", "`size` of all shared memory together (64M, 1GiB)")
	f.StringVar(&o.Python, "python", "", "`interpreter` of two more workers, with the package baton; none: no such workers; default: one at hand that has it")
	f.BoolVar(&asJSON, "json", false, "print the figures as JSON and nothing else")
	return cmd
}

// newDemoRoleCommand is the command of the processes that `baton demo` starts.
func newDemoRoleCommand(*app) *cobra.Command {
	return &cobra.Command{
		Use:    demo.RoleCommand + " NAME PLAN",
		Hidden: true,
		Args:   takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return demo.Role(cmd.Context(), args[0], args[1:])
		},
	}
}
