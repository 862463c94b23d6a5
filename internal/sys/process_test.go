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

func TestProcessThatItsParentHasNotWaitedForHasEnded(t *testing.T) {
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	start, err := StartTime(c.Process.Pid)
	require.NoError(t, err)
	require.False(t, HasEnded(c.Process.Pid, start))
	fd, err := OpenPidfd(c.Process.Pid)
	require.NoError(t, err)
	wait, _ := WaitPidfd(fd)
	require.NoError(t, in.Close())
	require.True(t, wait())
	require.True(t, HasEnded(c.Process.Pid, start))
	require.NoError(t, c.Wait())
	require.True(t, HasEnded(c.Process.Pid, start))
	own, err := StartTime(os.Getpid())
	require.NoError(t, err)
	require.True(t, HasEnded(os.Getpid(), own+1), "another process had the number")
	require.False(t, HasEnded(os.Getpid(), own))
}
