package langs

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/testkit"
)

// The threads of the library are no reason for a process to go on: it ends as one without them, with the status 0 and
// the handlers of exit, and leaves nothing.
func TestProcessEndsWithTheLastThreadOfItsProgram(t *testing.T) {
	program := clib.Compiled(t, "gcc", "integration/langs/c/last.c", "-O1")
	for how, said := range map[string]string{
		"main":                  "main\nexit\n",
		"worker":                "main\nworked\nexit\n",
		"fork":                  "exit\nwaited\nmain\nexit\n",
		"fork and pthread_exit": "exit\nwaited\nmain\nexit\n",
	} {
		t.Run(how, func(t *testing.T) {
			b := testkit.StartBroker(t)
			require.Equal(t, said, run(t, b, program, how))
			testkit.AuditEmpty(t, b)
		})
	}
}

// The broker that it has started outlives it, though a thread of the library waits for that.
func TestProcessThatHasStartedTheBrokerEndsWithItsLastThread(t *testing.T) {
	program := clib.Compiled(t, "gcc", "integration/langs/c/last.c", "-O1")
	dir := shortdir.New(t)
	for name, value := range map[string]string{
		"BATON_ADDRESS": "", "BATON_BINARY": testkit.Binary(t), "XDG_RUNTIME_DIR": dir, "HOME": dir,
	} {
		t.Setenv(name, value)
	}
	t.Cleanup(func() {
		out, err := exec.Command(testkit.Binary(t), "stop").CombinedOutput()
		require.NoError(t, err, string(out))
	})
	cmd := exec.CommandContext(testkit.Context(t), program, "main")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Equal(t, "main\nexit\n", string(out))
	require.FileExists(t, filepath.Join(dir, "baton", "broker.sock"))
}

func TestProcessGoesOnWhileItProvidesFunctions(t *testing.T) {
	program := clib.Compiled(t, "gcc", "integration/langs/c/last.c", "-O1")
	b := testkit.StartBroker(t)
	cmd := exec.CommandContext(testkit.Context(t), program, "function")
	cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+b.Socket)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	said := bufio.NewScanner(out)
	require.True(t, said.Scan(), "it ended")
	require.Equal(t, "main", said.Text())
	call := func(args ...string) (string, error) {
		out, err := exec.Command(testkit.Binary(t), append(args, "--address", "unix:"+b.Socket)...).CombinedOutput()
		return string(out), err
	}
	testkit.Until(t, "its main thread has ended", func() (bool, string) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		require.NoError(t, err)
		return strings.Contains(string(stat), ") Z "), string(stat)
	})
	got, err := call("call", "one")
	require.NoError(t, err, got)
	require.Equal(t, "1\n", got)
	got, err = call("delete", "--yes", "one")
	require.NoError(t, err, got)
	require.True(t, said.Scan(), "it ended in another way")
	require.Equal(t, "exit", said.Text())
	require.NoError(t, cmd.Wait())
	testkit.AuditEmpty(t, b)
}
