package langs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

// compilers must all take the header and the programs. Debian's clang comes
// without the runtime of its sanitizers.
var compilers = []struct {
	c, cxx string
	watch  []string
}{{"gcc", "g++", sanitize}, {"clang", "clang++", []string{"-O2"}}}

// sanitize makes gcc watch over addresses, leaks and undefined behaviour.
var sanitize = []string{"-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}

// library builds and installs the C library, once, and returns where.
func library(t *testing.T) string {
	t.Helper()
	needCargo(t)
	return testkit.Once(t, "c", func(dir string) error {
		return output(exec.Command(filepath.Join(root(t), "tools/clib"), dir, "dev"))
	})
}

// output runs a command whose output matters only when it fails.
func output(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}

// need skips a test where a program is missing.
func need(t *testing.T, name, remedy string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		testkit.Skip(t, name, name+" is not installed ("+remedy+")")
	}
	return path
}

func needCargo(t *testing.T) string { return need(t, "cargo", "https://rustup.rs") }

func needCompiler(t *testing.T, name string) string {
	return need(t, name, "Debian: apt-get install gcc g++ clang")
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := testkit.Root()
	require.NoError(t, err)
	return dir
}

// compiled builds a C or C++ file of the tree against the library, once for each
// set of flags; it finds the library again when it runs.
func compiled(t *testing.T, compiler, source string, flags ...string) string {
	t.Helper()
	prefix := library(t)
	compiler = needCompiler(t, compiler)
	standard := "-std=c99"
	if strings.HasSuffix(source, ".cpp") {
		standard = "-std=c++17"
	}
	args := append([]string{standard, "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Werror"}, flags...)
	name := strings.TrimSuffix(filepath.Base(source), filepath.Ext(source))
	// A folder for each set of flags: the file's name is the session's.
	dir := testkit.Once(t, strings.Join(append([]string{filepath.Base(compiler), name}, flags...), ""), func(dir string) error {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		args = append(args, "-I"+prefix+"/include", "-o", filepath.Join(dir, name), filepath.Join(root(t), source),
			"-L"+prefix+"/lib", "-lbaton", "-lpthread", "-lm", "-Wl,-rpath,"+prefix+"/lib")
		return output(exec.Command(compiler, args...))
	})
	return filepath.Join(dir, name)
}

// run runs a program with a broker, and returns what it wrote.
func run(t *testing.T, b *testkit.Broker, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(testkit.Context(t), program, args...)
	cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+b.Socket)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s\n%s%s", program, out, stderr.String())
	return string(out)
}
