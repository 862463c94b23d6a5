package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/termtext"
)

// version is set by the build (-ldflags '-X main.version=1.2.3').
var version = "dev"

func main() {
	client.Version = version
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, style: termtext.Detect(os.Stdout, os.Getenv)}
	status := a.run(os.Args[1:])
	a.flushLog()
	os.Exit(status)
}

// run carries out a command line and returns the exit status.
func (a *app) run(args []string) int {
	ctx, ended, stop := untilSignal()
	defer stop()
	root := newRoot(a)
	out := &keptError{w: a.out}
	root.SetOut(out)
	root.SetArgs(withNumbers(root, args))
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = out.err
	}
	if err == nil {
		return exitOK
	}
	var stream *fs.PathError                  // the output could not be written
	if !a.began && !errors.As(err, &stream) { // nothing ran: the command line itself is at fault
		err = usageError(cmd, err)
	}
	if sig := ended(); sig != 0 && !a.ownSignals {
		return exitSignal + int(sig)
	}
	return a.report(err)
}

// keptError keeps the first error of a writer: cobra writes help and completions, and looks at none.
type keptError struct {
	w   io.Writer
	err error
}

func (k *keptError) Write(p []byte) (int, error) {
	n, err := k.w.Write(p)
	if k.err == nil {
		k.err = err
	}
	return n, err
}

// errInterrupted is the cause of a context that INT has ended: at a terminal it means the end of
// everything.
var errInterrupted = errors.New("interrupted")

// untilSignal gives a context that the first INT or TERM ends; the second then
// ends the process, as if the program had not caught it. ended returns the signal, 0 for
// none yet.
func untilSignal() (ctx context.Context, ended func() syscall.Signal, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	var first atomic.Int32
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			if n, ok := s.(syscall.Signal); ok {
				first.Store(int32(n))
			}
			if s == syscall.SIGINT {
				cancel(errInterrupted)
			} else {
				cancel(nil)
			}
		case <-ctx.Done():
			signal.Stop(signals)
		}
	}()
	return ctx, func() syscall.Signal { return syscall.Signal(first.Load()) }, func() { cancel(nil) }
}

// newRoot makes the command tree.
func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "baton",
		Short: "Hand tensors between processes without copying them",
		Long: `Baton hands tensors between the processes of a machine without copying them.

One broker for each user owns memory, lifetimes and names. Programs start it on
first use, or you run it yourself: baton serve. The other commands look at what
is there and carry tensors in and out.

` + exitHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
	}
	// No template of cobra is set: text/template calls methods by name, for which the linker would
	// keep every exported method of the program, 4 MB of them.
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	for _, g := range groups {
		root.AddGroup(g)
	}
	for _, c := range commands {
		root.AddCommand(c(a))
	}
	refuseUnknown(root)
	for _, c := range root.Commands() {
		a.noteBegin(c)
		a.completeFlags(c)
	}
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	return root
}

// refuseUnknown makes `help` and `completion` refuse unknown arguments: cobra's own print
// a usage and succeed.
func refuseUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Run = nil
			c.RunE = func(_ *cobra.Command, args []string) error {
				sub, rest, err := root.Find(args)
				if sub == nil || err != nil || len(rest) > 0 && sub == root {
					return badUsage("there is no command %q to help with: baton --help lists them", strings.Join(args, " "))
				}
				if len(rest) > 0 {
					return badUsage("superfluous argument %q", rest[0])
				}
				sub.InitDefaultHelpFlag()
				return sub.Help()
			}
		case "completion":
			c.RunE = func(c *cobra.Command, args []string) error {
				if len(args) == 0 {
					return c.Help()
				}
				return badUsage("there is no completion for %q: use bash, zsh, fish or powershell", args[0])
			}
			c.Args = cobra.ArbitraryArgs
			for _, shell := range c.Commands() {
				shell.Args = takes(0, 0)
			}
		}
	}
}

// noteBegin wraps a command so that app.began tells when its own code has begun:
// whatever fails before is a mistake in the command line.
func (a *app) noteBegin(c *cobra.Command) {
	if run := c.RunE; run != nil {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			a.began, a.reached = true, reachedBy(cmd)
			return a.missing(cmd, args, run(cmd, args))
		}
	}
	for _, sub := range c.Commands() {
		a.noteBegin(sub)
	}
}

// Groups in the list of commands.
const (
	groupBroker = "broker"
	groupLook   = "look"
	groupSteer  = "steer"
	groupCarry  = "carry"
	groupTry    = "try"
	groupOther  = "other"
)

var groups = []*cobra.Group{
	{ID: groupBroker, Title: "Run a broker:"},
	{ID: groupLook, Title: "See what is there:"},
	{ID: groupSteer, Title: "Steer it:"},
	{ID: groupCarry, Title: "Carry tensors:"},
	{ID: groupTry, Title: "Try it:"},
	{ID: groupOther, Title: "Other:"},
}
