package sys_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/stretchr/testify/require"
)

// A thread that has read the number of a descriptor that is then closed would empty whatever
// file is opened next.
func TestPunchBesideCloseTouchesNoOtherFile(t *testing.T) {
	const size = 1 << 16
	path := filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	for range 20000 {
		fd, err := sys.CreateMemfd("baton-test", size)
		require.NoError(t, err)
		var users sync.WaitGroup
		for range 2 {
			users.Go(func() {
				for fd.Punch(0, size) == nil {
				}
			})
		}
		fd.Close()
		other, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = other.WriteAt([]byte{1}, 0)
		require.NoError(t, err)
		users.Wait()
		got := []byte{0}
		_, err = other.ReadAt(got, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, got[0], "its bytes were taken away")
		other.Close()
	}
}
