package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/baton-ipc/baton/internal/sys"
)

const (
	dirPrefix = "baton-demo-"
	freshDir  = "baton-new-demo-" // before its lock is held
	lockFile  = "demo.lock"
	logFile   = "broker.log"
)

// makeDir makes a private directory for a run, with a lock that tells later runs
// that this one lives. What killed runs have left is removed first.
func makeDir(parent string) (dir string, lock *sys.FD, err error) {
	sweep(parent)
	fresh, err := os.MkdirTemp(parent, freshDir) // 0700
	if err != nil {
		return "", nil, fmt.Errorf("make a runtime directory: %w", err)
	}
	dir = filepath.Join(parent, dirPrefix+strings.TrimPrefix(filepath.Base(fresh), freshDir))
	lock, err = sys.OpenLock(filepath.Join(fresh, lockFile))
	if err == nil {
		if err = lock.Lock(false); err == nil {
			if err = os.Rename(fresh, dir); err == nil {
				return dir, lock, nil
			}
		}
		lock.Close()
	}
	os.RemoveAll(fresh)
	return "", nil, fmt.Errorf("make a runtime directory: %w", err)
}

// sweep removes this user's directories of runs that were killed. What cannot be
// removed is left: it does no harm.
func sweep(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(parent, dirPrefix+"*"))
	for _, dir := range dirs {
		if sys.CheckPrivateDir(dir) != nil {
			continue // another user's
		}
		lock, err := sys.OpenLock(filepath.Join(dir, lockFile))
		if err != nil {
			continue
		}
		if lock.Lock(false) == nil {
			os.RemoveAll(dir)
		}
		lock.Close()
	}
}

// logTail returns the last lines that a broker has logged in a directory.
func logTail(dir string) string {
	data, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data[max(0, len(data)-tailBytes):]))
}
