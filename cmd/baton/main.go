package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/termplot"
)

// version is set by the build (-ldflags '-X main.version=1.2.3').
var version = "dev"

func main() {
	client.Version = version
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, style: termplot.Detect(os.Stdout, os.Getenv)}
	os.Exit(a.run(os.Args[1:]))
}

// run carries out a command line and returns the exit status.
func (a *app) run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot(a)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !a.began { // nothing ran: the command line itself is at fault
		err = usageError(cmd, err)
	}
	if ctx.Err() != nil && a.interruptible {
		return exitInterrupted
	}
	return a.report(err)
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
		SilenceErrors:     true,
		SilenceUsage:      true,
		Version:           version,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		PersistentPreRun: func(*cobra.Command, []string) {
			a.began = true
		},
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetVersionTemplate("baton {{.Version}}\n")
	for _, g := range groups {
		root.AddGroup(g)
	}
	for _, c := range commands {
		root.AddCommand(c(a))
	}
	root.SetHelpCommandGroupID(groupOther)
	root.SetCompletionCommandGroupID(groupOther)
	return root
}

// Groups in the list of commands.
const (
	groupBroker = "broker"
	groupLook   = "look"
	groupCarry  = "carry"
	groupTry    = "try"
	groupOther  = "other"
)

var groups = []*cobra.Group{
	{ID: groupBroker, Title: "Run a broker:"},
	{ID: groupLook, Title: "See what is there:"},
	{ID: groupCarry, Title: "Carry tensors:"},
	{ID: groupTry, Title: "Try and measure:"},
	{ID: groupOther, Title: "Other:"},
}
