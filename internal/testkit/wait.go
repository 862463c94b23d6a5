package testkit

import (
	"context"
	"os"
	"testing"
	"time"
)

// Patience is how long the kit waits for anything before it calls it a failure:
// long enough for a busy machine, so that it says "never" and not "late".
// BATON_PATIENCE, a duration, changes it.
var Patience = patience()

func patience() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("BATON_PATIENCE")); err == nil && d > 0 {
		return d
	}
	return 90 * time.Second
}

// Context returns a context for a test's calls, so that none waits without a limit. It is
// for all of them together: a busy machine may need Patience for several.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience)
	t.Cleanup(cancel)
	return ctx
}

// Until asks again and again until ok, and fails the test with the last state
// when Patience has run out.
func Until(t testing.TB, what string, ask func() (ok bool, state string)) {
	t.Helper()
	if state, ok := until(Patience, ask); !ok {
		t.Fatalf("waited without a result until %s:\n%s", what, state)
	}
}

func until(patience time.Duration, ask func() (bool, string)) (string, bool) {
	deadline := time.Now().Add(patience)
	pause := time.Millisecond
	for {
		ok, state := ask()
		if ok {
			return state, true
		}
		if time.Now().After(deadline) {
			return state, false
		}
		<-time.After(pause)
		pause = min(2*pause, 50*time.Millisecond)
	}
}
