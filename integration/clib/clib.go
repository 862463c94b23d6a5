// Package clib builds the C library and programs against it, for the tests of the
// languages and of CUDA.
package clib

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

// Sanitize makes a compiler watch over addresses, leaks and undefined behaviour.
var Sanitize = []string{"-g", "-O1", sanitizers, "-fno-sanitize-recover=all"}

const sanitizers = "-fsanitize=address,undefined"

// Library builds and installs the C library, once, and returns where.
func Library(t *testing.T) string {
	t.Helper()
	NeedCargo(t)
	return testkit.Once(t, "c", func(dir string) error {
		return output(exec.Command(filepath.Join(Root(t), "tools/clib"), dir, "dev"))
	})
}

// output runs a command whose output matters only when it fails.
func output(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
	}
	return nil
}

// Need skips a test where a program is missing.
func Need(t *testing.T, name, remedy string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		testkit.Skip(t, name, name+" is not installed ("+remedy+")")
	}
	return path
}

// NeedCargo skips a test where no Rust can be built.
func NeedCargo(t *testing.T) string { return Need(t, "cargo", "https://rustup.rs") }

// NeedCompiler skips a test where a compiler is missing.
func NeedCompiler(t *testing.T, name string) string {
	return Need(t, name, "Debian: apt-get install gcc g++ clang")
}

// needSanitizers skips a test where a compiler comes without what Sanitize links, as
// Debian's clang does.
func needSanitizers(t *testing.T, compiler string) {
	t.Helper()
	cmd := exec.Command(compiler, sanitizers, "-x", "c", "-", "-o", os.DevNull)
	cmd.Stdin = strings.NewReader("int main(void) { return 0; }")
	if out, err := cmd.CombinedOutput(); err != nil {
		testkit.Skip(t, "sanitizers", fmt.Sprintf("%s has none (Debian: apt-get install libclang-rt-dev): %s", filepath.Base(compiler), strings.TrimSpace(string(out))))
	}
}

// Root is the folder of the whole tree.
func Root(t *testing.T) string {
	t.Helper()
	dir, err := testkit.Root()
	require.NoError(t, err)
	return dir
}

// Compiled builds a C or C++ file of the tree against the library, once for each
// set of flags; it finds the library again when it runs.
func Compiled(t *testing.T, compiler, source string, flags ...string) string {
	t.Helper()
	prefix := Library(t)
	compiler = NeedCompiler(t, compiler)
	standard := "-std=c99"
	if strings.HasSuffix(source, ".cpp") {
		standard = "-std=c++17"
	}
	args := append([]string{standard, "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Werror"}, flags...)
	name := strings.TrimSuffix(filepath.Base(source), filepath.Ext(source))
	// A folder for each set of flags: the file's name is the session's.
	dir := testkit.Once(t, strings.Join(append([]string{filepath.Base(compiler), name}, flags...), ""), func(dir string) error {
		if slices.Contains(flags, sanitizers) {
			needSanitizers(t, compiler)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		args = append(args, "-I"+prefix+"/include", "-o", filepath.Join(dir, name), filepath.Join(Root(t), source),
			"-L"+prefix+"/lib", "-lbaton", "-lpthread", "-lm", "-Wl,-rpath,"+prefix+"/lib")
		return output(exec.Command(compiler, args...))
	})
	return filepath.Join(dir, name)
}
