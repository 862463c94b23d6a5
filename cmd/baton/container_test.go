package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// container is what a runtime makes of packaging/container: the program alone on a root that
// cannot be written, namespaces of its own, a user that is not root and has no capabilities.
// Containers share the folder volume, at /run/baton.
type container struct {
	p            *place
	root, volume string
}

const containerUser = "65532"

// enter mounts what a runtime mounts and becomes the user. Its arguments are root, volume, user, command.
const enter = `set -e
root=$1 volume=$2 user=$3
shift 3
mount --bind "$root" "$root"
mount --bind "$volume" "$root/run/baton"
mount -o remount,ro,bind "$root"
mount -t proc proc "$root/proc"
exec env -i BATON_ADDRESS=unix:/run/baton/broker.sock BATON_RUNTIME_DIR=/run/baton/private \
  setpriv --no-new-privs unshare --root="$root" --setuid="$user" --setgid="$user" /baton "$@"`

func newContainer(p *place, volume string) *container {
	p.t.Helper()
	c := &container{p: p, root: p.t.TempDir(), volume: volume}
	for _, dir := range []string{"run/baton", "proc"} {
		require.NoError(p.t, os.MkdirAll(filepath.Join(c.root, dir), 0o755))
	}
	data, err := os.ReadFile(binary)
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(filepath.Join(c.root, "baton"), data, 0o755))
	return c
}

func (c *container) command(args ...string) *exec.Cmd {
	args = append([]string{"--mount", "--pid", "--fork", "--ipc", "--net", "--uts", "--propagation", "private",
		"sh", "-c", enter, "sh", c.root, c.volume, containerUser}, args...)
	return exec.Command("unshare", args...)
}

// first is the first process of a container, nil once that has ended: the child of its unshare.
func first(t *testing.T, r *running) *os.Process {
	t.Helper()
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", r.cmd.Process.Pid))
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return nil
	}
	p, err := os.FindProcess(pid)
	require.NoError(t, err)
	return p
}

func TestContainersShareTheVolumeOfTheSocketAndNothingElse(t *testing.T) {
	for _, need := range []string{"root", "unshare", "setpriv"} {
		testkit.Need(t, need)
	}
	if out, err := exec.Command("unshare", "--mount", "--pid", "--fork", "--ipc", "--net", "mount", "-t", "tmpfs", "none", "/mnt").CombinedOutput(); err != nil {
		testkit.Skip(t, "unshare", "this machine refuses to make namespaces and to mount in them: "+string(out))
	}
	p := newPlace(t)
	volume := t.TempDir()
	require.NoError(t, os.Chmod(volume, 0o777)) // as an emptyDir of Kubernetes: root's, and any user may write
	served := p.start(newContainer(p, volume).command("serve", "--memory", "64M"))
	p.until("the broker listens", func() bool {
		_, err := os.Stat(filepath.Join(volume, "broker.sock"))
		return err == nil
	})
	t.Cleanup(func() {
		if p := first(t, served); p != nil {
			p.Kill()
		}
	})
	one, other := newContainer(p, volume), newContainer(p, volume)
	data, err := os.ReadFile(p.array("a.npy", "uint8", []int64{3}, []byte{7, 8, 9}))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(one.root, "a.npy"), data, 0o644))
	for _, cmd := range []*exec.Cmd{one.command("status"), one.command("set", "x", "/a.npy"), other.command("get", "x", "-o", "/run/baton/o.npy")} {
		r := p.start(cmd)
		require.Zero(t, r.wait().code, r.err.String())
	}
	got, err := os.ReadFile(filepath.Join(volume, "o.npy"))
	require.NoError(t, err)
	assert.Equal(t, data, got)
	assert.NoFileExists(t, filepath.Join(one.root, "run/baton/broker.sock"), "mounted for the container alone")
	require.NoError(t, first(t, served).Signal(syscall.SIGTERM)) // as a runtime does
	require.Zero(t, served.wait().code, served.err.String())
	p.until("the broker has ended", func() bool {
		_, err := os.Stat(filepath.Join(volume, "broker.sock"))
		return os.IsNotExist(err)
	})
}
