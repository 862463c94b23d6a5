//go:build crashpoint

package crashpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// Enabled tells whether At can kill.
const Enabled = true

var (
	armed, times = parse(os.Getenv(Env))
	left         atomic.Int64
)

func init() { left.Store(times) }

// parse reads name or name:n; an empty name arms nothing.
func parse(s string) (string, int64) {
	name, number, ok := strings.Cut(s, ":")
	if !ok {
		return name, 1
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 {
		panic(Env + " is not name or name:n: " + s)
	}
	return name, n
}

// At kills the process when its environment asks for it at this step.
func At(name string) {
	if name != armed || left.Add(-1) != 0 {
		return
	}
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	// A process that has killed itself runs no instruction after the call: what
	// follows is for a call that failed.
	panic(fmt.Sprintf("cannot end the process at %s: %v", name, err))
}
