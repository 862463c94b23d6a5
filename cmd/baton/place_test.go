package main_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/protocol"
)

// removed removes files of the runtime directory, or all of it, as a cleaner does.
func (p *place) removed(names ...string) {
	p.t.Helper()
	for _, name := range names {
		require.NoError(p.t, os.RemoveAll(filepath.Join(p.dir, "baton", name)))
	}
}

// left is the instance that a next broker finds in the runtime directory.
func (p *place) left() string {
	st, err := statefile.Read(filepath.Join(p.dir, "baton"))
	if err != nil {
		return ""
	}
	return st.Instance
}

// What is removed of the runtime directory comes back, and the next broker finds the
// clients of this one, however it ends.
func TestWhatIsRemovedOfTheRuntimeDirectoryIsMadeAgain(t *testing.T) {
	for name, what := range map[string][]string{"state": {"state.json"}, "lock": {"broker.lock"}, "lock and state": {"broker.lock", "state.json"},
		"lock and socket": {"broker.lock", "broker.sock"}, "directory": {""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // the broker looks from time to time
			p := newPlace(t)
			broker := p.serve()
			c := p.client()
			was := p.statusOf(c)
			for _, end := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
				p.removed(what...)
				if name == "state" {
					p.client() // one that comes meanwhile is noted, too
				}
				p.until("all is there again", func() bool {
					return p.left() == was.Instance && reach.Owner(filepath.Dir(p.socket()), p.socket()) == broker.cmd.Process.Pid
				})
				p.must("status", "--timeout", "1m")
				p.launch("--no-nats").wait().fails(t, 1, "another broker", "--replace")
				broker.signal(end)
				broker.wait()
				broker = p.serve()
				require.Equal(t, was.Instance, p.statusOf(c).Instance, "the session goes on")
			}
		})
	}
}

// What stands in the place of a file of the broker's is named, and waited for by nothing.
func TestSomethingElseStandsWhereTheBrokersFilesBelong(t *testing.T) {
	makes := map[string]func(path string) error{
		"pipe":      func(path string) error { return exec.Command("mkfifo", path).Run() },
		"directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "kept"), 0o700) },
	}
	for what, put := range makes {
		for _, name := range []string{"broker.lock", "state.json", "broker.log", "start.lock", "nats.lock", "nats.json", "nats.seed"} {
			t.Run(name+" "+what, func(t *testing.T) {
				p := newPlace(t)
				path := p.file("baton/" + name)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, put(path))
				array := p.array("a.npy", "uint8", []int64{1}, []byte{9})
				p.baton("ping", "--timeout", "1ms").fails(t, 4, "no broker answers", "")
				p.baton("stop", "--timeout", "1ms").fails(t, 4, "no broker answers", "")
				replaced := what == "pipe" && slices.Contains([]string{"state.json", "nats.json", "nats.seed"}, name)
				if replaced { // nothing is known of a previous broker: a file takes its place
					p.serveNATS()
					assert.FileExists(t, path)
					p.must("status")
					p.must("nats")
					return
				}
				assert.Equal(t, "fail", p.findings()["runtime directory"].State)
				if name == "start.lock" || name == "broker.log" { // of programs that start a broker
					p.baton("set", "x", array).fails(t, 4, path+": it is no regular file", "move it away")
					p.serveNATS()
					p.must("set", "x", array)
					return
				}
				r := p.start(p.command("serve")).wait()
				assert.Equal(t, 1, r.code)
				assert.Regexp(t, `baton: .*`+regexp.QuoteMeta(path)+`: it is no regular file(.*\n)*  what to do: move it away`, r.err)
			})
		}
	}
	p := newPlace(t)
	p.launch("--http", p.write("file", "")).wait().fails(t, 1, "file exists and is not a socket", "move away what is there")
}

// The log of a broker that a program starts may be a link: where it leads to a file, or to where one can be made, a program
// starts a broker, and the doctor finds nothing. Where it does not, neither does.
func TestTheBrokersLogIsALink(t *testing.T) {
	for name, c := range map[string]struct {
		target string
		works  bool
	}{
		"to a file":                          {"there.log", true},
		"to where a file can be made":        {"made.log", true},
		"to a link to where one can be made": {"link.log", true},
		"to a directory that is not there":   {"none/broker.log", false},
		"to itself":                          {"baton/broker.log", false},
		"to a directory":                     {"directory", false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.user()
			p.write("there.log", "")
			require.NoError(t, os.Mkdir(p.file("directory"), 0o700))
			require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
			require.NoError(t, os.Symlink("made.log", p.file("link.log")))
			require.NoError(t, os.Symlink(p.file(c.target), p.file("baton/broker.log")))
			found := p.findings()["runtime directory"]
			_, err := p.userClient(p.ctx())
			if c.works {
				assert.Equal(t, "ok", found.State, found.Text)
				require.NoError(t, err)
				return
			}
			assert.Equal(t, "fail", found.State)
			assert.Contains(t, found.Text, "no program can start a broker, whose log it is")
			assert.Contains(t, found.Text, p.file("baton/broker.log"))
			require.Error(t, err)
		})
	}
}

