package langs

import (
	"bufio"
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compilers must all take the header and the programs.
var compilers = []struct{ c, cxx string }{{"gcc", "g++"}, {"clang", "clang++"}}

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

func TestSharedLibraryHasItsNameExportsOnlyItsOwnAndStays(t *testing.T) {
	f, err := elf.Open(filepath.Join(clib.Library(t), "lib/libbaton.so"))
	require.NoError(t, err)
	defer f.Close()
	names, err := f.DynString(elf.DT_SONAME)
	require.NoError(t, err)
	assert.Equal(t, []string{"libbaton.so.0"}, names)
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	own := 0
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF {
			continue
		}
		assert.True(t, strings.HasPrefix(s.Name, "baton_"), "exports %s", s.Name)
		own++
	}
	assert.Greater(t, own, 40)
	flags, err := f.DynValue(elf.DT_FLAGS_1)
	require.NoError(t, err)
	require.Len(t, flags, 1)
	assert.NotZero(t, elf.DynFlag1(flags[0])&elf.DF_1_NODELETE, "dlclose takes away the code that a session's thread runs")
}

func TestPluginUnloadsTheLibraryRightAfterTheLastRelease(t *testing.T) {
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			// Loaded by the program alone, and not with it.
			program := clib.Compiled(t, with.c, "integration/langs/c/unload.c", "-O1", "-Wl,--as-needed", "-ldl")
			b := testkit.StartBroker(t)
			run(t, b, program, filepath.Join(clib.Library(t), "lib/libbaton.so"))
			testkit.AuditEmpty(t, b)
		})
	}
}

// A plug-in that contains the archive, and is not linked with nodelete: the library pins it.
func TestPluginWithTheArchiveInItIsUnloadedRightAfterTheLastRelease(t *testing.T) {
	prefix := clib.Library(t)
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			plugin := filepath.Join(t.TempDir(), "plugin.so")
			args := []string{"-shared", "-o", plugin}
			for _, used := range []string{"baton_connect", "baton_alloc", "baton_tensor_release", "baton_session_release"} {
				args = append(args, "-Wl,-u,"+used)
			}
			args = append(args, filepath.Join(prefix, "lib/libbaton.a"), "-lgcc_s", "-lpthread", "-lm", "-ldl")
			out, err := exec.Command(clib.NeedCompiler(t, with.c), args...).CombinedOutput()
			require.NoError(t, err, string(out))
			program := clib.Compiled(t, with.c, "integration/langs/c/unload.c", "-O1", "-Wl,--as-needed", "-ldl")
			b := testkit.StartBroker(t)
			run(t, b, program, plugin)
			testkit.AuditEmpty(t, b)
		})
	}
}

func TestHeaderIsCleanAsC99AndAsCpp17(t *testing.T) {
	include := filepath.Join(clib.Library(t), "include")
	for _, with := range compilers {
		for _, how := range [][]string{{with.c, "-std=c99", "-x", "c"}, {with.c, "-std=c11", "-x", "c"}, {with.cxx, "-std=c++17", "-x", "c++"}} {
			t.Run(how[0]+how[1], func(t *testing.T) {
				clib.NeedCompiler(t, how[0])
				args := append(how[1:], "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", filepath.Join(include, "baton.h"))
				out, err := exec.Command(how[0], args...).CombinedOutput()
				require.NoError(t, err, string(out))
			})
		}
	}
}

