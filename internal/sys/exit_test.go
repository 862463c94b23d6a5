package sys

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched starts a shell that waits for a line and then runs a script.
func watched(t *testing.T, script string) (*exec.Cmd, *Watched, func()) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read x; "+script)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	start, err := StartTime(cmd.Process.Pid)
	require.NoError(t, err)
	fd, err := OpenPidfd(cmd.Process.Pid)
	require.NoError(t, err)
	return cmd, WatchProcess(fd, cmd.Process.Pid, start), func() { fmt.Fprintln(in) }
}

func TestExitOfAProcessThatNothingHasWaitedForIsKnown(t *testing.T) {
	for script, want := range map[string]Exit{
		"kill -9 $$":    {Known: true, Signal: 9},
		"kill -SEGV $$": {Known: true, Signal: 11},
		"exit 3":        {Known: true, Status: 3},
		"exit 0":        {Known: true},
	} {
		cmd, w, run := watched(t, script)
		assert.Equal(t, Exit{}, w.Exit(), "it lives")
		run()
		require.True(t, w.Wait())
		assert.Equal(t, want, w.Exit(), script)
		cmd.Wait()
		assert.Equal(t, want, w.Exit(), script)
	}
}

func TestExitOfAProcessThatWasWaitedForIsKnownWhereThePidfdKeepsIt(t *testing.T) {
	cmd, w, run := watched(t, "kill -TERM $$")
	run()
	cmd.Wait()
	require.True(t, w.Wait())
	exit := w.Exit()
	if exit.Known { // since Linux 6.15
		assert.Equal(t, "was killed by SIGTERM", exit.String())
	} else {
		assert.Empty(t, exit.String())
	}
	assert.Equal(t, "has exited with status 3", Exit{Known: true, Status: 3}.String())
	assert.Equal(t, Exit{}, exitInStat(os.Getpid(), 1), "another process of that number")
}
