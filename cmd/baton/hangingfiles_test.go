package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/testkit"
)

// hangs mounts a file system that gives no answer, as one of a server that is gone, and returns its directory. With the
// returned function all that wait for it are told that it is gone.
func (p *place) hangs() (dir string, answer func()) {
	p.t.Helper()
	testkit.Need(p.t, "fuse")
	dir = p.file("hangs")
	require.NoError(p.t, os.Mkdir(dir, 0o700))
	device, err := testkit.MountFUSE(dir)
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		device.Close()
		out, err := exec.Command("umount", "-l", dir).CombinedOutput()
		assert.NoError(p.t, err, "%s", out)
	})
	return dir, func() { device.Close() }
}

func pipe(t *testing.T, path string) string {
	t.Helper()
	require.NoError(t, exec.Command("mkfifo", "-m", "600", path).Run())
	return path
}

// What stands in the place of a file that settings name is named, with its setting, and waited for by nothing.
func TestFilesOfSettingsThatAreNone(t *testing.T) {
	p := newPlace(t)
	cert, key, _ := p.keyPair()
	large := p.write("large", strings.Repeat("x", 2<<20))
	http, nats := []string{"--http", "127.0.0.1:0"}, []string{"--nats", "nats://127.0.0.1:1"}
	for what, path := range map[string]string{"a pipe": pipe(t, p.file("pipe")), "a directory": p.dir, "a device": "/dev/zero", "more than 1048576 bytes": large} {
		for setting, with := range map[string][]string{"config": nil, "http-token-file": http, "http-cert": append(http, "--http-key", key),
			"http-key": append(http, "--http-cert", cert), "nats-creds": nats, "nats-nkey": nats, "nats-ca": nats,
			"nats-cert": append(nats, "--nats-key", key), "nats-key": append(nats, "--nats-cert", cert)} {
			r := p.baton(append([]string{"serve", "--check-config", "--" + setting, path}, with...)...)
			assert.Equal(t, 2, r.code, r.err)
			assert.Contains(t, r.err, "baton: --"+setting+": "+path+" ")
			assert.Contains(t, r.err, what)
			assert.Contains(t, r.err, "\n  what to do: name ")
		}
	}
	p.must("serve", "--check-config", "--config", "/dev/null")
	require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
	pipe(t, p.file("baton/baton.toml")) // XDG_CONFIG_HOME is the place
	p.baton("serve", "--check-config").fails(t, 2, "the default configuration file: ", "put a regular file there")
	assert.Equal(t, "fail", p.findings()["settings"].State)
}

// A pipe in the place of a file is an error of that reload, and the next one reads the settings again.
func TestHupThatMeetsAPipeIsOver(t *testing.T) {
	p := newPlace(t)
	token := p.write("token", "s3cret\n")
	file := p.write("c.toml", fmt.Sprintf("http = \"127.0.0.1:0\"\nhttp-token-file = %q\n", token))
	broker := p.serve("--config", file)
	require.NoError(t, os.Remove(token))
	pipe(t, token)
	hup(broker)
	broker.logs(token + " is a pipe: it is no regular file")
	p.write("c.toml", "http = \"127.0.0.1:0\"\nidle-exit = \"1h\"\n")
	hup(broker)
	broker.logs("idle-exit")
	broker.signal(syscall.SIGTERM)
	require.Zero(t, broker.wait().code)
}

// A file system that does not answer keeps a broker neither from what it does nor from its end, and no HUP is lost.
func TestHupThatAFileSystemKeeps(t *testing.T) {
	p := newPlace(t)
	dir, answer := p.hangs()
	token := p.write("token", "s3cret\n")
	link := p.file("link")
	require.NoError(t, os.Symlink(token, link))
	broker := p.serve("--config", p.write("c.toml", fmt.Sprintf("http = \"127.0.0.1:0\"\nhttp-token-file = %q\n", link)))
	lead := func(to string) {
		t.Helper()
		require.NoError(t, os.Symlink(to, link+".new"))
		require.NoError(t, os.Rename(link+".new", link))
	}
	lead(filepath.Join(dir, "token"))
	broker.signal(syscall.SIGHUP)
	broker.logs(`a file is not read yet, and the settings stay as they were until then`)
	broker.logs("setting=http-token-file file=" + link)
	lead(token)
	p.write("c.toml", fmt.Sprintf("http = \"127.0.0.1:0\"\nhttp-token-file = %q\nidle-exit = \"1h\"\n", link))
	broker.signal(syscall.SIGHUP)
	broker.logs(`the settings are read once more when the reload that is under way has ended" reload=1`)
	p.must("ping")
	answer()
	broker.logs("the settings are wrong and stay as they were")
	broker.logs("changed=idle-exit")
}

