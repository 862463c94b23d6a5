package main

import (
	"cmp"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/typed"
	"github.com/baton-ipc/baton/protocol"
)

// reached is by which flags a command has reached its broker. A command that it prints carries them, so that it goes to
// the same broker and namespace.
type reached struct {
	address   string          // of --address; "": the environment says it, as for the command that is typed next
	namespace string          // of --namespace
	socket    string          // of the broker
	carry     map[string]bool // the commands that have --address
}

// reachedBy reads the flags of a command.
func reachedBy(cmd *cobra.Command) (r reached) {
	if cmd.Name() == "serve" || cmd.Name() == "run" { // they are brokers, and reach none
		return r
	}
	value := func(name string) string {
		if f := cmd.Flags().Lookup(name); f != nil {
			return f.Value.String()
		}
		return ""
	}
	r.address, r.namespace, r.carry = value("address"), value("namespace"), map[string]bool{}
	if socket, _, err := address.Resolve(r.address); err == nil {
		r.socket = socket
	}
	for _, c := range cmd.Root().Commands() {
		r.carry[c.Name()] = c.Flags().Lookup("address") != nil
	}
	return r
}

// ofBroker names the broker of a command in a question, "" for the user's own.
func (r reached) ofBroker() string {
	if r.socket == "" || r.socket == address.Usual() {
		return ""
	}
	return " (broker at " + r.socket + ")"
}

// command writes a command that is to be typed: the subcommand and its arguments. space is the namespace of what they
// name, "" where they name nothing of one.
func (r reached) command(space, sub string, args ...string) string {
	return typed.Command(r.address, r.spaceFlag(space), sub, args...)
}

// spaceFlag is the value of --namespace of a command about a namespace, "" where it does without the flag.
func (r reached) spaceFlag(space string) string {
	if space == protocol.DefaultNamespace && space == cmp.Or(os.Getenv(address.EnvNamespace), space) {
		return ""
	}
	return space
}

// printed finds the commands in a remedy, with the flags that they carry already and the next word.
var printed = regexp.MustCompile(`\bbaton ([a-z]+)((?: --(?:address|namespace)=\S+)*)(\s+[\w-]+)?`)

// spell gives the commands in a remedy the flags by which this one has reached its broker.
func (r reached) spell(remedy string) string {
	return printed.ReplaceAllStringFunc(remedy, func(command string) string {
		part := printed.FindStringSubmatch(command)
		sub, has, next := part[1], part[2], strings.TrimSpace(part[3])
		if !r.carry[sub] || next == "--help" || next == "there" { // there: at another broker
			return command
		}
		flags := slices.DeleteFunc(typed.Flags(r.address, r.spaceFlag(r.namespace), sub, next), func(flag string) bool {
			name, _, _ := strings.Cut(flag, "=")
			return strings.Contains(has, " "+name+"=")
		})
		return strings.Join(append([]string{"baton " + sub}, flags...), " ") + has + part[3]
	})
}
