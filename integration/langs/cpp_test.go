package langs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTwoProcessesInCpp(t *testing.T) {
	for _, with := range compilers {
		t.Run(with.cxx, func(t *testing.T) {
			program := clib.Compiled(t, with.cxx, "integration/langs/c/whole.cpp", append([]string{"-Wshadow", "-Wconversion"}, clib.Sanitize...)...)
			b := testkit.StartBroker(t)
			var said strings.Builder
			receiver := exec.CommandContext(testkit.Context(t), program, "receive")
			receiver.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+b.Socket)
			receiver.Stderr = &said
			require.NoError(t, receiver.Start())
			t.Cleanup(func() { _ = receiver.Process.Kill() }) // where the sender has failed
			run(t, b, program, "send")
			require.NoError(t, receiver.Wait(), said.String())
			testkit.AuditKept(t, b)
		})
	}
}

// Elements that are no value for each pattern of bits are refused where a program is
// compiled: another process may write any.
func TestElementsOfBoolDoNotCompile(t *testing.T) {
	include := "-I" + filepath.Join(clib.Library(t), "include")
	for _, use := range []string{"t.flat<bool>()", "t.flat<const bool>()", "t.as<bool>()", "s.alloc<bool>({2})"} {
		for _, with := range compilers {
			t.Run(with.cxx+" "+use, func(t *testing.T) {
				compiler := clib.NeedCompiler(t, with.cxx)
				compiled := func(use string) (string, error) {
					cmd := exec.Command(compiler, "-std=c++17", "-fsyntax-only", include, "-x", "c++", "-")
					cmd.Stdin = strings.NewReader("#include <baton.hpp>\nvoid look(const baton::session &s, const baton::tensor &t) { (void)s, (void)t, (void)" + use + "; }\n")
					out, err := cmd.CombinedOutput()
					return string(out), err
				}
				out, err := compiled(use)
				require.Error(t, err)
				assert.Contains(t, out, "elements are baton::boolean, not bool")
				out, err = compiled(strings.Replace(use, "bool", "baton::boolean", 1))
				require.NoError(t, err, out)
			})
		}
	}
}

// What flat gives is a range whose elements something else keeps: a std::span takes one that is about to go.
func TestStandardSpansTakeWhatFlatGives(t *testing.T) {
	const program = `#include <baton.hpp>
#include <ranges>
#include <span>
void look(std::span<float>);
void read(std::span<const float>);
void sizes(std::span<const int64_t>);
void all(const baton::tensor &t) { look(t.flat<float>()); read(t.flat<const float>()); sizes(t.shape()); static_assert(std::ranges::view<baton::span<float>>); }
`
	include := "-I" + filepath.Join(clib.Library(t), "include")
	for _, with := range compilers {
		for _, standard := range []string{"-std=c++20", "-std=c++2b"} {
			t.Run(with.cxx+standard, func(t *testing.T) {
				cmd := exec.Command(clib.NeedCompiler(t, with.cxx), standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", include, "-x", "c++", "-")
				cmd.Stdin = strings.NewReader(program)
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, string(out))
			})
		}
	}
}

// Every function of baton.h is used by baton.hpp, but for two.
func TestCppHeaderCoversTheCHeader(t *testing.T) {
	include := filepath.Join(clib.Root(t), "rust/capi/include")
	header, err := os.ReadFile(filepath.Join(include, "baton.h"))
	require.NoError(t, err)
	var cpp strings.Builder
	files, err := filepath.Glob(filepath.Join(include, "baton/*.hpp"))
	require.NoError(t, err)
	require.Len(t, files, 8)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		cpp.Write(text)
	}
	missing := []string{
		"baton_alloc",          // baton_alloc_with does the same
		"baton_version_number", // there is a text, and the macros of baton.h
	}
	var unused []string
	functions := regexp.MustCompile(`(?m)^[a-z].*?\b(baton_\w+)\(`).FindAllStringSubmatch(string(header), -1)
	for _, m := range functions {
		if !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(cpp.String()) {
			unused = append(unused, m[1])
		}
	}
	assert.Greater(t, len(functions), 60)
	assert.ElementsMatch(t, missing, unused)
}

func TestCMakeFindsTheLibraryWhereverItIs(t *testing.T) {
	cmake := clib.Need(t, "cmake", "Debian: apt-get install cmake")
	clib.NeedCompiler(t, "g++")
	prefix := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.CopyFS(prefix, os.DirFS(clib.Library(t))))
	source := filepath.Join(clib.Root(t), "examples/c")
	build := t.TempDir()
	configure := func(flags ...string) (string, error) {
		args := append([]string{"-S", source, "-B", build, "-DCMAKE_PREFIX_PATH=" + prefix, "-DCMAKE_BUILD_TYPE=Debug"}, flags...)
		out, err := exec.Command(cmake, args...).CombinedOutput()
		return string(out), err
	}
	out, err := configure()
	require.NoError(t, err, out)
	made, err := exec.Command(cmake, "--build", build).CombinedOutput()
	require.NoError(t, err, string(made))
	b := testkit.StartBroker(t)
	run(t, b, filepath.Join(build, "loader"))
	assert.Contains(t, run(t, b, filepath.Join(build, "consumer")), "batch 3")
	run(t, b, filepath.Join(build, "loader-static"))
	assert.Contains(t, run(t, b, filepath.Join(build, "consumer")), "batch 3")
	testkit.AuditKept(t, b)

	for wanted, fits := range map[string]bool{"0": true, "0.1": true, "0.1.0": true, "0.1.7": false, "0.2": false, "0.0.9": false, "1": false} {
		if out, err = configure("-DWANTED=" + wanted); fits {
			assert.NoError(t, err, "version %s is wanted\n%s", wanted, out)
		} else {
			assert.ErrorContains(t, err, "exit status", "version %s is wanted", wanted)
			assert.Contains(t, out, "0.1.0")
		}
	}
}