func TestBrokerEndsWhileAFileSystemKeepsItsReload(t *testing.T) {
	p := newPlace(t)
	dir, _ := p.hangs()
	broker := p.serve("--config", p.write("c.toml", "drain-timeout = \"5s\"\n"))
	p.write("c.toml", fmt.Sprintf("http = \"127.0.0.1:0\"\nhttp-token-file = %q\n", filepath.Join(dir, "token")))
	broker.signal(syscall.SIGHUP)
	broker.logs("setting=http-token-file")
	broker.signal(syscall.SIGTERM)
	require.Zero(t, broker.wait().code)
}

// A broker that a client starts and that does not come so far as to serve is named, with its log; nothing starts another
// one meanwhile, and it ends.
func TestBrokerThatAClientStartsDoesNotBegin(t *testing.T) {
	p := newPlace(t)
	dir, answer := p.hangs()
	require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
	config := p.file("baton/baton.toml")
	require.NoError(t, os.Symlink(filepath.Join(dir, "baton.toml"), config))
	array := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	set := func() result { return p.baton("set", "x", array, "--timeout", "1s") }
	assert.Contains(t, p.findings()["settings"].Text, "cannot be read within 3s")
	first := set()
	first.fails(t, 4, "the broker that was started here, process ", "read "+p.file("baton/broker.log"))
	pid := regexp.MustCompile(`, process (\d+), has not begun to serve`).FindStringSubmatch(first.err)
	require.NotNil(t, pid, first.err)
	for range 2 {
		set().fails(t, 4, "the one of that place, process "+pid[1]+", lives", "kill -TERM "+pid[1])
	}
	p.launch("--stand-in").wait().fails(t, 1, "process "+pid[1], "")
	number, err := strconv.Atoi(pid[1])
	require.NoError(t, err)
	process, err := os.FindProcess(number)
	require.NoError(t, err)
	require.NoError(t, process.Signal(syscall.SIGTERM))
	p.until("it has ended", func() bool { return reach.Owner(filepath.Dir(p.socket()), p.socket()) == 0 })

	p.launch("--stand-in", "--begin-within", "100ms").wait().fails(t, 5, "has not begun to serve within 100ms", "file systems")
	answer()
	require.NoError(t, os.Remove(config))
	set()
	p.must("get", "x", "-o", "o.npy")
	p.must("stop")
}

// So does a file of a connection to NATS that is made anew.
func TestBrokerEndsWhileAFileSystemKeepsItsConnectionToNATS(t *testing.T) {
	server, p := newPlace(t), newPlace(t)
	gone := server.serveNATS()
	var n natsAnswer
	server.json(&n, "nats")
	dir, _ := p.hangs()
	link := p.file("link")
	require.NoError(t, os.Symlink(n.Seed, link))
	broker := p.serveNATS("--nats", n.URL, "--nats-nkey", link, "--drain-timeout", "1s")
	require.NoError(t, os.Symlink(filepath.Join(dir, "seed"), link+".new"))
	require.NoError(t, os.Rename(link+".new", link))
	gone.signal(syscall.SIGKILL)
	gone.wait()
	server.serveNATS() // at the same port
	p.until("it waits for the file", func() bool { return waitsIn(broker.cmd.Process.Pid, "fuse_", "request_wait_answer") })
	broker.signal(syscall.SIGTERM)
	broker.wait()
	assert.Contains(t, broker.err.String(), "NATS did not end in order")
}
