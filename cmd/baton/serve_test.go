package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func TestServeEndsInOrderAtTermAndInt(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			p := newPlace(t)
			broker := p.serveNATS()
			c := p.client()
			require.NotZero(t, c.Session())
			broker.signal(s)
			broker.notice("STOPPING=1")
			r := broker.wait()
			assert.Zero(t, r.code, r.err)
			assert.NoFileExists(t, p.socket())
			assert.NoFileExists(t, filepath.Join(p.dir, "baton", "nats.json"))
			assert.Contains(t, r.err, "msg=ended")
		})
	}
}

// A service manager learns that the broker ends whatever it is that ends it.
func TestServeTellsThatItEndsAtARequest(t *testing.T) {
	for _, args := range [][]string{{"stop"}, {"stop", "--discard", "--yes"}} {
		p := newPlace(t)
		broker := p.serve()
		p.must(args...)
		broker.notice("STOPPING=1")
		assert.Zero(t, broker.wait().code)
	}
	p := newPlace(t)
	broker := p.serve()
	p.serve("--replace")
	broker.notice("STOPPING=1")
	assert.Zero(t, broker.wait().code)
}

func TestServeLeavesOnlyItsLockBehind(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	p.must("set", "x", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	broker.signal(syscall.SIGINT)
	require.Zero(t, broker.wait().code)
	entries, err := os.ReadDir(filepath.Join(p.dir, "baton"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	assert.Equal(t, "broker.lock", entries[0].Name())
}

// timeout(1), make and a terminal may send two signals for one.
func TestTwoSignalsThatComeTogetherAreOne(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	broker.signal(syscall.SIGSTOP)
	broker.signal(syscall.SIGTERM)
	broker.signal(syscall.SIGINT)
	broker.signal(syscall.SIGCONT)
	r := broker.wait()
	require.Zero(t, r.code, r.err)
}

func TestCommandsDoNotWaitForABrokerThatStandsStill(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	broker.signal(syscall.SIGSTOP)
	p.baton("ls", "--timeout", "1ms").fails(t, 5, "does not answer: it is suspended", "kill -CONT")
	p.baton("stop", "--timeout", "1ms").fails(t, 5, "does not answer: it is suspended", "kill -CONT")
	broker.signal(syscall.SIGCONT)
	p.must("ls") // that stop is over
	p.must("stop")
	require.Zero(t, broker.wait().code)
}

// A broker that is killed while it is to stop has ended: nothing is left to look for.
func TestStopSaysThatTheBrokerWasKilledMeanwhile(t *testing.T) {
	p := newPlace(t)
	broker := p.serve()
	broker.freeze()
	stop := p.start(p.command("stop"))
	p.until("its request waits for the broker", func() bool {
		queues, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", broker.cmd.Process.Pid))
		require.NoError(t, err)
		return strings.Count(string(queues), " "+p.socket()+"\n") == 2 // the listener, and what it is to accept
	})
	broker.signal(syscall.SIGKILL)
	broker.wait()
	r := stop.wait()
	r.fails(t, 4, fmt.Sprintf("the broker, process %d, has ended", broker.cmd.Process.Pid), "run baton stop once more")
	assert.Contains(t, p.must("stop"), "are forgotten")
}

func TestServeEndsAtOnceAtASecondSignal(t *testing.T) {
	p := newPlace(t)
	url := muteNATS(t) // its answer is what the end waits for
	broker := p.serveNATS("--nats", url, "--drain-timeout", "1h")
	p.until("it has joined", func() bool { return strings.Contains(p.must("status"), "joined, connected "+url) })
	broker.signal(syscall.SIGTERM)
	broker.notice("STOPPING=1")
	over := make(chan struct{})
	go func() {
		defer close(over)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for broker.cmd.Process.Signal(syscall.SIGINT) == nil { // those that come soon after the first are one with it
			<-tick.C
		}
	}()
	r := broker.wait()
	<-over
	assert.Equal(t, 128+int(syscall.SIGINT), r.code, r.err)
	assert.Contains(t, r.err, "ending at once: a second signal")

	next := p.serve() // what was left there is not in its way
	next.signal(syscall.SIGTERM)
	assert.Zero(t, next.wait().code)
}

// muteNATS is a NATS server that greets its clients and then answers nothing.
func muteNATS(t *testing.T) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"max_payload\":1048576,\"headers\":true,\"proto\":1}\r\n")
				in := bufio.NewReader(c)
				for line := ""; line != "PING\r\n"; {
					if line, err = in.ReadString('\n'); err != nil {
						return
					}
				}
				fmt.Fprintf(c, "PONG\r\n")
				io.Copy(io.Discard, in) // until its end
			}()
		}
	}()
	return "nats://" + l.Addr().String()
}

