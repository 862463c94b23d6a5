package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/internal/testkit/natstest"
)

type finding struct{ Check, Kind, State, Text, Remedy string }

// findings runs doctor, whatever its status.
func (p *place) findings(args ...string) map[string]finding {
	p.t.Helper()
	var rows []finding
	r := p.baton(append([]string{"doctor", "--json"}, args...)...)
	require.NoError(p.t, json.Unmarshal([]byte(r.out), &rows), r.out+r.err)
	found := map[string]finding{}
	for _, r := range rows {
		found[r.Check] = r
	}
	return found
}

func TestDoctorLooksAtMachineAndBroker(t *testing.T) {
	p := newPlace(t)
	f := p.findings()
	for _, check := range []string{"kernel", "memory", "container limit", "memfd", "pidfd", "peer pidfd", "open files",
		"mappings", "huge pages", "/dev/shm", "GPU", "loopback", "settings", "runtime directory", "broker", "NATS"} {
		assert.Contains(t, []string{"ok", "warn"}, f[check].State, "%s: %v", check, f[check])
		assert.NotEmpty(t, f[check].Text, check)
	}
	assert.Contains(t, f["broker"].Text, "none runs at "+p.socket())
	assert.NoDirExists(t, p.file("baton"), "looking changes nothing")

	p.serveNATS()
	f = p.findings()
	assert.Equal(t, "ok", f["broker"].State)
	assert.Contains(t, f["broker"].Text, "version 1.2.3-test")
	assert.Equal(t, "ok", f["NATS"].State)
	assert.Contains(t, f["NATS"].Text, "answers at nats://127.0.0.1:")
	text := p.must("doctor")
	assert.Regexp(t, `(?m)^ok +memfd +memory files can be made`, text)
	assert.Regexp(t, `\n\d+ ok, \d+ warn, 0 fail\n$`, text)
}

func TestDoctorSeesThatTheBrokerHasNoNATS(t *testing.T) {
	p := newPlace(t)
	p.serve()
	f := p.findings()["NATS"]
	assert.Equal(t, "ok", f.State)
	assert.Contains(t, f.Text, "runs without NATS, as it was told")
}

func TestDoctorFailsForWhatDoesNotWork(t *testing.T) {
	p := newPlace(t)
	require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
	require.NoError(t, os.Chmod(p.file("baton"), 0o777))
	p.setenv("BATON_MEMORY", "lots")
	r := p.baton("doctor")
	assert.Equal(t, 1, r.code, r.out)
	assert.Regexp(t, `(?m)^fail +settings +\$BATON_MEMORY: "lots" is not a size.*\n +→ `, r.out)
	assert.Regexp(t, `(?m)^fail +runtime directory .*`+p.file("baton"), r.out)
	assert.Contains(t, r.out, "2 fail")
}

func TestDoctorTellsOfAnAddressThatCannotBe(t *testing.T) {
	p := newPlace(t)
	p.setenv("XDG_RUNTIME_DIR", p.file(strings.Repeat("x", 107)))
	r := p.baton("doctor")
	assert.Equal(t, 1, r.code, r.err)
	assert.Regexp(t, `(?m)^fail +settings +socket path of \d+ bytes is longer than 107`, r.out)
	assert.Regexp(t, `(?m)^ok +kernel`, r.out, "what else there is to see is told")
	assert.Equal(t, 2, p.baton("doctor", "--address", "here").code)
}

func TestDoctorTriesTheNATSOfTheSettings(t *testing.T) {
	p := newPlace(t)
	address := fmt.Sprintf("127.0.0.1:%d", testkit.HeldPort(t)) // no server listens there
	p.setenv("BATON_NATS", "nats://me:hush@"+address)
	f := p.findings()["NATS"]
	assert.Equal(t, "warn", f.State)
	assert.Contains(t, f.Text, "nats://"+address)
	assert.Contains(t, f.Remedy, "start the NATS server")
	assert.NotContains(t, f.Text, "hush")
}

func TestDoctorLeavesAPasswordOfTheShellAlone(t *testing.T) {
	p := newPlace(t)
	p.setenv("BATON_NATS_PASSWORD", "s3cret")
	assert.Equal(t, "ok", p.findings()["settings"].State)
	p.serve()
	assert.Equal(t, "ok", p.findings()["settings"].State)
}

func TestDoctorTellsThatNATSRefusesTheBroker(t *testing.T) {
	s := natstest.Start(t, &natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, Username: "baton", Password: "right", NoSigs: true})
	p := newPlace(t)
	p.serveNATS("--nats", s.ClientURL(), "--nats-user", "baton", "--nats-password", "wrong")
	p.until("it says that it is refused", func() bool { return strings.Contains(p.findings()["NATS"].Text, "Authorization") })
	f := p.findings()["NATS"]
	assert.Equal(t, "warn", f.State)
	assert.Contains(t, f.Text, "the broker is not connected to NATS at "+s.ClientURL())
	assert.Contains(t, f.Remedy, "check the credentials")
}

