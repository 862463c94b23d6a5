package sys

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestFindProcessTellsEndedFromUnknown(t *testing.T) {
	start, err := StartTime(os.Getpid())
	require.NoError(t, err)
	look := func(pid int, start uint64) ProcessState {
		fd, state := FindProcess(pid, start)
		if fd != nil {
			fd.Close()
		}
		return state
	}
	require.Equal(t, ProcessLives, look(os.Getpid(), start))
	require.Equal(t, ProcessEnded, look(os.Getpid(), start+1), "another process has its pid")
	c := exec.Command("true")
	require.NoError(t, c.Run())
	require.Equal(t, ProcessEnded, look(c.Process.Pid, start))
	require.Equal(t, ProcessUnknown, look(-1, start), "the kernel says EINVAL")

	// Without files neither pidfd_open nor /proc tell anything.
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}))
	state := look(os.Getpid(), start+1)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.Equal(t, ProcessUnknown, state)
}
