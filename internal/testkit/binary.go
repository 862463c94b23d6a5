package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// builds holds what this test process has built, once each.
var builds = struct {
	sync.Mutex
	dir  string
	made map[string]string
}{made: map[string]string{}}

// Root returns the root folder of the project.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above the test's folder")
		}
		dir = up
	}
}

// Prebuilt returns a program that was built before the test run, on another machine, in the
// folder of BATON_PREBUILT.
func Prebuilt(name string) (path string, ok bool) {
	dir := os.Getenv("BATON_PREBUILT")
	if dir == "" {
		return "", false
	}
	path = filepath.Join(dir, name)
	_, err := os.Stat(path)
	return path, err == nil
}

// Binary returns the path of the program baton, built once for the test run.
func Binary(t testing.TB) string {
	t.Helper()
	if path, ok := Prebuilt("baton"); ok {
		return path
	}
	return build(t, "baton", "build", "-trimpath", "-o", "OUT", "./cmd/baton")
}

// crashBroker is Binary built with crash points.
func crashBroker(t testing.TB) string {
	t.Helper()
	Need(t, "go")
	return build(t, "baton-crash", "build", "-tags", "crashpoint", "-o", "OUT", "./cmd/baton")
}

// CrashBinary returns the path of this package's test program built with crash
// points, once for the test run. Children started with it die at the point that
// their environment names.
func CrashBinary(t testing.TB) string {
	t.Helper()
	Need(t, "go")
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	pkg, err := filepath.Rel(root, wd)
	if err != nil {
		t.Fatal(err)
	}
	return build(t, "crash.test", "test", "-c", "-tags", "crashpoint", "-o", "OUT", "./"+pkg)
}

// TestBinary returns the path of another package's test program, which is named by its path in the project, built once
// for the test run: one that plays a part when its environment says so.
func TestBinary(t testing.TB, pkg string) string {
	t.Helper()
	Need(t, "go")
	return build(t, strings.ReplaceAll(pkg, "/", "-")+".test", "test", "-c", "-o", "OUT", "./"+pkg)
}

// build runs the go command in the project's root; OUT stands for the file made.
func build(t testing.TB, name string, args ...string) string {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	return Once(t, name, func(path string) error {
		for i := range args {
			if args[i] == "OUT" {
				args[i] = path
			}
		}
		cmd := exec.Command("go", args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return nil
	})
}

// Once makes a file of a name, once for the test run, and returns its path. Main
// removes it at the end.
func Once(t testing.TB, name string, make func(path string) error) string {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	if path := builds.made[name]; path != "" {
		return path
	}
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "baton-build")
		if err != nil {
			t.Fatal(err)
		}
		builds.dir = dir
	}
	path := filepath.Join(builds.dir, name)
	if err := make(path); err != nil {
		t.Fatal(err)
	}
	builds.made[name] = path
	return path
}

// public returns a copy of the test program where other users can run it.
func public(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "baton-public")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "test")
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}
	return path
}

func removeBinaries() {
	builds.Lock()
	defer builds.Unlock()
	if builds.dir != "" {
		os.RemoveAll(builds.dir)
	}
}
