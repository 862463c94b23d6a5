package main

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/protocol"
)

// Exit statuses. `run` adds those of its command, see there.
const (
	exitOK       = 0
	exitError    = 1
	exitUsage    = 2
	exitNotFound = 3
	exitNoBroker = 4
	exitTimeout  = 5
	exitSignal   = 128 // plus the signal's number
)

const exitHelp = `Exit status: 0 done, 1 failed, 2 wrong command line or settings, 3 not found,
4 no broker answers, 5 time ran out, 128+N ended by signal N
(as every command that goes on until Ctrl-C).`

// usage is a mistake in the command line or in a setting.
type usage struct {
	cause  error
	remedy string
}

func (u *usage) Error() string { return u.cause.Error() }
func (u *usage) Unwrap() error { return u.cause }

// badUsage says what is wrong with the command line.
func badUsage(format string, args ...any) error {
	return &usage{cause: fmt.Errorf(format, args...)}
}

// usageError is what cobra found wrong, with a pointer to the command's help.
func usageError(cmd *cobra.Command, err error) error {
	var known *usage
	if errors.As(err, &known) && known.remedy != "" {
		return err
	}
	path := "baton"
	if cmd != nil {
		path = cmd.CommandPath()
	}
	remedy := "see " + path + " --help"
	text, suggestions, found := strings.Cut(settings.PlainNumber(err), "\n\nDid you mean this?")
	if found {
		remedy = "did you mean " + strings.Join(strings.Fields(suggestions), " or ") + "? See " + path + " --help"
	}
	return &usage{cause: errors.New(text), remedy: remedy}
}

// superfluous is the error of an argument that is too much. It may be meant as the value of a flag that can be without one.
func superfluous(cmd *cobra.Command, argument string) error {
	var flags []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.NoOptDefVal != "" && f.Value.Type() != "bool" {
			flags = append(flags, fmt.Sprintf("--%s=%s", f.Name, argument))
		}
	})
	err := fmt.Errorf("superfluous argument %q", argument)
	if len(flags) == 0 {
		return err
	}
	return &usage{err, "if it is a value, write " + strings.Join(flags, " or ") + "; see " + cmd.CommandPath() + " --help"}
}

// anyNumber has arguments set no bound.
const anyNumber = math.MaxInt

// takes checks the number of a command's arguments. Those of cobra call what is too much an
// unknown command, or only count.
func takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > most:
			return superfluous(cmd, args[most])
		case len(args) < least:
			path := cmd.Use
			if cmd.HasParent() {
				path = cmd.Parent().CommandPath() + " " + cmd.Use
			}
			return fmt.Errorf("an argument is missing: %s", path)
		}
		return nil
	}
}

// exitStatus is set by commands whose own status is passed on.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// report prints an error with its remedy and returns the exit status.
func (a *app) report(err error) int {
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	message, remedy := protocol.Plain(err), a.remedy(err)
	fmt.Fprintf(a.err, "baton: %s\n", a.lines(message))
	if remedy != "" {
		fmt.Fprintf(a.err, "  what to do: %s\n", a.lines(remedy))
	}
	return statusOf(err)
}

// remedy is what an error of a command says is to be done: the commands in it reach the broker that this one has reached.
func (a *app) remedy(err error) string {
	var r *remedied
	if errors.As(err, &r) {
		return r.remedy
	}
	remedy := remedyOf(err)
	if errors.Is(err, protocol.ErrSessionLost) { // whose remedy is for programs
		remedy = "run the command again when a broker serves: baton status shows whether one does"
	}
	var u *usage
	if errors.As(err, &u) && u.remedy != "" {
		remedy = u.remedy
	}
	return a.reached.spell(remedy)
}

// remedyOf is what an error says is to be done, "" for nothing.
func remedyOf(err error) string {
	var p *protocol.Error
	if errors.As(err, &p) {
		return p.Remedy
	}
	return ""
}

// lines makes an error's text safe to print and keeps its lines.
func (a *app) lines(s string) string {
	parts := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i, p := range parts {
		parts[i] = a.text(strings.ReplaceAll(p, "\t", "  "))
	}
	return strings.Join(parts, "\n")
}

func statusOf(err error) int {
	var u *usage
	var s *settings.Error
	if errors.As(err, &u) || errors.As(err, &s) {
		return exitUsage
	}
	switch {
	case errors.Is(err, protocol.ErrNotFound), errors.Is(err, protocol.ErrNoProvider):
		return exitNotFound
	case errors.Is(err, protocol.ErrNoBroker), errors.Is(err, protocol.ErrBrokerLost), errors.Is(err, protocol.ErrSessionLost):
		return exitNoBroker
	case errors.Is(err, protocol.ErrTimeout):
		return exitTimeout
	}
	return exitError
}
