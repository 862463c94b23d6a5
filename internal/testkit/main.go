package testkit

import (
	"fmt"
	"os"
	"testing"
)

// Role is what a child process does. An error makes the child, and with it the
// test that waits for it, fail.
type Role func(*Child) error

// Environment of a child.
const (
	envRole   = "BATON_TEST_ROLE"
	envConfig = "BATON_TEST_CONFIG"
)

// Main runs the package's tests, or, in a child process, the role that its
// parent asked for. TestMain calls it; it does not return.
func Main(m *testing.M, roles map[string]Role) {
	name := os.Getenv(envRole)
	if name == "" {
		code := m.Run()
		removeBinaries()
		reportSkips(os.Stdout)
		os.Exit(code)
	}
	role := roles[name]
	if role == nil {
		fmt.Fprintf(os.Stderr, "no role %q\n", name)
		os.Exit(2)
	}
	c := newChild()
	if err := role(c); err != nil {
		fmt.Fprintf(os.Stderr, "role %s: %v\n", name, err)
		os.Exit(1)
	}
	os.Exit(0)
}