func TestServeReloadsItsLogLevelAtHup(t *testing.T) {
	p := newPlace(t)
	file := p.write("c.toml", "log-level = \"warn\"\n")
	broker := p.serve("--config", file)

	p.write("c.toml", "log-level = \"debug\"\nmemory = \"1GiB\"\n")
	broker.signal(syscall.SIGHUP)
	assert.Regexp(t, regexp.MustCompile(`RELOADING=1\nMONOTONIC_USEC=\d+`), broker.notice("RELOADING=1"))
	broker.notice("READY=1")
	broker.logs("msg=reloaded event=steered log_level=debug changed=\"memory, log-level\"")

	p.write("c.toml", "log-level = \"loud\"\n")
	broker.signal(syscall.SIGHUP)
	broker.notice("READY=1")
	broker.logs("the settings are wrong and stay as they were")
	p.client() // it still serves
	broker.logs("session opened")
}

func TestServeKeepsTheWatchdogQuiet(t *testing.T) {
	p := newPlace(t)
	p.setenv("WATCHDOG_USEC", "20000")
	broker := p.serve()
	broker.notice("WATCHDOG=1")
	broker.notice("WATCHDOG=1")
}

func TestServeEndsWhenIdle(t *testing.T) {
	p := newPlace(t)
	broker := p.serve("--idle-exit", "1ms", "--log-format", "json")
	r := broker.wait()
	assert.Zero(t, r.code, r.err)
	for _, line := range lines(r.err) {
		assert.True(t, json.Valid([]byte(line)), line)
	}
	assert.Regexp(t, `"msg":"ended","after":"[^"]+s"`, r.err, "durations are as in events")
}

func TestServeRefusesASecondBroker(t *testing.T) {
	p := newPlace(t)
	first := p.serve()
	second := p.launch("--no-nats")
	second.wait().fails(t, 1, fmt.Sprintf("(pid %d)", first.cmd.Process.Pid), "")
	p.must("status")
}

func TestServeRefusesADirectoryThatOthersCanWrite(t *testing.T) {
	p := newPlace(t)
	require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
	require.NoError(t, os.Chmod(p.file("baton"), 0o777))
	p.launch("--no-nats").wait().fails(t, 1, p.file("baton"), "chmod 700")
}

func TestServeListensWhereItIsTold(t *testing.T) {
	p := newPlace(t)
	address := p.file("other.sock")
	require.NoError(t, os.Chmod(p.dir, 0o755))
	broker := p.serve("--address", "unix:"+address, "--runtime-dir", p.file("state"), "--socket-mode", "0666")
	info, err := os.Stat(address)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o666), info.Mode().Perm())
	assert.FileExists(t, p.file("state/broker.lock"))
	p.must("status", "--address", address)
	p.setenv("BATON_ADDRESS", "unix:"+address)
	p.must("status")
	broker.signal(syscall.SIGTERM)
	assert.Zero(t, broker.wait().code)
	assert.NoFileExists(t, address)
}

func TestServeLimitsMemory(t *testing.T) {
	p := newPlace(t)
	p.serve("--memory", "64M", "--session-memory", "16MiB")
	var s struct {
		Memory struct {
			Limit        uint64
			SessionLimit uint64 `json:"session_limit"`
		}
	}
	p.json(&s, "status")
	assert.Equal(t, uint64(64<<20), s.Memory.Limit)
	assert.Equal(t, uint64(16<<20), s.Memory.SessionLimit)
}

