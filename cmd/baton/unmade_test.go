package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// What cannot be made is said once, and what to do can help.
func TestServeNamesWhatKeepsItsPlaceFromBeingMade(t *testing.T) {
	p := newPlace(t)
	file := p.write("file", "")
	for runtimeDir, inTheWay := range map[string]string{file: file, file + "/a/b": file} {
		r := p.launch("--no-nats", "--runtime-dir", runtimeDir, "--address", p.file("b.sock")).wait()
		r.fails(t, 1, fmt.Sprintf("make runtime directory %s: mkdir %s: not a directory", runtimeDir, inTheWay), "move away what is in the way")
		assert.NotContains(t, r.err, "chmod")
	}
	r := p.launch("--no-nats", "--runtime-dir", p.file("a"), "--address", p.file("none/b.sock")).wait()
	saidOnce(t, r, "baton: no socket can be made at "+p.file("none/b.sock")+": no such file or directory", "mkdir -m 755 "+p.file("none"))
	r = p.launch("--no-nats", "--runtime-dir", p.file("a"), "--address", file+"/b.sock").wait()
	saidOnce(t, r, "baton: no socket can be made at "+file+"/b.sock: not a directory", "--address")
}

func TestServeNamesAReadOnlyFileSystemOfItsSocket(t *testing.T) {
	testkit.Need(t, "root")
	testkit.Need(t, "unshare")
	p := newPlace(t)
	at := p.file("ro")
	require.NoError(t, os.Mkdir(at, 0o755))
	serve := p.command("serve", "--no-nats", "--runtime-dir", p.file("a"), "--address", at+"/b.sock")
	cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", `mount -t tmpfs -o ro none "$0" || exit 99; exec "$@"`, at}, serve.Args...)...)
	cmd.Env, cmd.Dir = serve.Env, serve.Dir
	r := p.start(cmd).wait()
	if r.code == 99 {
		testkit.Skip(t, "unshare", "this machine refuses to mount: "+r.err)
	}
	saidOnce(t, r, "baton: no socket can be made at "+at+"/b.sock: read-only file system", "mount this one so")
}

// saidOnce asserts the whole first line of an error, and its remedy.
func saidOnce(t *testing.T, r result, line, remedy string) {
	t.Helper()
	r.fails(t, 1, line, remedy)
	assert.Equal(t, line, lines(r.err)[0])
}

// The configuration of a user that this one is not, as under sudo that keeps HOME.
func TestDefaultConfigurationThatCannotBeReadIsNamed(t *testing.T) {
	p := newPlace(t)
	path := p.file("config/baton/baton.toml")
	require.NoError(t, os.MkdirAll(path, 0o755)) // a directory is read by no user, nor by root
	p.setenv("XDG_CONFIG_HOME", p.file("config"))
	p.baton("serve", "--check-config").fails(t, 2, "the default configuration file: "+path+" is a directory: it is no regular file", "XDG_CONFIG_HOME")
	f := p.findings()["settings"]
	assert.Equal(t, "fail", f.State)
	assert.Contains(t, f.Text, "the default configuration file: "+path)
	assert.Contains(t, f.Remedy, "--config")
}