// One that is told to end at once leaves all that the next one needs.
func TestBrokerThatIsTerminatedWithoutItsDirectoryLeavesItsClients(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	c := p.client()
	was := p.statusOf(c)
	broker.freeze() // else it may have looked before
	p.removed("")
	broker.signal(syscall.SIGTERM)
	broker.signal(syscall.SIGCONT)
	require.Zero(t, broker.wait().code)
	p.serve()
	require.Equal(t, was.Instance, p.statusOf(c).Instance)
}

func TestReplaceWaitsForAStateFileThatWasRemoved(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	c := p.client()
	was := p.statusOf(c)
	p.removed("state.json")
	p.serve("--replace")
	require.Zero(t, broker.wait().code)
	require.Equal(t, was.Instance, p.statusOf(c).Instance)
}

// A broker in whose directory another one has begun ends, and touches nothing of that one.
func TestBrokerWhoseDirectoryIsAnothersEnds(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"by itself": 0, "terminated": syscall.SIGTERM, "for good": syscall.SIGINT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it looks from time to time
			p := newPlace(t)
			old := p.serve()
			c := p.client()
			old.freeze() // it would make its place again
			p.removed("")
			other := p.serve()
			d := p.client()
			was := p.statusOf(d)
			if end != 0 {
				old.signal(end)
			}
			old.signal(syscall.SIGCONT)
			r := old.wait()
			if end == 0 {
				assert.Equal(t, 1, r.code)
				assert.Contains(t, r.err, "what to do: programs open a new session at SessionLost")
				assert.Contains(t, r.err, "level=ERROR msg=\"ending: another broker has this one's place\"")
			}
			p.until("its client hears that the session is over", func() bool {
				return errors.Is(c.Broker(p.ctx(), protocol.OpStatus, nil, nil), protocol.ErrSessionLost)
			})
			again, err := c.Reopen(p.ctx())
			require.NoError(t, err)
			defer again.Close()
			require.Equal(t, was.Instance, p.statusOf(again).Instance)
			require.Equal(t, was.Instance, p.left())
			other.signal(syscall.SIGKILL)
			other.wait()
			p.serve()
			require.Equal(t, was.Instance, p.statusOf(d).Instance, "its own clients go on")
		})
	}
}

// One that another broker has left nothing to, after all, has its place again.
func TestBrokerTakesADirectoryBackThatNobodyHas(t *testing.T) {
	t.Parallel() // it looks from time to time
	p := newPlace(t)
	old := p.serve()
	c := p.client()
	was := p.statusOf(c)
	old.freeze()
	p.removed("")
	other := p.serve()
	other.signal(syscall.SIGINT)
	require.Zero(t, other.wait().code)
	old.signal(syscall.SIGCONT)
	p.until("it is there again", func() bool { return p.left() == was.Instance })
	p.must("status", "--timeout", "1m")
	p.removed("broker.sock")
	p.must("status", "--timeout", "1m")
	require.Equal(t, was.Instance, p.statusOf(c).Instance)
}

func TestLimitOfFilesThatIsTooSmallForABroker(t *testing.T) {
	p := newPlace(t)
	limited := func(files string) *running {
		cmd := p.command()
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", `ulimit -n "$0" && exec "$@"`, files, binary, "serve", "--no-nats", "--idle-exit", "1ms"}
		return p.start(cmd)
	}
	r := limited("90").wait()
	r.fails(t, 1, "90 open files", "ulimit -n")
	found := regexp.MustCompile(`to (\d+) or more`).FindStringSubmatch(r.err)
	require.NotNil(t, found, r.err)
	require.Zero(t, limited(found[1]).wait().code, "it suffices")
}

// The socket of the HTTP endpoint comes back as well.
func TestHTTPSocketThatIsRemovedIsMadeAgain(t *testing.T) {
	t.Parallel() // the broker looks from time to time
	p := newPlace(t)
	endpoint := p.file("http.sock")
	broker := p.serve("--http", endpoint)
	require.NoError(t, os.Remove(endpoint))
	p.until("the socket is there again", func() bool { return reach.Listens(endpoint) })
	code, _ := get(t, endpoint, "/healthz")
	require.Equal(t, 200, code)
	broker.signal(syscall.SIGTERM)
	require.Zero(t, broker.wait().code)
	require.NoFileExists(t, endpoint)
}

