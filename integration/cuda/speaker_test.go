package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
)

// language starts a driver.
type language struct {
	name string
	with func(t *testing.T) []testkit.StartOption
}

var languages = []language{
	{"go", func(*testing.T) []testkit.StartOption { return nil }},
	{"rust", func(t *testing.T) []testkit.StartOption { return []testkit.StartOption{testkit.Program(rustDriver(t))} }},
	{"c", func(t *testing.T) []testkit.StartOption {
		if path, ok := testkit.Prebuilt("gpu-c"); ok {
			return []testkit.StartOption{testkit.Program(path)}
		}
		watch := clib.Sanitize
		if onGPU { // whose driver leaves memory behind, and needs the addresses that the sanitizer takes
			watch = []string{"-O2"}
		}
		return []testkit.StartOption{testkit.Program(clib.Compiled(t, "gcc", "integration/cuda/c/driver.c", append(watch, "-ldl")...))}
	}},
	{"python", func(t *testing.T) []testkit.StartOption { return []testkit.StartOption{python(t)} }},
}

var rust struct {
	sync.Once
	path string
	err  error
}

// rustDriver builds the Rust driver, once.
func rustDriver(t *testing.T) string {
	t.Helper()
	if path, ok := testkit.Prebuilt("gpu-rust"); ok {
		return path
	}
	testkit.Need(t, "cargo")
	rust.Do(func() {
		cmd := exec.Command("cargo", "build", "--quiet", "--locked", "--workspace", "--all-features", "--example", "gpu")
		cmd.Dir = filepath.Join("..", "..", "rust")
		cmd.Stderr = os.Stderr
		rust.err = cmd.Run()
		rust.path = filepath.Join(cmd.Dir, "target", "debug", "examples", "gpu")
	})
	require.NoError(t, rust.err)
	path, err := filepath.Abs(rust.path)
	require.NoError(t, err)
	return path
}

// python plays the driver by an interpreter that has the package: that of
// $BATON_PYTHON, or the one that the tests of Python use.
func python(t *testing.T) testkit.StartOption {
	t.Helper()
	interpreter := os.Getenv("BATON_PYTHON")
	if interpreter == "" {
		interpreter = filepath.Join("..", "..", "build", "venv", "bin", "python")
	}
	interpreter, err := filepath.Abs(interpreter)
	require.NoError(t, err)
	if exec.Command(interpreter, "-c", "import baton").Run() != nil {
		testkit.Skip(t, "python", "no interpreter with the package baton: run make python-test, or set BATON_PYTHON")
	}
	script, err := filepath.Abs(filepath.Join("..", "..", "python", "tests", "gpu_driver.py"))
	require.NoError(t, err)
	return func(c *exec.Cmd) { c.Path, c.Args = interpreter, []string{interpreter, script} }
}

// command is an order as it is written.
type command map[string]any

// speaker is a running driver.
type speaker struct {
	*testkit.Process
	t *testing.T
}

func (m machine) speak(t *testing.T, l language, opts ...testkit.StartOption) *speaker {
	t.Helper()
	return &speaker{m.play("driver", nil, append(l.with(t), opts...)...), t}
}

// try carries an order out that may be refused.
func (s *speaker) try(c command) (a answer) {
	s.t.Helper()
	s.Tell(c)
	s.Next(&a)
	return a
}

// do carries an order out and returns what was seen.
func (s *speaker) do(c command) []any {
	s.t.Helper()
	a := s.try(c)
	require.Empty(s.t, a.Code+a.Broken, "%v: %s", c, a.Message)
	return a.Seen
}

// numbers are what JSON makes of first, first+1…
func numbers(first, count int) (all []any) {
	for i := range count {
		all = append(all, float64(first+i))
	}
	return all
}

// pairs runs a test for every pair of languages, one of them not Go.
func pairs(t *testing.T, f func(t *testing.T, m machine, from, to *speaker)) {
	for _, from := range languages {
		for _, to := range languages {
			if from.name == "go" && to.name == "go" {
				continue // the other tests have these
			}
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				from.with(t) // what is missing is told before anything runs
				to.with(t)
				m := start(t, 1)
				f(t, m, m.speak(t, from), m.speak(t, to))
			})
		}
	}
}
