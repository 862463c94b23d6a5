package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const aliveBytes = 4096

// OpenAlive makes a memfd that this program alone has mapped for writing: while the
// program runs it cannot be sealed against writes, and after exec it can. The
// mapping is never undone, and no child has it.
func OpenAlive() (*FD, error) {
	f, err := openMemfd("baton-alive", 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(f.Int(), aliveBytes); err != nil {
		f.Close()
		return nil, fmt.Errorf("size shared memory %q: %w", "baton-alive", err)
	}
	b, err := Map(f, aliveBytes, true)
	if err == nil {
		err = DontFork(b)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Exec replaces this program; it returns only where that fails.
func Exec(path string, args, env []string) error {
	if err := unix.Exec(path, args, env); err != nil {
		return fmt.Errorf("replace this program by %s: %w", path, err)
	}
	return nil
}
