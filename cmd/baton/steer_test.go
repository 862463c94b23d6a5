package main_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
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

// onTerminal runs a command at a terminal of a width, where the user types answer.
func (p *place) onTerminal(answer string, columns int, args ...string) result {
	p.t.Helper()
	testkit.Need(p.t, "script")
	quoted := []string{"'" + binary + "'"}
	for _, a := range args {
		quoted = append(quoted, "'"+a+"'")
	}
	cmd := exec.Command("script", "-q", "-e", "-c", strings.Join(quoted, " "), "/dev/null")
	cmd.Env = append(append([]string{}, p.env...), "TERM=dumb", fmt.Sprint("COLUMNS=", columns), "SHELL=/bin/sh")
	cmd.Dir = p.dir
	cmd.Stdin = strings.NewReader(answer)
	return p.start(cmd).wait()
}

func TestWhatDestroysAsksFirst(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	topic, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	x, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	defer x.Release()
	require.NoError(t, topic.Send(p.ctx(), x))
	h, err := x.Handle(p.ctx(), client.LeaseFor(time.Hour))
	require.NoError(t, err)
	lease := fmt.Sprint(*h.Lease)
	serial := fmt.Sprint(c.Session())
	kept := func() int {
		var rows []struct{ Kept int }
		p.json(&rows, "ls", "topics", "batches")
		require.Len(t, rows, 1)
		return rows[0].Kept
	}
	p.baton("purge", "nosuch").fails(t, 3, `there is no topic or queue "nosuch"`, "baton ls topics")
	p.baton("revoke", "999999").fails(t, 3, "there is no lease 999999", "baton ls leases")
	for _, args := range [][]string{{"purge", "batches"}, {"delete", "batches"}, {"evict", serial}, {"evict", serial, "--kill"}, {"revoke", lease}, {"stop", "--discard"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			p := p.in(t)
			p.baton(args...).fails(t, 2, "there is no terminal to ask at", "give --yes")
			r := p.onTerminal("n\n", 100, args...)
			assert.Equal(t, 1, r.code, r.out)
			assert.Contains(t, r.out, "Go on? [y/N]")
			assert.Contains(t, r.out, "nothing was done")
			assert.Equal(t, 1, kept())
		})
	}
	r := p.onTerminal("y\n", 100, "purge", "batches")
	require.Zero(t, r.code, r.out)
	assert.Contains(t, r.out, "This will drop all messages that are kept in batches")
	assert.Contains(t, r.out, "purged topic batches: 1 message dropped; 1 session had it open")
	assert.Zero(t, kept())
	var revoked []struct {
		Lease    uint64
		Maker    string
		Storages int
	}
	p.json(&revoked, "revoke", lease, "--yes")
	require.Len(t, revoked, 1)
	assert.Equal(t, []any{*h.Lease, "tester", 1}, []any{revoked[0].Lease, revoked[0].Maker, revoked[0].Storages})
	_, err = c.Open(p.ctx(), h)
	assert.NoError(t, err, "its maker has the tensor")
	p.baton("revoke", lease, "--yes").fails(t, 3, "there is no lease "+lease, "baton ls leases")
	p.baton("evict", "x").fails(t, 3, "there is no session called x", "baton ls sessions")
	p.baton("evict", "99999", "--yes").fails(t, 3, "there is no session 99999", "baton ls sessions")
	p.baton("purge", "nothing", "--yes").fails(t, 3, "there is no topic or queue nothing", "baton ls topics")
}