func TestServeCheckConfigTellsValuesAndTheirSources(t *testing.T) {
	p := newPlace(t)
	require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
	p.write("baton/baton.toml", "memory = \"2GiB\"\nlog-level = \"debug\"\nidle-exit = \"5m\"\n")
	p.setenv("BATON_LOG_LEVEL", "error")
	p.setenv("BATON_NATS_PASSWORD", "s3cret")
	var checked struct {
		Settings []struct{ Key, Value, Source string }
		Warnings []string
	}
	p.json(&checked, "serve", "--check-config", "--memory", "1G", "--nats", "nats://me:hush@127.0.0.1:4222", "--nats-user", "me")
	got := map[string][2]string{}
	assert.NotNil(t, checked.Warnings, "an empty list")
	for _, s := range checked.Settings {
		got[s.Key] = [2]string{s.Value, s.Source}
	}
	assert.Equal(t, [2]string{"1GiB", "flag"}, got["memory"])
	assert.Equal(t, [2]string{"error", "environment"}, got["log-level"])
	assert.Equal(t, [2]string{"5m0s", "file"}, got["idle-exit"])
	assert.Equal(t, [2]string{"text", "default"}, got["log-format"])
	assert.Equal(t, [2]string{"(hidden)", "environment"}, got["nats-password"])
	assert.Equal(t, [2]string{"nats://127.0.0.1:4222", "flag"}, got["nats"])
	assert.Equal(t, p.socket(), got["address"][0])

	text := p.must("serve", "--check-config", "--nats", "nats://me:hush@127.0.0.1:4222", "--nats-user", "me")
	assert.NotContains(t, text, "hush")
	assert.NotContains(t, text, "s3cret")
	assert.Equal(t, []string{"memory", "2GiB", "file"}, fields(regexp.MustCompile(`(?m)^memory .*$`).FindString(text)))
	assert.Regexp(t, `(?m)^memory +[0-9.]+[KMGT]?i?B +default$`, newPlace(t).must("serve", "--check-config"))
	gone(t, p.socket())
}

func TestServeRefusesWrongSettings(t *testing.T) {
	p := newPlace(t)
	for _, c := range []struct {
		args    []string
		message string
	}{
		{[]string{"--memory", "lots"}, `"lots" is not a size`},
		{[]string{"--memory", "1"}, "--memory: nothing fits into 1: a session takes 64KiB at first"},
		{[]string{"--memory", "99999999999TiB"}, "beyond 64 bits"},
		{[]string{"--memory", "1G", "--session-memory", "2G"}, "--session-memory: one session may have more (2GiB)"},
		{[]string{"--memory-dir", "relative"}, "--memory-dir: \"relative\" is not an absolute path"},
		{[]string{"--idle-exit", "-1s"}, "--idle-exit"},
		{[]string{"--drain-timeout", "0"}, "--drain-timeout"},
		{[]string{"--allow-uid", "root"}, `"root" is not a user id`},
		{[]string{"--socket-mode", "999"}, `"999" is not a mode`},
		{[]string{"--socket-mode", "0066"}, `"0066" is not a mode`},
		{[]string{"--http", ":9464"}, "not a loopback address"},
		{[]string{"--http", "0.0.0.0:9464"}, "not a loopback address"},
		{[]string{"--http", "relative.sock"}, "neither a socket path nor host:port"},
		{[]string{"--http", p.socket()}, "the socket at which the broker serves its clients"},
		{[]string{"--http", p.file("baton/state.json"), "--runtime-dir", p.file("baton")}, "--http: the broker has a file of its own at"},
		{[]string{"--address", p.file("baton/broker.lock")}, "--address: the broker has a file of its own at"},
		{[]string{"--pprof"}, "give --http too"},
		{[]string{"--http-token-file", "/t"}, "give --http too"},
		{[]string{"--http", ":9464", "--http-cert", "/c"}, "go together"},
		{[]string{"--log-format", "xml"}, `"xml" is none of text, json`},
		{[]string{"--log-level", "loud"}, `level "loud" is none of`},
		{[]string{"--no-nats", "--nats", "nats://x"}, "--no-nats"},
		{[]string{"--nats", "http://x"}, "--nats: entry 1 is not an address"},
		{[]string{"--nats-user", "me"}, "--nats-user: it is for joining"},
		{[]string{"--nats", "nats://x", "--nats-creds", "nowhere.creds"}, "--nats-creds"},
		{[]string{"--nats", "nats://x", "--nats-creds", p.write("ok.npy", "no secret")}, "--nats-creds: " + p.file("ok.npy") + " does not hold a JWT and a seed of a NATS user"},
		{[]string{"--nats", "nats://x", "--nats-nkey", p.file("ok.npy")}, "--nats-nkey: " + p.file("ok.npy") + " holds no seed of a NATS user"},
		{[]string{"--nats", "nats://x/path"}, "--nats: entry 1 is not an address"},
		{[]string{"--nats", "nats://x", "--nats-password", "p"}, "give --nats-user too"},
		{[]string{"--nats-port", "4222", "--no-nats"}, "--nats-port"},
		{[]string{"--address", "/" + strings.Repeat("x", 107)}, "socket path of 108 bytes is longer than 107"},
		{[]string{"--config", "nowhere.toml"}, "--config"},
		{[]string{"--json"}, "--json is for --check-config"},
		{[]string{"extra"}, `superfluous argument "extra"`},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			p.in(t).baton(append([]string{"serve"}, c.args...)...).fails(t, 2, c.message, "")
			if c.args[0] != "--json" {
				p.in(t).baton(append([]string{"serve", "--check-config"}, c.args...)...).fails(t, 2, c.message, "")
			}
			assert.NoFileExists(t, p.file("baton/state.json"))
		})
	}
}

