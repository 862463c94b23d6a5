// Package typed writes commands that a person is to type, as remedies have them: with the flags by which they reach the
// broker and the namespace that are meant, and so that a shell takes each argument as one. It keeps no state.
package typed

import (
	"regexp"
	"slices"
	"strings"

	"github.com/baton-ipc/baton/protocol"
)

// Command writes `baton SUB ARGS...`. socket is the broker's, "" where it is the one that a command without --address
// reaches; space is the namespace, "" where it is the one of a command without --namespace. It is left out where the
// command is about nothing of a namespace.
func Command(socket, space, sub string, args ...string) string {
	words := append([]string{"baton " + sub}, Flags(socket, space, sub, append(args, "")[0])...)
	if len(args) > 0 && strings.HasPrefix(args[0], "-") { // it is no flag
		words = append(words, "--")
	}
	for _, arg := range args {
		words = append(words, Word(arg))
	}
	return strings.Join(words, " ")
}

// Flags are those that Command adds to a subcommand with a first argument.
func Flags(socket, space, sub, first string) (flags []string) {
	if socket != "" {
		flags = append(flags, "--address="+Word(socket))
	}
	if space != "" && ofNamespace(sub, first) {
		flags = append(flags, "--namespace="+Word(space))
	}
	return flags
}

// whole are the listings of what is of no namespace.
var whole = []string{protocol.ListHosts, protocol.ListLeases, protocol.ListSegments, protocol.ListSessions, protocol.ListStorages}

// ofNamespace tells whether a command looks at, or changes, what is of a namespace.
func ofNamespace(sub, first string) bool {
	switch sub {
	case "call", "compact", "delete", "get", "purge", "set", "tail":
		return true
	case "ls", "show", "why":
		return !slices.Contains(whole, strings.TrimSuffix(first, "s")+"s")
	}
	return false
}

// plain is what a shell takes as it is.
var plain = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// Word writes an argument so that a shell takes it as one.
func Word(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