func TestDeletedTopicIsClosedForThoseWhoHaveItOpen(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	q, err := c.Queue(p.ctx(), "work")
	require.NoError(t, err)
	x, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	defer x.Release()
	require.NoError(t, q.Put(p.ctx(), x))
	waits := make(chan error, 1)
	other := p.client()
	theirs, err := other.Queue(p.ctx(), "work")
	require.NoError(t, err)
	m, err := theirs.Get(p.ctx())
	require.NoError(t, err)
	go func() {
		_, err := theirs.Get(p.ctx())
		waits <- err
	}()
	bundle(p, c, "work")
	p.baton("delete", "work", "--yes").fails(t, 2, "there are a name and a queue called work", "--kind")
	out := p.must("delete", "work", "--kind", "queue", "--yes")
	assert.Equal(t, "deleted queue work: 0 messages dropped; 2 sessions had it open\n", out)
	assert.ErrorIs(t, <-waits, protocol.ErrClosed)
	assert.ErrorIs(t, q.Put(p.ctx(), x), protocol.ErrClosed)
	assert.NotNil(t, m.Tensor(), "what was taken stays")
	m.Release()
	again, err := p.client().Queue(p.ctx(), "work")
	require.NoError(t, err)
	require.NoError(t, again.Close())
	var deleted []struct{ Name, Kind string }
	p.json(&deleted, "delete", "work", "--kind", "name")
	require.Len(t, deleted, 1)
	assert.Equal(t, "name", deleted[0].Kind)
	p.baton("delete", "work", "--kind", "file").fails(t, 2, `"file" is none of name, topic, queue, function`, "")
}

func TestPurgedMemoryGoesBackToItsSender(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c, holder := p.client(), p.client()
	for _, overwrite := range []bool{true, false} {
		name := fmt.Sprint("t-", overwrite)
		topic, err := c.Topic(p.ctx(), name, client.Overwrite(overwrite))
		require.NoError(t, err)
		theirs, err := holder.Topic(p.ctx(), name)
		require.NoError(t, err)
		keeps, err := theirs.Reader(p.ctx(), client.StartNew)
		require.NoError(t, err)
		for n := range 3 {
			x, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{1 << 20})
			require.NoError(t, err)
			b, err := x.Bytes()
			require.NoError(t, err)
			b[0], b[1<<20-1] = byte(n+1), byte(n+1)
			require.NoError(t, topic.Send(p.ctx(), x))
			x.Release()
		}
		var status struct{ Counts struct{ Storages int } }
		p.json(&status, "status")
		require.Equal(t, 3, status.Counts.Storages)
		held, err := keeps.Receive(p.ctx())
		require.NoError(t, err)
		p.must("purge", name, "--yes")
		p.until("what was purged is free, but for what a reader holds", func() bool {
			p.json(&status, "status")
			return status.Counts.Storages == 1
		})
		var others []*client.Tensor
		for range 8 { // into all that is free
			y, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{1 << 20})
			require.NoError(t, err)
			others = append(others, y)
		}
		b, err := held.Tensor().Bytes()
		require.NoError(t, err)
		assert.Equal(t, []byte{1, 1}, []byte{b[0], b[1<<20-1]})
		for _, y := range others {
			y.Release()
		}
		held.Release()
		require.NoError(t, keeps.Close())
		require.NoError(t, theirs.Close())
		r, err := topic.Reader(p.ctx(), client.StartAll)
		require.NoError(t, err)
		x, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{1})
		require.NoError(t, err)
		require.NoError(t, topic.Send(p.ctx(), x))
		m, err := r.Receive(p.ctx())
		require.NoError(t, err)
		assert.EqualValues(t, 4, m.Sequence)
		m.Release()
		x.Release()
		require.NoError(t, r.Close())
		require.NoError(t, topic.Close())
		p.must("delete", name, "--yes")
	}
}

func TestEvictedSessionOfALivingProcess(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	x, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{1 << 20})
	require.NoError(t, err)
	b, err := x.Bytes()
	require.NoError(t, err)
	copy(b, "stays")
	out := p.must("evict", fmt.Sprint(c.Session()), "--yes")
	assert.Equal(t, fmt.Sprintf("evicted session %d (tester, pid %d): its process holds 1.0 MiB, which stay until it drops them or ends\n", c.Session(), os.Getpid()), out)
	_, err = c.Alloc(p.ctx(), dlpack.Uint8, []int64{1})
	require.ErrorIs(t, err, protocol.ErrSessionLost)
	assert.Contains(t, err.Error(), "an operator evicted it")
	assert.Equal(t, "stays", string(b[:5]))
	again, err := c.Reopen(p.ctx())
	require.NoError(t, err)
	defer again.Close()
	x.Release()
	p.until("nothing of it is left", func() bool {
		var rows []struct{ Serial uint64 }
		p.json(&rows, "ls", "sessions")
		return len(rows) == 1 && rows[0].Serial == again.Session()
	})
}

