package protocol

import (
	"slices"
	"strings"
)

// Limits of names.
const (
	MaxName      = 200
	MaxNamespace = 32
)

// DefaultNamespace is used where none is named.
const DefaultNamespace = "default"

// CheckName accepts tokens of [A-Za-z0-9_-] joined by '/', at most MaxName bytes, so that no '*',
// '>' or empty token can reach a NATS subject. Every refusal has CodeInvalid.
func CheckName(name string) error {
	if len(name) > MaxName {
		return Errorf(CodeInvalid, "use a shorter one", "name of %d bytes is longer than %d", len(name), MaxName)
	}
	for _, token := range strings.Split(name, "/") {
		if !isToken(token) {
			remedy := "use tokens of A-Z a-z 0-9 _ - joined by /"
			// Dots stand between the parts of names elsewhere.
			if slashed := strings.ReplaceAll(name, ".", "/"); !slices.ContainsFunc(strings.Split(slashed, "/"), func(s string) bool { return !isToken(s) }) {
				remedy += ": " + slashed
			}
			return Errorf(CodeInvalid, remedy, "name %q has the token %q", name, token)
		}
	}
	return nil
}

// CheckNamespace accepts one token of at most MaxNamespace bytes. A refusal has CodeInvalid.
func CheckNamespace(ns string) error {
	if len(ns) > MaxNamespace || !isToken(ns) {
		return Errorf(CodeInvalid, "use at most 32 of A-Z a-z 0-9 _ -", "namespace %q is not one token", ns)
	}
	return nil
}

func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// TopicSubject is the NATS subject of a topic's tuples.
func TopicSubject(ns, name string) string {
	return "baton." + ns + ".topic." + strings.ReplaceAll(name, "/", ".")
}

// MatchName tells whether name fits a pattern whose '*' stands for any run of
// characters, '/' included, and all else for itself. An empty pattern fits all.
func MatchName(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	parts := strings.Split(pattern, "*")
	if !strings.HasPrefix(name, parts[0]) {
		return false
	}
	if len(parts) == 1 {
		return name == pattern
	}
	name = name[len(parts[0]):]
	last := parts[len(parts)-1]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(name, p)
		if i < 0 {
			return false
		}
		name = name[i+len(p):]
	}
	return strings.HasSuffix(name, last)
}
