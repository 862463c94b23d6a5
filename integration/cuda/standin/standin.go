package standin

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
)

//go:embed src
var source embed.FS

// Library compiles the stand-in, once for the test run, and returns its path.
// Without a C compiler the test is skipped, or fails where BATON_REQUIRE names cc.
func Library(t testing.TB) string {
	t.Helper()
	testkit.Need(t, "cc")
	return testkit.Once(t, "libcuda.so.1", func(path string) error {
		dir := t.TempDir()
		if err := os.CopyFS(dir, source); err != nil {
			return err
		}
		files, err := filepath.Glob(filepath.Join(dir, "src", "*.c"))
		if err != nil {
			return err
		}
		cmd := exec.Command("cc", append([]string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden",
			"-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-o", path}, files...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s", cmd.Args, err, out)
		}
		return nil
	})
}

// Machine is a set of GPUs that all processes with its environment share.
type Machine struct {
	Dir     string
	Library string
	GPUs    int
	Memory  uint64 // of each
}

// New makes a machine of a number of GPUs with 1 GiB each.
func New(t testing.TB, gpus int) *Machine {
	t.Helper()
	return &Machine{Dir: t.TempDir(), Library: Library(t), GPUs: gpus, Memory: 1 << 30}
}

// Settings are the variables by which a process finds the machine.
func (m *Machine) Settings() map[string]string {
	return map[string]string{
		"BATON_STANDIN_DIR":    m.Dir,
		"BATON_STANDIN_GPUS":   strconv.Itoa(m.GPUs),
		"BATON_STANDIN_MEMORY": strconv.FormatUint(m.Memory, 10),
		"LD_LIBRARY_PATH":      filepath.Dir(m.Library),
	}
}

// Env gives the settings as an environment has them.
func (m *Machine) Env() []string {
	var env []string
	for name, value := range m.Settings() {
		env = append(env, name+"="+value)
	}
	return env
}

// On makes a child of a test find the machine.
func (m *Machine) On() testkit.StartOption {
	return func(c *exec.Cmd) { c.Env = append(c.Env, m.Env()...) }
}

// Used returns the bytes of a GPU that any process, descriptor or message on its
// way keeps: the driver's own figure.
func (m *Machine) Used(gpu int) (uint64, error) {
	dir := filepath.Join(m.Dir, fmt.Sprintf("gpu%d", gpu))
	turn, err := sys.OpenLock(dir + ".lock")
	if err != nil {
		return 0, err
	}
	defer turn.Close()
	if err := turn.Lock(true); err != nil {
		return 0, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "block-*"))
	if err != nil {
		return 0, err
	}
	used := uint64(0)
	for _, f := range files {
		if strings.HasSuffix(f, ".open") {
			continue
		}
		fd, err := sys.OpenFile(f)
		if err != nil {
			continue // freed meanwhile
		}
		if size, _, err := fd.Stat(); err == nil && fd.Lock(false) != nil {
			used += uint64(size)
		}
		fd.Close()
	}
	return used, nil
}
