package langs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
)

// The programs of docs/functions.md in C and C++: those of a language run together, end well, and print what stands
// behind "// prints ".
func TestProgramsOfThePageOfFunctions(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(clib.Root(t), "docs/functions.md"))
	require.NoError(t, err)
	programs := map[string]string{}
	for _, m := range regexp.MustCompile("(?ms)^```c(?:pp)?\n// (\\w+\\.\\w+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		programs[m[1]] = m[2]
	}
	require.Len(t, programs, 6)
	prefix := clib.Library(t)
	for _, with := range compilers {
		for suffix, how := range map[string][]string{".c": {with.c, "-std=c99"}, ".cpp": {with.cxx, "-std=c++17"}} {
			t.Run(how[0]+suffix, func(t *testing.T) {
				compiler := clib.NeedCompiler(t, how[0])
				dir := t.TempDir()
				b := testkit.StartBroker(t)
				started := map[string]*exec.Cmd{}
				said := map[string]*strings.Builder{}
				for _, name := range []string{"provider", "caller", "parts"} {
					source := filepath.Join(dir, name+suffix)
					require.NoError(t, os.WriteFile(source, []byte(programs[name+suffix]), 0o600))
					args := []string{how[1], "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I" + prefix + "/include", "-o", filepath.Join(dir, name), source,
						"-L" + prefix + "/lib", "-lbaton", "-Wl,-rpath," + prefix + "/lib"}
					out, err := exec.Command(compiler, args...).CombinedOutput()
					require.NoError(t, err, string(out))
					cmd := exec.CommandContext(testkit.Context(t), filepath.Join(dir, name))
					cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+b.Socket)
					said[name] = &strings.Builder{}
					cmd.Stdout, cmd.Stderr = said[name], said[name]
					started[name] = cmd
				}
				for _, name := range []string{"provider", "caller", "parts"} {
					require.NoError(t, started[name].Start())
					t.Cleanup(func() { _ = started[name].Process.Kill() }) // where the other one has failed
				}
				for _, name := range []string{"caller", "provider", "parts"} {
					require.NoError(t, started[name].Wait(), said[name].String())
					var want []string
					for _, m := range regexp.MustCompile(`(?m)// prints (.*)$`).FindAllStringSubmatch(programs[name+suffix], -1) {
						want = append(want, m[1])
					}
					require.Equal(t, strings.Join(want, "\n")+"\n", said[name].String(), name)
				}
				testkit.AuditEmpty(t, b)
			})
		}
	}
}
