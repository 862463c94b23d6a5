package standin

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// honesty compiles testdata/honesty.c against the stand-in.
func honesty(t *testing.T, lib string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "honesty")
	out, err := exec.Command("cc", "-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-pthread",
		"-o", bin, filepath.Join("testdata", "honesty.c"), lib).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return bin
}

// Each check is a process of its own and says on stderr what was wrong.
func TestStandInIsAsUnkindAsADriver(t *testing.T) {
	bin := honesty(t, Library(t))
	for name, ends := range map[string]syscall.Signal{
		"creation": 0, "descriptor": 0, "killed": 0, "touch": syscall.SIGSEGV, "unset": 0, "read_only": 0, "threads": 0,
		"forked": 0, "late": 0, "legacy": 0, "freed_too_early": syscall.SIGABRT, "faults": 0, "hidden": 0,
		"reused": 0, "destroyed": syscall.SIGABRT, "captured": 0,
	} {
		t.Run(name, func(t *testing.T) {
			m := New(t, 2)
			cmd := exec.Command(bin, name)
			cmd.Env = append(os.Environ(), m.Env()...)
			out, err := cmd.CombinedOutput()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if ends != 0 {
				assert.Equal(t, ends, status.Signal(), "%v: %s", err, out)
				return
			}
			assert.NoError(t, err, "%s", out)
		})
	}
}

// What a process leaves behind is freed, whether it ended by itself or not.
func TestMemoryOfTheMachineEndsWithItsLastHolder(t *testing.T) {
	m := New(t, 2)
	bin := honesty(t, m.Library)
	for _, name := range []string{"creation", "killed", "legacy", "touch"} {
		cmd := exec.Command(bin, name)
		cmd.Env = append(os.Environ(), m.Env()...)
		_ = cmd.Run()
		used, err := m.Used(0)
		require.NoError(t, err)
		assert.Zero(t, used, "after %s", name)
	}
}
