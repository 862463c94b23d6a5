package sys

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFilesThatAProcessHas(t *testing.T) {
	f, err := CreateMemfd("baton-test", 8192)
	require.NoError(t, err)
	defer f.Close()
	_, id, err := f.Stat()
	require.NoError(t, err)
	has := func(ask func(int, FileID) (bool, error), pid int) bool {
		t.Helper()
		has, err := ask(pid, id)
		require.NoError(t, err)
		return has
	}
	self := os.Getpid()
	require.True(t, has(OpensFile, self))
	require.False(t, has(MapsFile, self))
	m, err := Map(f, 4096, false)
	require.NoError(t, err)
	require.True(t, has(MapsFile, self))

	c := exec.Command("cat")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	require.False(t, has(OpensFile, c.Process.Pid))
	require.False(t, has(MapsFile, c.Process.Pid))

	require.NoError(t, Unmap(m))
	require.False(t, has(MapsFile, self))
	require.NoError(t, f.Close())
	require.False(t, has(OpensFile, self))

	// Of a process that has ended nothing is told, whether it was waited for or not.
	require.NoError(t, in.Close())
	pidfd, err := OpenPidfd(c.Process.Pid)
	require.NoError(t, err)
	wait, _ := WaitPidfd(pidfd)
	require.True(t, wait())
	for range 2 {
		_, err = MapsFile(c.Process.Pid, id)
		require.Error(t, err)
		_, err = OpensFile(c.Process.Pid, id)
		require.Error(t, err)
		c.Wait()
	}
}
