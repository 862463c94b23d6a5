package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cmd/baton/internal/logqueue"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

// app is what every command has: its streams and how to draw on them.
type app struct {
	in       io.Reader
	out, err io.Writer
	style    termtext.Style

	log *logqueue.Queue // on standard error, of a command that runs a broker; nil: of others

	reached reached // by the command's flags

	began      bool // a command was found and its flags and arguments are good
	ownSignals bool // the command answers signals itself and has its own status
}

// commands make the subcommands of root, in no order.
var commands []func(*app) *cobra.Command

// register adds a command; each command's file calls it in init.
func register(c func(*app) *cobra.Command) { commands = append(commands, c) }

// println writes a line on standard output.
func (a *app) println(text string) error {
	_, err := fmt.Fprintln(a.out, text)
	return err
}

// printJSON writes a value on standard output, indented to be readable.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printLine prints a value as one line of JSON.
func (a *app) printLine(v any) error {
	e := json.NewEncoder(a.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// text makes something that another process wrote safe to print.
func (a *app) text(s string) string { return a.style.Text(s) }

// clientFlags are those of commands that talk to a broker.
type clientFlags struct {
	address   string
	namespace string
	timeout   time.Duration
	name      string        // of the session, as listings show it
	answers   time.Duration // how long the broker may take to answer without a timeout; 0: as usual
}

func (f *clientFlags) add(cmd *cobra.Command, timeoutHelp string) {
	f.name = "baton " + cmd.Name()
	fl := cmd.Flags()
	fl.StringVar(&f.address, "address", "", "broker to use, `unix:/path` or /path; default $BATON_ADDRESS, else this user's broker")
	fl.StringVar(&f.namespace, "namespace", "", "namespace of names and topics; default $BATON_NAMESPACE, else default")
	fl.DurationVar(&f.timeout, "timeout", 0, timeoutHelp)
}

// space is the namespace that a command uses.
func (f *clientFlags) space() string {
	return cmp.Or(f.namespace, os.Getenv(address.EnvNamespace), protocol.DefaultNamespace)
}

// waitForBroker is the help of --timeout for commands that wait for nothing else.
const waitForBroker = "time to wait for the broker (0: fail at once if none runs); its answers, and those of other hosts, get the same time, at least 3s, or 30s if it is 0, and 3s from one that is suspended (other hosts as --span-timeout of serve says)"

// connect opens a session for a command. With start it starts the user's broker
// if none runs, as a program would; otherwise the broker must answer, at once or
// within the timeout. The error is ErrNoBroker if it does not.
func (a *app) connect(ctx context.Context, f *clientFlags, start bool) (*client.Client, error) {
	ctx, p, cancel, err := f.reach(ctx, start)
	if err != nil {
		return nil, err
	}
	defer cancel()
	opts := []client.Option{client.WithName(f.name), client.WithStart(start), client.WithModestMemory(), client.WithNamespace(p.namespace)}
	if p.awaited {
		opts = append(opts, client.WithAddress(p.socket)) // named: never started
	}
	c, err := client.Connect(ctx, opts...)
	if errors.Is(err, protocol.ErrTimeout) {
		err = reach.Silent(p.socket)
	}
	return c, err
}

// place is where a command finds its broker, and the namespace that it uses.
type place struct {
	socket, namespace string
	awaited           bool
}

// reach finds the place of a command's broker, and waits there, unless it may be started,
// until a broker listens. The context ends when the broker has had the time to answer.
func (f *clientFlags) reach(ctx context.Context, start bool) (context.Context, *place, context.CancelFunc, error) {
	if f.timeout < 0 {
		return nil, nil, nil, badUsage("--timeout %s is negative", f.timeout)
	}
	began := time.Now()
	p := &place{namespace: f.space()}
	if err := protocol.CheckNamespace(p.namespace); err != nil {
		return nil, nil, nil, &usage{cause: err}
	}
	socket, given, err := address.Resolve(f.address)
	if err != nil {
		return nil, nil, nil, &usage{cause: err}
	}
	p.socket, p.awaited = socket, given || !start
	if p.awaited {
		if err := await(ctx, socket, f.timeout); err != nil {
			return nil, nil, nil, err
		}
	}
	answers := cmp.Or(f.answers, usualToAnswer)
	if f.timeout > 0 {
		answers = max(f.timeout-time.Since(began), leastToAnswer)
	}
	bounded, cancel := context.WithTimeout(ctx, answers)
	return bounded, p, cancel, nil
}

// within bounds what a command asks once it has reached its broker: --timeout, and 3s at least. It goes with the requests
// for which the broker asks other hosts. Without a timeout there is no bound but the broker's own.
func (f *clientFlags) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if f.timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, max(f.timeout, leastToAnswer))
}

// forHosts is how long the broker may take for what it asks other hosts, so that its answer comes in time; 0: as it is set.
func (f *clientFlags) forHosts() float64 {
	if f.timeout <= 0 {
		return 0
	}
	return 0.9 * max(f.timeout, leastToAnswer).Seconds()
}

// How long a broker that listens may take to answer: at least, whatever the timeout, and
// where none is given.
const (
	leastToAnswer = 3 * time.Second
	usualToAnswer = 30 * time.Second
)

// remedyForNone is what to do where no broker listens at a command's socket.
const remedyForNone = "start one with `baton serve`, name another with --address, or wait for it with --timeout"

// await waits until a broker listens at a socket, at most for the time given. What else
// may be wrong is found by the caller's own connection.
func await(ctx context.Context, socket string, timeout time.Duration) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(timeout)
	for {
		if reach.Listens(socket) {
			return nil
		}
		if !time.Now().Before(deadline) {
			return reach.None(socket, remedyForNone)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// closeClient ends a session after a command, without hiding its error.
func closeClient(c *client.Client, err *error) {
	if e := c.Close(); *err == nil && e != nil {
		*err = fmt.Errorf("end the session: %w", e)
	}
}

// isTerminal tells whether a stream is one.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