func TestLimitOfALivingBroker(t *testing.T) {
	p := newPlace(t)
	file := p.write("c.toml", "memory = \"1GiB\"\n")
	broker := p.serve("--config", file)
	c := p.client()
	x, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{4 << 20})
	require.NoError(t, err)
	defer x.Release()
	assert.Contains(t, p.must("limit", "--memory", "2MiB"), "2.0 MiB, was 1.0 GiB")
	assert.Contains(t, p.must("limit"), ": 2.0 MiB more than the limit, so that new grants are refused")
	p.must("limit", "--memory", "1GiB")
	queue, err := c.Queue(p.ctx(), "q", client.Depth(1<<15))
	require.NoError(t, err)
	require.NoError(t, queue.Put(p.ctx(), 1))
	p.must("limit", "--memory", "2MiB")
	granted := regexp.MustCompile(`(?m)^memory granted +(\S+ \S+) of \S+ \S+, and (\S+ \S+ in lanes)$`).FindStringSubmatch(p.must("status"))
	require.NotEmpty(t, granted)
	assert.Regexp(t, `(?m)^granted +`+granted[1]+`, and `+granted[2]+`: \S+ MiB more than the limit`, p.must("limit"))
	require.NoError(t, queue.Close())
	_, err = c.Zeros(p.ctx(), dlpack.Uint8, []int64{4 << 20})
	require.ErrorIs(t, err, protocol.ErrQuotaExceeded)
	var now protocol.LimitReply
	p.json(&now, "limit", "--memory", "20GiB", "--session-memory", "512M")
	assert.Equal(t, []uint64{20 << 30, 512 << 20}, []uint64{now.Memory, now.SessionMemory})
	assert.Regexp(t, `(?m)^warning +--memory is more than the \S+ \S+ that this machine`, p.must("limit", "--memory", "1024TiB"))
	assert.NotContains(t, p.must("limit", "--memory", "512MiB"), "warning")
	p.baton("limit", "--memory", "1M").fails(t, 2, "one session might have more", "change both limits")
	p.baton("limit", "--memory", "5").fails(t, 2, "nothing fits into", "give more")
	p.baton("limit", "--memory", "lots").fails(t, 2, `"lots" is not a size`, "")

	// One mechanism changes both.
	p.write("c.toml", "memory = \"3GiB\"\nsession-memory = \"1GiB\"\n")
	hup(broker)
	p.json(&now, "limit")
	assert.Equal(t, []uint64{3 << 30, 1 << 30}, []uint64{now.Memory, now.SessionMemory})
	state, err := os.ReadFile(p.file("baton/state.json"))
	require.NoError(t, err)
	assert.Contains(t, string(state), "--memory=3GiB")
}

// hup has a broker read its settings again and waits until it has.
func hup(broker *server) {
	broker.p.t.Helper()
	broker.signal(syscall.SIGHUP)
	broker.notice("RELOADING=1")
	broker.notice("READY=1")
}

