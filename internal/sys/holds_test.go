package sys

import (
	"net"
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
	require.True(t, has(WritesFile, self))
	require.False(t, has(MapsForWriting, self))
	m, err := Map(f, 4096, true)
	require.NoError(t, err)
	require.True(t, has(MapsForWriting, self))

	c := exec.Command("cat")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	require.False(t, has(OpensFile, c.Process.Pid))
	socket, err := HasSocket(c.Process.Pid)
	require.NoError(t, err)
	require.False(t, socket)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	socket, err = HasSocket(self)
	require.NoError(t, err)
	require.True(t, socket)
	require.NoError(t, l.Close())
	require.False(t, has(WritesFile, c.Process.Pid))
	require.False(t, has(MapsForWriting, c.Process.Pid))

	// A process that may only read it.
	r, err := f.ReopenReadOnly()
	require.NoError(t, err)
	read, err := Map(r, 4096, false)
	require.NoError(t, err)
	require.NoError(t, Unmap(m))
	require.False(t, has(MapsForWriting, self))
	require.NoError(t, f.Close())
	require.True(t, has(OpensFile, self))
	require.False(t, has(WritesFile, self))
	require.NoError(t, r.Close())
	require.False(t, has(OpensFile, self))
	require.NoError(t, Unmap(read))

	// Of a process that has ended nothing is told, whether it was waited for or not.
	require.NoError(t, in.Close())
	pidfd, err := OpenPidfd(c.Process.Pid)
	require.NoError(t, err)
	wait, _ := WaitPidfd(pidfd)
	require.True(t, wait())
	for range 2 {
		_, err = MapsForWriting(c.Process.Pid, id)
		require.Error(t, err)
		_, err = OpensFile(c.Process.Pid, id)
		require.Error(t, err)
		c.Wait()
	}
}