func TestPkgConfigFindsTheLibraryWhereverItIs(t *testing.T) {
	pkgconfig := clib.Need(t, "pkg-config", "Debian: apt-get install pkg-config")
	prefix := clib.Library(t)
	moved := filepath.Join(t.TempDir(), "elsewhere")
	require.NoError(t, os.CopyFS(moved, os.DirFS(prefix)))
	cmd := exec.Command(pkgconfig, "--cflags", "--libs", "baton")
	cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(moved, "lib/pkgconfig"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	words := strings.Fields(string(out))
	require.Len(t, words, 3)
	assert.FileExists(t, strings.TrimPrefix(words[0], "-I")+"/baton.h")
	assert.FileExists(t, strings.TrimPrefix(words[1], "-L")+"/libbaton.so.0")
	assert.Equal(t, "-lbaton", words[2])
}

func TestCarelessProgramIsRefusedAndNeverCrashes(t *testing.T) {
	for _, with := range compilers {
		for _, source := range []string{"refuse.c", "refuse_functions.c"} {
			t.Run(with.c+" "+source, func(t *testing.T) {
				program := clib.Compiled(t, with.c, "integration/langs/c/"+source, clib.Sanitize...)
				b := testkit.StartBroker(t)
				run(t, b, program)
				testkit.AuditEmpty(t, b)
			})
		}
	}
}

func TestProgramGoesOnWithAnotherSessionAfterAStop(t *testing.T) {
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			program := clib.Compiled(t, with.c, "integration/langs/c/lost.c", clib.Sanitize...)
			b := testkit.StartBroker(t)
			cmd := exec.CommandContext(testkit.Context(t), program)
			cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+b.Socket)
			cmd.Stderr = os.Stderr
			in, err := cmd.StdinPipe()
			require.NoError(t, err)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			said := bufio.NewScanner(out)
			hear := func(want string) {
				require.True(t, said.Scan(), "it ended before it said %q", want)
				require.Equal(t, want, said.Text())
			}
			hear("ready")
			b.End()
			hear("lost")
			b.Restart()
			_, err = in.Write([]byte("go on\n"))
			require.NoError(t, err)
			hear("done")
			require.NoError(t, cmd.Wait())
			testkit.AuditEmpty(t, b)
		})
	}
}

func TestEightThreadsShareASession(t *testing.T) {
	program := clib.Compiled(t, "gcc", "integration/langs/c/threads.c", clib.Sanitize...)
	b := testkit.StartBroker(t)
	for range 3 {
		run(t, b, program)
	}
	testkit.AuditEmpty(t, b)
}

func TestChildOfAForkHasWhatItInherited(t *testing.T) {
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			program := clib.Compiled(t, with.c, "integration/langs/c/fork.c", clib.Sanitize...)
			b := testkit.StartBroker(t)
			for range 3 {
				run(t, b, program)
			}
			testkit.AuditEmpty(t, b)
		})
	}
}

func TestProgramIsLinkedWithTheArchiveAlone(t *testing.T) {
	prefix := clib.Library(t)
	clib.NeedCompiler(t, "gcc")
	program := filepath.Join(t.TempDir(), "loader")
	out, err := exec.Command("gcc", "-I"+prefix+"/include", "-o", program, filepath.Join(clib.Root(t), "examples/c/loader.c"),
		filepath.Join(prefix, "lib/libbaton.a"), "-lgcc_s", "-lpthread", "-lm", "-ldl").CombinedOutput()
	require.NoError(t, err, string(out))
	run(t, testkit.StartBroker(t), program)
}

// The example: a loader in C whose batches are taken by consumers in Go and C++.
func TestExampleInC(t *testing.T) {
	consumer := filepath.Join(t.TempDir(), "consumer")
	build := exec.Command("go", "build", "-o", consumer, "./examples/c/consumer")
	build.Dir = clib.Root(t)
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	for _, with := range compilers {
		t.Run(with.c, func(t *testing.T) {
			loader := clib.Compiled(t, with.c, "examples/c/loader.c", clib.Sanitize...)
			inCpp := clib.Compiled(t, with.cxx, "examples/c/consumer.cpp", clib.Sanitize...)
			b := testkit.StartBroker(t)
			run(t, b, loader)
			assert.Equal(t, `batch 1 of loader: [2 3], first 0, last 5
batch 2 of loader: [2 3], first 10, last 15
batch 3 of loader: [2 3], first 20, last 25
`, run(t, b, consumer))
			run(t, b, loader)
			assert.Equal(t, `batch 1 {"batch":0}: first 0, last 5
batch 2 {"batch":1}: first 10, last 15
batch 3 {"batch":2}: first 20, last 25
`, run(t, b, inCpp))
			testkit.AuditKept(t, b)
		})
	}
}

// The example of a pipeline, which checks every picture, their order, and that
// nothing was copied.
func TestPipelineThroughThreeLanguages(t *testing.T) {
	clib.NeedCargo(t)
	clib.NeedCompiler(t, "cc")
	// It builds its stages first, which takes as long as the compilers do.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "./examples/pipeline", "-dev", "-batches", "100")
	cmd.Dir = clib.Root(t)
	cmd.Env = append(os.Environ(), "COLUMNS=80")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	text := string(out)
	assert.Contains(t, text, "3,200 pictures in 100 batches, all right, in order, none copied")
	for _, drawn := range []string{"in augment (Rust)", "in normalise (C)", "waiting for check (Go)", "from the first to the last"} {
		assert.Contains(t, text, drawn)
	}
}