// get asks the HTTP endpoint over its Unix socket.
func get(t *testing.T, socket, path string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://baton" + path)
	require.NoError(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(body)
}

func TestServeShowsHealthAndMetrics(t *testing.T) {
	p := newPlace(t)
	endpoint := p.file("http.sock")
	broker := p.serveNATS("--http", endpoint)
	info, err := os.Stat(endpoint)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	for _, path := range []string{"/healthz", "/readyz"} {
		code, body := get(t, endpoint, path)
		assert.Equal(t, 200, code)
		assert.Equal(t, "ok\n", body)
	}
	c := p.client(client.WithName("secret-name"))
	_, err = c.Topic(p.ctx(), "secret/topic")
	require.NoError(t, err)
	bundle(p, c, "secret/model")
	code, body := get(t, endpoint, "/metrics")
	assert.Equal(t, 200, code)
	assert.Regexp(t, `baton_build_info\{[^}]*protocol="1"[^}]*version="1.2.3-test"\} 1`, body)
	assert.Contains(t, body, "baton_sessions{state=\"live\"} 1\n")
	assert.Contains(t, body, "baton_topics{kind=\"topic\"} 1\n")
	assert.Contains(t, body, "baton_names 1\n")
	assert.Contains(t, body, "baton_leases 0\n")
	assert.Regexp(t, `baton_segment_bytes\{state="granted"\} [1-9]`, body)
	assert.Contains(t, body, "baton_nats_connected 1\n")
	assert.Contains(t, body, "baton_request_duration_seconds_count{op=\"topic.open\",outcome=\"ok\"} 1\n")
	assert.Contains(t, body, "go_goroutines")
	assert.NotContains(t, body, "secret", "names are no labels")
	code, _ = get(t, endpoint, "/debug/pprof/")
	assert.Equal(t, 404, code)

	broker.signal(syscall.SIGTERM)
	assert.Zero(t, broker.wait().code)
	assert.NoFileExists(t, endpoint)
}

func TestServeShowsProfilesWhereAsked(t *testing.T) {
	p := newPlace(t)
	broker := p.serve("--http", "127.0.0.1:0", "--pprof")
	broker.logs("HTTP endpoint")
	address := regexp.MustCompile(`address=(127\.0\.0\.1:\d+)`).FindStringSubmatch(broker.err.String())
	require.NotNil(t, address, broker.err.String())
	r, err := http.Get("http://" + address[1] + "/debug/pprof/goroutine?debug=1")
	require.NoError(t, err)
	defer r.Body.Close()
	assert.Equal(t, 200, r.StatusCode)
}

func TestServeGoesOnWhereNATSCannotBeReached(t *testing.T) {
	p := newPlace(t)
	url := fmt.Sprintf("nats://127.0.0.1:%d", testkit.HeldPort(t)) // no server listens there
	p.serveNATS("--nats", url)
	file := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	p.must("set", "x", file)
	p.must("get", "x", "-o", "o.npy")
	assert.Contains(t, p.must("status"), "joined, not connected "+url)
	assert.Contains(t, p.must("nats"), "not connected now")
}

func TestServeRefusesATakenNATSPort(t *testing.T) {
	p := newPlace(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	r := p.launch("--nats-port", port).wait()
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "baton: NATS cannot listen on port "+port)
	assert.NoFileExists(t, p.socket(), "what was begun is undone")
	assert.NoFileExists(t, p.file("baton/state.json"), "the next broker takes over from none")
}

func TestServeLetsOtherUsersInWhereTold(t *testing.T) {
	testkit.Need(t, "root")
	const otherUID = 65534
	for _, allowed := range []bool{true, false} {
		t.Run(fmt.Sprint(allowed), func(t *testing.T) {
			p := newPlace(t)
			require.NoError(t, os.Chmod(p.dir, 0o755))
			args := []string{"--address", p.file("b.sock"), "--socket-mode", "0666"}
			if allowed {
				args = append(args, "--allow-uid", fmt.Sprint(otherUID))
			}
			p.serve(args...)
			cmd := p.command("status", "--address", p.file("b.sock"))
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
			r := p.start(cmd).wait()
			if allowed {
				assert.Zero(t, r.code, r.err)
				return
			}
			r.fails(t, 1, "user 65534 may not use this broker", "--allow-uid")
		})
	}
}

func TestStopByAUserWhomTheSocketRefuses(t *testing.T) {
	testkit.Need(t, "root")
	const otherUID = 65534
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	p.serve("--address", p.file("b.sock"))
	cmd := p.command("stop", "--address", p.file("b.sock"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherUID}}
	r := p.start(cmd).wait()
	r.fails(t, 1, "may not be used", "run this as the broker's user")
}

func TestServeMetricsBeyondLoopbackBehindAToken(t *testing.T) {
	p := newPlace(t)
	token := p.file("token")
	require.NoError(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	broker := p.serve("--http", "0.0.0.0:0", "--http-token-file", token, "--session-memory", "8MiB")
	broker.logs("HTTP endpoint")
	address := regexp.MustCompile(`msg="HTTP endpoint" address=\S*:(\d+)`).FindStringSubmatch(broker.err.String())
	require.Len(t, address, 2)
	scheme := "Bearer"
	get := func(path, token string) (int, string) {
		r, err := http.NewRequestWithContext(p.ctx(), http.MethodGet, "http://127.0.0.1:"+address[1]+path, nil)
		require.NoError(t, err)
		if token != "" {
			r.Header.Set("Authorization", scheme+" "+token)
		}
		a, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		return a.StatusCode, string(body)
	}
	for _, probe := range []string{"/healthz", "/readyz"} {
		code, _ := get(probe, "")
		assert.Equal(t, 200, code, probe)
	}
	scheme = "bearer" // which is one whatever its case
	code, _ := get("/metrics", "s3cret")
	assert.Equal(t, 200, code)
	scheme = "Bearer"
	for _, wrong := range []string{"", "guess", "s3cret!"} {
		code, body := get("/metrics", wrong)
		assert.Equal(t, 401, code, wrong)
		assert.NotContains(t, body, "baton_")
	}
	_, body := get("/metrics", "s3cret")
	for _, lack := range []string{"QuotaExceeded", "OutOfMemory", "TooMany"} {
		assert.Contains(t, body, fmt.Sprintf("\nbaton_requests_refused_total{code=%q} 0\n", lack), "a rise from nothing is none to rate()")
	}
	c := p.client()
	_, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{64 << 20})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	code, body = get("/metrics", "s3cret")
	assert.Regexp(t, `(?m)^baton_requests_refused_total\{code="QuotaExceeded"\} [1-9]`, body)
	assert.Equal(t, 200, code)
	assert.Regexp(t, `(?m)^baton_requests_failed_total\{code="QuotaExceeded",op="grant"\} [1-9]`, body)
	broker.logs("msg=refused event=refused code=QuotaExceeded op=grant name=tester pid=" + fmt.Sprint(os.Getpid()))
	p.baton("serve", "--no-nats", "--http", "0.0.0.0:0", "--http-token-file", p.file("none"), "--address", p.file("other.sock")).fails(t, 2, "--http-token-file", "")
}

// The reader of the log may end before the broker, which goes on without one.
func TestBrokerOutlivesTheReaderOfItsLog(t *testing.T) {
	p := newPlace(t)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := p.command("serve", "--no-nats")
	cmd.Stdout, cmd.Stderr = w, w
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	w.Close()
	log := bufio.NewScanner(r)
	for log.Scan() && !strings.Contains(log.Text(), "msg=serving") {
	}
	require.NoError(t, r.Close())
	for range 3 { // lines of the log
		require.NoError(t, p.client().Close())
	}
	p.must("ping")
	select {
	case err := <-ended:
		t.Fatal("the broker has ended", err)
	default:
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, <-ended)
}