func TestDoctorSeesABrokerThatWasKilled(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	require.NoError(t, broker.cmd.Process.Kill())
	broker.wait()
	f := p.findings()["broker"]
	assert.Equal(t, "ok", f.State)
	assert.Contains(t, f.Text, "left of one that was killed")
}

// Where programs wait for a broker and start none, all is not well without one.
func TestDoctorFailsWhereProgramsStartNoBroker(t *testing.T) {
	p := newPlace(t)
	f := p.findings("--address", p.file("named.sock"))["broker"]
	assert.Equal(t, "fail", f.State)
	assert.Contains(t, f.Text, "wait for one, and start none")
	assert.Contains(t, f.Remedy, "start it (baton serve --address="+p.file("named.sock")+")")

	broker := p.serve()
	c := p.client()
	require.NoError(t, broker.cmd.Process.Kill())
	broker.wait()
	f = p.findings()["broker"]
	assert.Equal(t, "fail", f.State)
	assert.Contains(t, f.Text, "sessions of the last one still live, and it was an operator's")
	assert.Contains(t, f.Remedy, "start it again")
	require.NoError(t, c.Close())
}

func TestLimitOfFileSizesIsNamed(t *testing.T) {
	p := newPlace(t)
	limited := func(args ...string) result {
		cmd := p.command(args...)
		cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", `ulimit -f 2048 && exec "$0" "$@"`, cmd.Path}, args...)
		return p.start(cmd).wait()
	}
	limited("serve", "--no-nats").fails(t, 1, "file too large", "ulimit -f")
	r := limited("doctor")
	assert.Equal(t, 1, r.code)
	assert.Regexp(t, `(?m)^fail +memfd .*\n +→ .*ulimit -f`, r.out)
}

// The broker that is suspended is asked once, and for no longer than ping asks it. The findings
// come as they are found.
func TestDoctorIsNotHeldUpByABrokerThatStandsStill(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	broker.freeze()
	r := p.start(p.command("doctor"))
	p.until("what needs no broker is printed", func() bool { return strings.Contains(r.out.String(), "runtime directory") })
	assert.NotContains(t, r.out.String(), "fail")
	got := r.wait()
	assert.Equal(t, 1, got.code)
	assert.Regexp(t, fmt.Sprintf(`(?m)^fail +broker .*\(pid %d\) does not answer: it is suspended\n +→ .*kill -CONT`, broker.cmd.Process.Pid), got.out)
	assert.Regexp(t, `(?m)^warn +NATS +the broker does not say`, got.out)

	r = p.start(p.command("doctor"))
	p.until("it asks the broker", func() bool { return strings.Contains(r.out.String(), "runtime directory") })
	r.signal(syscall.SIGTERM)
	got = r.wait()
	assert.Equal(t, 128+int(syscall.SIGTERM), got.code)
	assert.NotContains(t, got.out, "fail")
	broker.signal(syscall.SIGCONT)
}