func TestHupTakesOverWhatCanChange(t *testing.T) {
	testkit.Need(t, "root")
	p := newPlace(t)
	require.NoError(t, os.Chmod(p.dir, 0o755))
	token := p.write("token", "first\n")
	endpoint := p.file("http.sock")
	file := p.write("c.toml", "idle-exit = \"1h\"\n")
	socket := p.file("b.sock")
	broker := p.serve("--config", file, "--address", socket, "--socket-mode", "0666", "--http", endpoint, "--http-token-file", token)
	assert.Equal(t, 1, p.asUser(otherUID, "status", "--address", socket).code)
	code, _ := getAs(t, endpoint, "/metrics", "first")
	assert.Equal(t, 200, code)

	p.write("token", "second\n")
	p.write("c.toml", "idle-exit = \"1ms\"\nallow-uid = [65534]\ndrain-timeout = \"20s\"\nno-nats = true\nlog-format = \"json\"\nruntime-dir = \"/elsewhere\"\n")
	user := p.client(client.WithAddress(socket)) // so that the broker does not end
	hup(broker)
	broker.logs("these settings wait for a restart\" event=steered settings=\"runtime-dir, log-format\"")
	broker.logs("changed=\"idle-exit, allow-uid, drain-timeout, contents of http-token-file\"")
	assert.Zero(t, p.asUser(otherUID, "status", "--address", socket).code)
	code, _ = getAs(t, endpoint, "/metrics", "first")
	assert.Equal(t, 401, code)
	code, _ = getAs(t, endpoint, "/metrics", "second")
	assert.Equal(t, 200, code)
	require.NoError(t, user.Close())
	assert.Zero(t, broker.wait().code, "idle-exit")
}

func TestCollectHasProgramsGiveMemoryBack(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	held := p.tensor(c, 1) // so that something stays granted, and is asked for again
	defer held.Release()
	x, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{64 << 20})
	require.NoError(t, err)
	x.Release()
	var got struct {
		Sessions int
		Granted  uint64 `json:"granted_bytes"`
		Now      uint64 `json:"granted_bytes_now"`
	}
	p.json(&got, "collect")
	assert.Equal(t, 1, got.Sessions)
	assert.GreaterOrEqual(t, got.Granted, uint64(64<<20))
	assert.Less(t, got.Now, uint64(64<<20), "also what was released a moment ago")
	told := p.events("--kind", "steered")
	require.Len(t, told, 1)
	assert.Zero(t, told[0].Times, "it asks twice, and is told once, in the log as well")
	assert.Regexp(t, `^asked 1 session: .* granted, .* before\n$`, p.must("collect"))
}

func TestPingForProbes(t *testing.T) {
	p := newPlace(t)
	p.baton("ping").fails(t, 4, "no broker answers", "")
	broker := p.serve()
	assert.Regexp(t, `^broker 1.2.3-test \(pid \d+\): serving\n$`, p.must("ping", "--ready"))
	var reply protocol.PingReply
	p.json(&reply, "ping")
	assert.Equal(t, broker.cmd.Process.Pid, reply.PID)
	assert.Zero(t, len(lines(p.must("ls", "sessions", "--json")))-1, "no session")
	broker.signal(syscall.SIGSTOP)
	p.baton("ping").fails(t, 5, "does not answer", "")
	broker.signal(syscall.SIGCONT)
}

// While a broker waits for the clients of the previous one, its endpoint answers and says so.
func TestHTTPAnswersDuringATakeover(t *testing.T) {
	p := newPlace(t)
	first := p.serve()
	_, err := p.client().Topic(p.ctx(), "batches")
	require.NoError(t, err)
	sleeper := p.start(p.command("tail", "batches"))
	p.until("its session is there", func() bool { return p.hasSession("baton tail") })
	sleeper.signal(syscall.SIGSTOP)
	first.signal(syscall.SIGKILL)
	first.wait()
	state, err := os.ReadFile(p.file("baton/state.json"))
	require.NoError(t, err)
	// The next broker cannot look into a process of another pid namespace, so it waits for it.
	state = regexp.MustCompile(`"pid_namespace":\d+`).ReplaceAll(state, []byte(`"pid_namespace":1`))
	require.NoError(t, os.WriteFile(p.file("baton/state.json"), state, 0o600))
	endpoint := p.file("http.sock")
	next := p.launch("--no-nats", "--http", endpoint)
	next.logs("waiting for the clients of the previous broker")
	p.until("the endpoint says so", func() bool { // the log says it a moment before
		code, body := get(t, endpoint, "/readyz")
		assert.Equal(t, 503, code)
		return strings.Contains(body, "taking over")
	})
	code, _ := get(t, endpoint, "/healthz")
	assert.Equal(t, 200, code)
	_, body := get(t, endpoint, "/metrics")
	assert.Contains(t, body, "baton_recovering 1\n")
	r := p.baton("ping", "--ready")
	assert.Equal(t, 1, r.code, r.err)
	assert.Contains(t, r.out, "taking over")
	assert.Zero(t, p.baton("ping").code, "it lives")
	var status brokersLog
	p.json(&status, "status")
	assert.NotNil(t, status.Extra.Log, "it reports its log")
	p.baton("ls", "--timeout", "1ms").fails(t, 5, "waits for the clients of the previous broker", "wait longer")
	sleeper.signal(syscall.SIGCONT)
	next.notice("READY=1")
	code, _ = get(t, endpoint, "/readyz")
	assert.Equal(t, 200, code)
	p.must("ping", "--ready")
}