// The directory of both is the broker's to make: the endpoint waits for it, and reports nothing as lost.
func TestHTTPSocketInTheRuntimeDirectoryComesBackWithIt(t *testing.T) {
	t.Parallel() // the broker looks from time to time
	p := newPlace(t)
	endpoint := p.file("baton/http.sock")
	broker := p.serve("--http", endpoint)
	require.NoError(t, os.RemoveAll(p.file("baton")))
	p.until("the socket is there again", func() bool { return reach.Listens(endpoint) })
	broker.logs("the socket of the HTTP endpoint was removed, and is made again")
	require.NotContains(t, broker.err.String(), "level=ERROR")
}

// A broker that takes over while the socket of the previous one is missing binds it at once, and
// keeps it when the previous one ends.
func TestHTTPSocketOfTheNextBrokerStaysWhenThePreviousOneEnds(t *testing.T) {
	p := newPlace(t)
	endpoint := p.file("http.sock")
	former := p.serve("--http", endpoint)
	require.NoError(t, os.Remove(endpoint))
	next := p.serve("--http", endpoint, "--replace")
	require.Zero(t, former.wait().code)
	code, _ := get(t, endpoint, "/readyz")
	require.Equal(t, 200, code)
	next.signal(syscall.SIGTERM)
	require.Zero(t, next.wait().code)
	require.NoFileExists(t, endpoint)
}

// The files by which programs find NATS come back, and the next broker has its port.
func TestNATSIsFoundAgainAfterItsFilesWereRemoved(t *testing.T) {
	t.Parallel() // the broker looks from time to time
	p := newPlace(t)
	broker := p.serveNATS()
	type address struct{ URL, Seed string }
	where := func() (now address) {
		p.json(&now, "nats")
		require.FileExists(t, now.Seed)
		return now
	}
	was := where()
	p.removed("nats.json", "nats.seed", "nats.lock", "broker.lock", "state.json", "broker.sock")
	p.until("all is there again", func() bool {
		_, err := os.Stat(filepath.Join(p.dir, "baton", "nats.json"))
		return err == nil && reach.Listens(p.socket())
	})
	require.Equal(t, was, where())
	require.Contains(t, p.must("doctor"), "the broker's answers at "+was.URL)
	broker.signal(syscall.SIGTERM)
	require.Zero(t, broker.wait().code)
	former := p.serveNATS()
	require.Equal(t, was, where(), "after TERM")
	next := p.serveNATS("--replace")
	require.Zero(t, former.wait().code)
	require.Equal(t, was, where(), "after a takeover")
	p.must("stop")
	next.wait()
	p.serveNATS()
	require.Equal(t, was, where(), "after stop")
}

// The log of a broker that a program has started comes back, with what the broker says of its other
// files, and with what the Go runtime would write to standard error.
func TestLogThatIsRemovedIsMadeAgain(t *testing.T) {
	p := newPlace(t)
	p.user()
	c, err := p.userClient(p.ctx())
	require.NoError(t, err)
	log := p.file("baton/broker.log")
	for what, said := range map[string][]string{"broker.log": {"the log was removed, and is made again"},
		"": {"the lock of the runtime directory was removed", "the state file was removed", "the socket was removed", "the log was removed"}} {
		p.removed(what)
		p.until("the broker says so in its log", func() bool {
			text, err := os.ReadFile(log)
			return err == nil && !slices.ContainsFunc(said, func(s string) bool { return !strings.Contains(string(text), s) })
		})
		stderr, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/2", p.statusOf(c).PID))
		require.NoError(t, err)
		require.Equal(t, log, stderr)
	}
}

func TestTheRemedyOfASharedDirectoryIsAnotherOne(t *testing.T) {
	p := newPlace(t)
	shared := p.file("shared")
	require.NoError(t, os.Mkdir(shared, 0o777))
	require.NoError(t, os.Chmod(shared, 0o777|os.ModeSticky))
	for _, r := range []result{
		p.baton("serve", "--no-nats", "--address", "unix:"+filepath.Join(shared, "b.sock")),
		p.baton("doctor", "--address", "unix:"+filepath.Join(shared, "b.sock")),
	} {
		assert.Equal(t, 1, r.code, r.out+r.err)
		assert.Contains(t, r.out+r.err, "runtime directory "+shared+" can be written by others (mode 1777)")
		assert.Contains(t, r.out+r.err, "choose another directory (")
		assert.NotContains(t, r.out+r.err, "chmod")
	}
	require.NoError(t, os.Chmod(shared, 0o770))
	p.baton("serve", "--no-nats", "--address", "unix:"+filepath.Join(shared, "b.sock")).
		fails(t, 1, "can be written by others", "if nothing else uses this one, make it yours alone (chmod 700)")
}
