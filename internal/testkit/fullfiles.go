package testkit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// MountSmall mounts a file system of the test's own at a folder, such as "3m" of memory. It skips where that is not possible.
func MountSmall(t testing.TB, dir, size string) {
	t.Helper()
	Need(t, "root")
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=700,size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		Skip(t, "mount", "a file system cannot be mounted here: "+strings.TrimSpace(string(out)))
	}
	t.Cleanup(func() {
		if err := exec.Command("umount", "--lazy", dir).Run(); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// Stuff fills a file system to the last byte and returns what undoes it.
func Stuff(t testing.TB, dir string) (empty func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "stuffing"))
	if err != nil {
		t.Fatal(err)
	}
	block := make([]byte, 64<<10)
	for len(block) > 0 {
		if _, err = f.Write(block); err == nil {
			continue
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		block = block[:len(block)/2]
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(f.Name()); err != nil {
			t.Fatal(err)
		}
	}
}
