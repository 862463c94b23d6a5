// Baton-bench measures Baton on the machine at hand. It is a program of its own, so that what
// measures is no part of the program that serves; package bench says how it measures.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/bench"
	"github.com/baton-ipc/baton/internal/termtext"
)

// version is set by the build (-ldflags '-X main.version=1.2.3').
var version = "dev"

const about = `baton-bench measures hand-over, waking, allocation, tuples on NATS and what a broker
costs at rest, between processes that are pinned to two CPUs, beside the least that the
machine can do: a bare spin on one word and a bare futex.

It starts brokers of its own: yours is left alone. For figures that mean something
nothing else should run; the load average stands beside them.

Usage: baton-bench [flags]

`

// Exit statuses.
const (
	exitOK = iota
	exitError
	exitUsage
)

func main() {
	bench.Child() // in a process that Run has started it does not return
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is what the command line asks for.
type command struct {
	bench.Options
	json, markdown, quiet bool
	file, from            string
}

// run carries out a command line and returns the exit status.
func run(ctx context.Context, args []string, out, log io.Writer) int {
	c := command{Options: bench.Options{Version: version}}
	f := c.flags(log)
	fail := func(status int, err error) int {
		fmt.Fprintf(log, "baton-bench: %v\n", err)
		return status
	}
	err := f.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return exitOK
	}
	if err == nil {
		err = c.check(f)
	}
	if err != nil {
		return fail(exitUsage, fmt.Errorf("%w; see baton-bench --help", err))
	}
	if err := c.measure(ctx, out, log); err != nil {
		return fail(exitError, err)
	}
	return exitOK
}

func (c *command) flags(log io.Writer) *pflag.FlagSet {
	f := pflag.NewFlagSet("baton-bench", pflag.ContinueOnError)
	f.SortFlags = false
	f.SetOutput(log)
	f.Usage = func() { fmt.Fprint(log, about, f.FlagUsages()) }
	f.BoolVar(&c.Quick, "quick", false, "a few rounds of everything, to see that it works")
	f.StringSliceVar(&c.Only, "only", nil, "measure these `groups`: "+bench.GroupNames())
	f.IntVar(&c.Passes, "passes", 0, "measure everything so many `times`; default 5")
	f.StringVarP(&c.file, "output", "o", "", "write the figures of every pass as JSON to a `file`, too")
	f.BoolVar(&c.json, "json", false, "print the figures as JSON and nothing else")
	f.BoolVar(&c.markdown, "markdown", false, "print the tables in Markdown, for a page")
	f.StringVar(&c.from, "from", "", "measure nothing: print the report in a `file` that -o wrote")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "do not tell what is being measured")
	f.StringVar(&c.Rust, "rust", "", "the `program` of rust/bench, which measures the client in Rust beside iceoryx2")
	f.StringSliceVar(&c.Python, "python", nil, "an `interpreter` that has the package and torch, and python/bench, to measure the package for Python")
	f.StringVar(&c.Binary, "binary", "", "the `program` baton that serves; default the one beside this program, else that of PATH")
	return f
}

// check says what is wrong with the command line.
func (c *command) check(f *pflag.FlagSet) error {
	known := strings.Split(bench.GroupNames(), ", ")
	for _, group := range c.Only {
		if !slices.Contains(known, group) {
			return fmt.Errorf("nothing to measure is called %q: there are %s", group, bench.GroupNames())
		}
	}
	switch {
	case f.NArg() > 0:
		return fmt.Errorf("unknown argument %q", f.Arg(0))
	case c.Passes < 0:
		return fmt.Errorf("--passes %d is negative", c.Passes)
	case c.json && c.markdown:
		return errors.New("--json and --markdown exclude each other")
	case c.from != "" && c.file != "":
		return errors.New("--from and --output exclude each other")
	}
	return nil
}

// measure prints the figures, and those that there are when a measurement has failed.
func (c *command) measure(ctx context.Context, out, log io.Writer) error {
	r, failed := c.report(ctx, log)
	if r == nil {
		return failed
	}
	if c.file != "" {
		if err := r.WriteFile(c.file); err != nil {
			return errors.Join(failed, err)
		}
	}
	if c.json {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return errors.Join(failed, e.Encode(r))
	}
	text := r.Markdown
	if !c.markdown {
		text = func() string { return r.Render(termtext.Detect(out, os.Getenv)) }
	}
	_, err := fmt.Fprintln(out, text())
	return errors.Join(failed, err)
}

func (c *command) report(ctx context.Context, log io.Writer) (*bench.Report, error) {
	if c.from != "" {
		return bench.ReadFile(c.from)
	}
	if !c.quiet && !c.json {
		c.Log = log
	}
	if c.Binary == "" {
		var err error
		if c.Binary, err = findBaton(); err != nil {
			return nil, err
		}
	}
	return bench.Run(ctx, c.Options)
}

// findBaton finds the program that serves.
func findBaton() (string, error) {
	if self, err := os.Executable(); err == nil {
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), "baton")); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("baton")
	if err != nil {
		return "", fmt.Errorf("find the program that serves: %w; name it with --binary", err)
	}
	return path, nil
}
