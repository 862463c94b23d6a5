package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// inherited lists the descriptors of a process, beside its standard streams, that
// a program which it executes would have.
func inherited(t *testing.T, pid int) (out []string) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	flags := regexp.MustCompile(`(?m)^flags:\s+([0-7]+)$`)
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err != nil || n < 3 {
			continue
		}
		target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		info, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "fdinfo", e.Name()))
		if err != nil {
			continue
		}
		m := flags.FindSubmatch(info)
		require.NotNil(t, m, "%s", info)
		set, err := strconv.ParseUint(string(m[1]), 8, 64)
		require.NoError(t, err)
		if set&syscall.O_CLOEXEC == 0 {
			out = append(out, target)
		}
	}
	return out
}

// No descriptor of a broker or a client goes to a program that either starts: it
// would keep memory and sessions alive that no program uses any more.
func TestNoDescriptorIsInherited(t *testing.T) {
	before := inherited(t, os.Getpid())
	b := testkit.StartBroker(t)
	mine := inherited(t, b.Process().PID())
	ctx := testkit.Context(t)
	c, d := b.Connect(), b.Connect()
	q, err := c.Queue(ctx, "work")
	require.NoError(t, err)
	require.NoError(t, sendNoted(ctx, c, queueSender{q}, 16, newNote("c", 0)))
	in, err := d.Queue(ctx, "work")
	require.NoError(t, err)
	m, err := in.Get(ctx)
	require.NoError(t, err)
	_, err = publish(ctx, c, "weights", 1)
	require.NoError(t, err)
	w, err := d.Get(ctx, "weights")
	require.NoError(t, err)
	require.ElementsMatch(t, before, inherited(t, os.Getpid()))
	// What a broker inherited from us, if anything, is not its own.
	require.ElementsMatch(t, mine, inherited(t, b.Process().PID()))
	for _, target := range mine {
		require.NotRegexp(t, "memfd|socket|eventpoll|pidfd", target)
	}
	w.Release()
	m.Release()
}
