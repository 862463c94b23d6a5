// Package shortdir makes folders for the sockets of tests: a socket's path has room
// for 107 bytes, which t.TempDir and a long TMPDIR may use up.
package shortdir

import (
	"os"
	"testing"
)

// New makes a folder with a short name, which goes with the test.
func New(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
