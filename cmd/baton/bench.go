package main

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/bench"
)

func init() {
	register(newBenchCommand)
	register(newBenchRoleCommand)
}

func newBenchCommand(a *app) *cobra.Command {
	o := bench.Options{Version: version}
	var asJSON, asMarkdown, quiet bool
	var file, from string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast tensors are handed over on this machine",
		Long: `Measure hand-over, waking, allocation, tuples on NATS and what a broker costs at
rest, between processes that are pinned to two CPUs, beside the least that the
machine can do: a bare spin on one word and a bare futex.

It starts brokers of its own: yours is left alone. For figures that mean something
nothing else should run; the load average stands beside them.`,
		GroupID: groupTry,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Passes < 0 {
				return badUsage("--passes %d is negative", o.Passes)
			}
			known := strings.Split(bench.GroupNames(), ", ")
			for _, group := range o.Only {
				if !slices.Contains(known, group) {
					return badUsage("nothing to measure is called %q: there are %s", group, bench.GroupNames())
				}
			}
			if !quiet && !asJSON {
				o.Log = a.err
			}
			measure := func() (*bench.Report, error) { return bench.Run(cmd.Context(), o) }
			if from != "" {
				measure = func() (*bench.Report, error) { return bench.ReadFile(from) }
			}
			r, failed := measure()
			if r == nil {
				return failed
			}
			if file != "" {
				if err := r.WriteFile(file); err != nil {
					return errors.Join(failed, err)
				}
			}
			if asJSON {
				return errors.Join(failed, a.printJSON(r))
			}
			if asMarkdown {
				return errors.Join(failed, a.println(r.Markdown()))
			}
			return errors.Join(failed, a.println(r.Render(a.style)))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&o.Quick, "quick", false, "a few rounds of everything, to see that it works")
	f.StringSliceVar(&o.Only, "only", nil, "measure these `groups`: "+bench.GroupNames())
	f.IntVar(&o.Passes, "passes", 0, "measure everything so many `times`; default 5")
	f.StringVarP(&file, "output", "o", "", "write the figures of every pass as JSON to a `file`, too")
	f.BoolVar(&asJSON, "json", false, "print the figures as JSON and nothing else")
	f.BoolVar(&asMarkdown, "markdown", false, "print the tables in Markdown, for a page")
	f.StringVar(&from, "from", "", "measure nothing: print the report in a `file` that -o wrote")
	f.BoolVarP(&quiet, "quiet", "q", false, "do not tell what is being measured")
	f.StringVar(&o.Rust, "rust", "", "the `program` of rust/bench, which measures the client in Rust beside iceoryx2")
	f.StringSliceVar(&o.Python, "python", nil, "an `interpreter` that has the package and torch, and python/bench, to measure the package for Python")
	f.StringVar(&o.Binary, "binary", "", "the `program` that serves; default this one")
	cmd.MarkFlagsMutuallyExclusive("json", "markdown")
	cmd.MarkFlagsMutuallyExclusive("from", "output")
	return cmd
}

// newBenchRoleCommand is the command of the processes that `baton bench` starts.
func newBenchRoleCommand(*app) *cobra.Command {
	return &cobra.Command{
		Use:    bench.RoleCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			bench.Child()
			return badUsage("%s is for baton bench alone", os.Args[1])
		},
	}
}