// doctor and serve agree on how many open files are too few.
func TestDoctorAndServeAgreeOnOpenFiles(t *testing.T) {
	p := newPlace(t)
	limited := func(files int, args ...string) result {
		cmd := exec.Command("/bin/sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, files), binary}, args...)...)
		cmd.Env, cmd.Dir = p.env, p.dir
		return p.start(cmd).wait()
	}
	for files, enough := range map[int]bool{100: false, 160: true} {
		doctor, serve := limited(files, "doctor").out, limited(files, "serve", "--no-nats", "--idle-exit", "1ms")
		if enough {
			assert.Regexp(t, `(?m)^warn +open files +at most 160 open files: enough for some \d+ sessions$`, doctor)
			assert.Zero(t, serve.code, serve.err)
		} else {
			assert.Regexp(t, `(?m)^fail +open files +at most 100 open files, too few for a broker, which needs 1\d\d$`, doctor)
			assert.Contains(t, serve.err, "the 100 open files that are allowed are too few for a broker")
		}
	}
}

func TestDoctorSeesWhatStandsInTheBrokersPlace(t *testing.T) {
	p := newPlace(t)
	require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
	require.NoError(t, os.WriteFile(p.socket(), nil, 0o600))
	require.NoError(t, os.Symlink("/nowhere", p.file("baton/broker.lock")))
	f := p.findings()
	assert.Equal(t, "fail", f["broker"].State)
	assert.Contains(t, f["broker"].Text, p.socket()+" exists and is not a socket")
	assert.Equal(t, "fail", f["runtime directory"].State)
	assert.Contains(t, f["runtime directory"].Text, "broker.lock is no regular file")
}

func TestDoctorSeesThatTheMemoryDirectoryWasRemoved(t *testing.T) {
	p := newPlace(t)
	dir := p.file("memory")
	p.serve("--memory-dir", dir)
	assert.Equal(t, "ok", p.findings()["memory directory"].State)
	require.NoError(t, os.RemoveAll(dir))
	f := p.findings()["memory directory"]
	assert.Equal(t, "fail", f.State)
	assert.Contains(t, f.Text, dir+", where the broker's shared memory lies, was removed")
}

func TestDoctorSeesThatTheBrokerHasTooFewFiles(t *testing.T) {
	p := newPlace(t)
	p.serveIn("ulimit -n 160", "--no-nats")
	f := p.findings()["broker's open files"]
	assert.Equal(t, "ok", f.State)
	assert.Regexp(t, `^\d+ of 160 that the broker may have open$`, f.Text)
	assert.Regexp(t, `(?m)^open files +\d+ of 160$`, p.must("status"))
	var sessions []*client.Client
	var tensors []*client.Tensor
	for full := false; !full; {
		c, err := client.Connect(t.Context(), client.WithAddress(p.socket()))
		if full = err != nil; !full {
			sessions = append(sessions, c)
			t.Cleanup(func() { c.Close() })
			x, err := c.Alloc(t.Context(), dlpack.Uint8, []int64{1})
			if full = err != nil; !full {
				tensors = append(tensors, x)
			}
		}
	}
	f = p.findings()["broker's open files"]
	assert.Equal(t, "fail", f.State)
	assert.Contains(t, f.Text, "sessions or memory were refused")
	assert.Contains(t, f.Remedy, "ulimit -n")
	for _, x := range tensors {
		x.Release()
	}
	for _, c := range sessions {
		require.NoError(t, c.Close())
	}
	p.until("the sessions are over", func() bool {
		var rows []struct{ Serial uint64 }
		p.json(&rows, "ls", "sessions")
		return len(rows) == 0
	})
	assert.Equal(t, "ok", p.findings()["broker's open files"].State, "they can be opened again")
	assert.Regexp(t, `(?m)^open files +\d+ of 160$`, p.must("status"))
}

func TestDoctorAndServeNameAVariableThatIsNoSetting(t *testing.T) {
	p := newPlace(t)
	p.setenv("BATON_MEMROY", "1G")
	const text = "$BATON_MEMROY is no setting: BATON_MEMORY is"
	f := p.findings()["settings"]
	assert.Equal(t, "warn", f.State)
	assert.Contains(t, f.Text, text)
	r := p.baton("serve", "--check-config")
	assert.Contains(t, r.out+r.err, text)
}

func TestCommandsFailOnceWhereTheirOutputCannotBeWritten(t *testing.T) {
	p := newPlace(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, args := range [][]string{{"doctor"}, {"help"}, {"help", "serve"}, {"completion", "bash"}, {"version"}, {"--version"}} {
		cmd := p.command(args...)
		var errors strings.Builder
		cmd.Stdout, cmd.Stderr = full, &errors
		assert.Error(t, cmd.Run(), "%v", args)
		assert.Equal(t, 1, strings.Count(errors.String(), "no space left on device"), "%v: %s", args, errors.String())
	}
}

func TestNumbersThatAreNoneAreRefusedInPlainWords(t *testing.T) {
	p := newPlace(t)
	for _, bad := range []struct {
		flag, value, why string
	}{
		{"--nats-port", "70000", "is too large or too small"},
		{"--metrics-topics", "-1", "is no"},
		{"--metrics-topics", "many", "is no whole number"},
	} {
		r := p.baton("serve", bad.flag+"="+bad.value)
		r.fails(t, 2, bad.why, "")
		assert.NotContains(t, r.err, "strconv")
		q := p.in(t)
		q.setenv("BATON_"+strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(bad.flag, "--"), "-", "_")), bad.value)
		r = q.baton("serve")
		r.fails(t, 2, bad.why, "")
		assert.NotContains(t, r.err, "strconv")
	}
}

// A broker without room is found before its programs are refused.
func TestDoctorNamesTheLargestSessionsOfABrokerWithoutRoom(t *testing.T) {
	p := newPlace(t)
	p.serve()
	f := p.findings()["broker's memory"]
	assert.Equal(t, "ok", f.State, f.Text)
	c := p.client()
	x := p.tensor(c, 16<<20)
	defer x.Release()
	p.must("limit", "--memory", "32MiB")
	f = p.findings()["broker's memory"]
	assert.Equal(t, "warn", f.State)
	assert.Regexp(t, `^\d+ MiB more than --memory are granted, of 32 MiB: new grants are refused; largest: tester \(pid \d+\): holds 64 MiB, was granted \d+ MiB`, f.Text)
	assert.Contains(t, f.Remedy, "baton why SESSION")
}