// A broker that replaces another has the endpoint as soon as the other one has ended.
func TestHTTPAddressPassesToTheNextBroker(t *testing.T) {
	p := newPlace(t)
	endpoint := p.file("http.sock")
	first := p.serve("--http", endpoint)
	p.client()
	second := p.serve("--http", endpoint, "--replace")
	assert.Zero(t, first.wait().code)
	code, _ := get(t, endpoint, "/readyz")
	assert.Equal(t, 200, code)
	var status struct{ PID int }
	p.json(&status, "status")
	assert.Equal(t, second.cmd.Process.Pid, status.PID)
}

// So it is where the next one has the port for more addresses.
func TestHTTPPortPassesToTheNextBroker(t *testing.T) {
	p := newPlace(t)
	port := testkit.HeldPort(t)
	first := p.serve("--http", fmt.Sprintf("127.0.0.1:%d", port))
	p.client()
	p.serve("--http", fmt.Sprintf("0.0.0.0:%d", port), "--http-token-file", p.write("token", "secret\n"), "--replace")
	assert.Zero(t, first.wait().code)
	p.until("the endpoint is the next broker's", func() bool { // which opens it once the previous one has ended
		r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusUnauthorized
	})
}

// Another process may have the address when the previous broker has ended, such as one that waits
// to replace this one in turn.
func TestHTTPOpensOnceTheAddressIsFree(t *testing.T) {
	p := newPlace(t)
	port := testkit.HeldPort(t)
	other, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port))
	require.NoError(t, err)
	first := p.serve("--http", fmt.Sprintf("127.0.0.1:%d", port))
	next := p.launch("--no-nats", "--http", fmt.Sprintf("0.0.0.0:%d", port), "--http-token-file", p.write("token", "secret\n"), "--replace")
	next.logs("the HTTP endpoint cannot be opened")
	assert.Zero(t, first.wait().code)
	require.NoError(t, other.Close())
	next.logs("HTTP endpoint\" address")
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	require.NoError(t, err)
	defer r.Body.Close()
	assert.Equal(t, http.StatusUnauthorized, r.StatusCode)
}

func TestHelpOfServeShowsFlagsInGroups(t *testing.T) {
	p := newPlace(t)
	help := p.must("serve", "--help")
	at := -1
	for _, line := range []string{"\nPlace:\n", "\nLimits:\n", "\nLife:\n", "\nWho may connect:\n", "\nNATS:\n", "\nHTTP:\n", "\nLog:\n", "\nOther flags:\n"} {
		i := strings.Index(help, line)
		require.Greater(t, i, at, line)
		at = i
	}
	assert.NotContains(t, help, "\nFlags:\n")
	assert.NotContains(t, help, "stand-in")
	assert.Regexp(t, `(?s)\nLimits:\n +--memory size .*\n\nLife:`, help)
	assert.NotContains(t, p.must("run", "--help"), "Who may connect")
}

func TestTablesFitTheTerminal(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client(client.WithName(strings.Repeat("long-name-", 4)))
	topic, err := c.Topic(p.ctx(), strings.Repeat("topic/", 12)+"end")
	require.NoError(t, err)
	defer topic.Close()
	whole := p.must("ls", "topics")
	assert.Contains(t, whole, "topic/end")
	assert.Contains(t, whole, "long-name-long-name-long-name-long-name")
	r := p.onTerminal("", 80, "ls", "topics")
	require.Zero(t, r.code)
	for _, line := range lines(strings.ReplaceAll(r.out, "\r", "")) {
		assert.LessOrEqual(t, len([]rune(line)), 80, line)
	}
	assert.Contains(t, r.out, "topic/topic/to")
	assert.Contains(t, r.out, "there is no room for depth, made by", "the least important column goes first")
	wide := p.onTerminal("", 160, "ls", "topics")
	assert.Contains(t, wide.out, "topic/end", "no more is cut than has to be")
	var rows []struct{ Name string }
	require.NoError(t, json.Unmarshal([]byte(p.onTerminal("", 40, "ls", "topics", "--json").out), &rows))
	assert.Contains(t, rows[0].Name, "topic/end")
}

func TestCompactGivesANameMemoryOfItsOwn(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	big, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{1 << 20})
	require.NoError(t, err)
	small, err := big.Slice(0, 5, 15)
	require.NoError(t, err)
	_, err = c.Set(p.ctx(), "w", small)
	require.NoError(t, err)
	big.Release()
	live, err := c.Zeros(p.ctx(), dlpack.Uint8, []int64{1})
	require.NoError(t, err)
	_, err = c.Set(p.ctx(), "live", live, client.Live())
	require.NoError(t, err)
	live.Release()
	assert.Equal(t, "compacted w: revision 2 in place of 1, 10 B; until a program gets it the broker alone has it, and it ends with that unless by serve --replace\n", p.must("compact", "w"))
	var rows []struct {
		Bytes   uint64
		Holders []struct{ Slot int }
	}
	p.json(&rows, "ls", "storages")
	for _, r := range rows {
		assert.Less(t, r.Bytes, uint64(1<<20))
	}
	p.baton("compact", "live").fails(t, 1, "live or ephemeral", "have its setter set it anew")
	p.baton("compact", "nothing").fails(t, 3, `no name "nothing" is set`, "baton ls names")
}

// Every command that changes what a broker has prints with --json what it did.
func TestCommandsThatActTellProgramsWhatTheyDid(t *testing.T) {
	p := newPlace(t)
	broker := p.serve("--memory-dir", p.file("memory"))
	c := p.client()
	x := p.tensor(c, 8)
	for _, name := range []string{"a", "b"} {
		_, err := c.Set(p.ctx(), name, x)
		require.NoError(t, err)
	}
	topic, err := c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	require.NoError(t, topic.Send(p.ctx(), x))
	_, err = x.Handle(p.ctx(), client.LeaseFor(time.Hour))
	require.NoError(t, err)
	var leases []struct{ Lease uint64 }
	p.json(&leases, "ls", "leases")
	require.Len(t, leases, 1)
	for _, of := range []struct {
		args []string
		has  map[string]any
	}{
		{[]string{"compact", "a"}, map[string]any{"name": "a", "revision": 2.0, "before": 1.0}},
		{[]string{"purge", "batches", "--yes"}, map[string]any{"name": "batches", "kind": "topic", "messages": 1.0}},
		{[]string{"delete", "b"}, map[string]any{"name": "b", "kind": "name"}},
		{[]string{"revoke", fmt.Sprint(leases[0].Lease), "--yes"}, map[string]any{"lease": float64(leases[0].Lease)}},
		{[]string{"evict", fmt.Sprint(c.Session()), "--yes"}, map[string]any{"serial": float64(c.Session())}},
	} {
		var all []map[string]any
		p.json(&all, of.args...)
		require.Len(t, all, 1, of.args)
		assert.Subset(t, all[0], of.has, of.args)
	}
	var limits, collected, stopped map[string]any
	p.json(&limits, "limit", "--memory", "1GiB")
	assert.Equal(t, float64(1<<30), limits["memory"])
	p.json(&collected, "collect", "--wait", "0s")
	assert.Contains(t, collected, "granted_bytes_now")
	p.json(&stopped, "stop", "--discard", "--yes")
	assert.Equal(t, map[string]any{"socket": p.socket(), "pid": float64(broker.cmd.Process.Pid), "ended": true, "discarded": true, "forgotten": false}, stopped)
}
