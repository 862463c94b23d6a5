package natsbridge_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func TestEmbeddedSubscriberReceivesWhatIsPublished(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	s := b.Status()
	require.Equal(t, natsbridge.ModeEmbedded, s.Mode)
	require.True(t, s.Connected)
	require.False(t, s.Since.IsZero())

	sub := subscribe(t, client(t, dir), "baton.default.topic.>")
	require.Equal(t, 1, b.PublishEach("baton.default.topic.batches.train", []byte(`{"v":1}`)))
	m := next(t, sub)
	require.Equal(t, "baton.default.topic.batches.train", m.Subject)
	require.Equal(t, `{"v":1}`, string(m.Data))
	require.NoError(t, b.Flush(deadline(t)))
	require.Equal(t, uint64(1), b.Status().Published)
	require.Zero(t, b.Status().Dropped)
}

func TestPublishKeepsNoReferenceToTheCallersBytes(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	sub := subscribe(t, client(t, dir), "a")
	data := make([]byte, 8)
	const n = 2000
	for i := range n {
		copy(data, fmt.Sprintf("%08d", i))
		require.Equal(t, 1, b.PublishEach("a", data))
	}
	for i := range n {
		require.Equal(t, fmt.Sprintf("%08d", i), string(next(t, sub).Data))
	}
}

func TestSecretsAreForTheUserOnly(t *testing.T) {
	dir := runtimeDir(t)
	start(t, natsbridge.Config{RuntimeDir: dir})
	mode := func(path string) fs.FileMode {
		st, err := os.Stat(path)
		require.NoError(t, err)
		return st.Mode().Perm()
	}
	require.Equal(t, fs.FileMode(0o700), mode(dir))
	require.Equal(t, fs.FileMode(0o600), mode(filepath.Join(dir, "nats.seed")))
	require.Equal(t, fs.FileMode(0o600), mode(filepath.Join(dir, "nats.json")))
	require.Equal(t, fs.FileMode(0o600), mode(filepath.Join(dir, "nats.lock")))

	seed, err := os.ReadFile(filepath.Join(dir, "nats.seed"))
	require.NoError(t, err)
	info, err := os.ReadFile(filepath.Join(dir, "nats.json"))
	require.NoError(t, err)
	require.NotContains(t, string(info), strings.TrimSpace(string(seed)))
}

func TestInfoTellsWhoWroteIt(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), info.PID)
	require.NotEmpty(t, info.BootID)
	require.Equal(t, b.Status().URL, info.URL)
	require.Equal(t, filepath.Join(dir, "nats.seed"), info.Seed)
	u, err := url.Parse(info.URL)
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", u.Hostname())
}

func TestEmbeddedRefusesClientsWithoutTheSeed(t *testing.T) {
	dir := runtimeDir(t)
	start(t, natsbridge.Config{RuntimeDir: dir})
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	_, err = nats.Connect(info.URL, nats.Timeout(patience))
	require.ErrorIs(t, err, nats.ErrAuthorization)

	other, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := other.PublicKey()
	require.NoError(t, err)
	_, err = nats.Connect(info.URL, nats.Timeout(patience), nats.Nkey(public, other.Sign))
	require.ErrorIs(t, err, nats.ErrAuthorization)
}

func TestCloseDeliversWhatWasPublishedAndLeavesNoTrace(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	sub := subscribe(t, client(t, dir), "a")
	const n = 1000
	for range n {
		require.Equal(t, 1, b.PublishEach("a", []byte("x")))
	}
	require.NoError(t, b.Close(deadline(t)))
	for range n {
		next(t, sub)
	}
	require.NoError(t, b.Close(deadline(t)), "a second call")
	require.Zero(t, b.PublishEach("a", nil))
	require.ErrorIs(t, setName(b, "default", "a", 1, nil), protocol.ErrClosed)
	require.ErrorIs(t, b.DeleteName("default", "a"), protocol.ErrClosed)
	require.ErrorIs(t, b.Flush(deadline(t)), natsbridge.ErrDisconnected)
	require.ErrorIs(t, b.Wait(deadline(t), connected), protocol.ErrClosed)
	require.False(t, b.Status().Connected)
	require.False(t, b.Interest("a"))

	require.NoFileExists(t, filepath.Join(dir, "nats.json"))
	_, err := natsbridge.ReadInfo(dir)
	require.ErrorIs(t, err, natsbridge.ErrNotRunning)
	require.ErrorIs(t, err, protocol.ErrNoBroker)
	start(t, natsbridge.Config{RuntimeDir: dir})
}

func TestStartRefusesDirectoryOfALivingBridge(t *testing.T) {
	dir := runtimeDir(t)
	kill := startChild(t, dir)
	_, err := natsbridge.Start(deadline(t), natsbridge.Config{RuntimeDir: dir})
	require.ErrorIs(t, err, natsbridge.ErrLocked)
	require.ErrorIs(t, err, protocol.ErrBusy)
	_, err = natsbridge.ReadInfo(dir)
	require.NoError(t, err, "the refused one left the living one's file alone")
	kill()
	start(t, natsbridge.Config{RuntimeDir: dir})
}

func TestStartRefusesDirectoryThatOthersCanWrite(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o777))
	_, err := natsbridge.Start(deadline(t), natsbridge.Config{RuntimeDir: dir})
	require.ErrorContains(t, err, "written by others")
}

func TestStartRefusesSquattedPort(t *testing.T) {
	cfg := natsbridge.Config{RuntimeDir: runtimeDir(t), Port: testkit.HeldPort(t)}
	squatter, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", cfg.Port))
	require.NoError(t, err)
	defer squatter.Close()
	_, err = natsbridge.Start(deadline(t), cfg)
	require.ErrorIs(t, err, natsbridge.ErrPortTaken)
	require.ErrorIs(t, err, protocol.ErrBusy)
	squatter.Close()
	b := start(t, cfg)
	require.Contains(t, b.Status().URL, fmt.Sprint(cfg.Port))
}

func TestClientFindsSuccessorOfAKilledBridge(t *testing.T) {
	dir := runtimeDir(t)
	kill := startChild(t, dir)
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	back := make(chan struct{}, 1)
	nc, err := info.Connect(nats.Timeout(patience), nats.MaxReconnects(-1), nats.ReconnectWait(time.Millisecond), nats.ReconnectHandler(func(*nats.Conn) { back <- struct{}{} }))
	require.NoError(t, err)
	defer nc.Close()
	sub := subscribe(t, nc, "a")
	kill()
	_, err = natsbridge.ReadInfo(dir)
	require.ErrorIs(t, err, natsbridge.ErrNotRunning, "its file is recognised as stale")

	b := start(t, natsbridge.Config{RuntimeDir: dir})
	require.Equal(t, info.URL, b.Status().URL)
	<-back
	require.NoError(t, nc.Flush())
	require.Equal(t, 1, b.PublishEach("a", []byte("from the successor")))
	require.Equal(t, "from the successor", string(next(t, sub).Data))
}

func TestSuccessorLeavesSquattedPort(t *testing.T) {
	dir := runtimeDir(t)
	kill := startChild(t, dir)
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	kill()
	squatter, err := net.Listen("tcp", strings.TrimPrefix(info.URL, "nats://"))
	require.NoError(t, err)
	defer squatter.Close()
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	require.NotEqual(t, info.URL, b.Status().URL)
	client(t, dir)
}

// A program that takes the port of a broker that is down gets a signature of its own nonce.
func TestSquatterOfThePortLearnsNoSecret(t *testing.T) {
	dir := runtimeDir(t)
	kill := startChild(t, dir)
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	kill()
	seed, err := os.ReadFile(info.Seed)
	require.NoError(t, err)

	squatter, err := net.Listen("tcp", strings.TrimPrefix(info.URL, "nats://"))
	require.NoError(t, err)
	defer squatter.Close()
	heard := make(chan string, 1)
	go func() {
		c, err := squatter.Accept()
		if err != nil {
			heard <- err.Error()
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"auth_required\":true,\"nonce\":\"abcdef\",\"max_payload\":1024}\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		heard <- line
	}()
	_, err = info.Connect(nats.Timeout(patience))
	require.Error(t, err)
	line := <-heard
	require.NotContains(t, line, strings.TrimSpace(string(seed)))
	var connect map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(line, "CONNECT ")), &connect), line)
	require.NotEmpty(t, connect["sig"])
	require.Empty(t, connect["pass"])
	require.Empty(t, connect["auth_token"])
}

func TestSeedStaysUnlessOthersCouldReadIt(t *testing.T) {
	dir := runtimeDir(t)
	path := filepath.Join(dir, "nats.seed")
	life := func() string {
		b := start(t, natsbridge.Config{RuntimeDir: dir})
		client(t, dir)
		require.NoError(t, b.Close(deadline(t)))
		seed, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(seed)
	}
	first := life()
	require.Equal(t, first, life())

	require.NoError(t, os.Chmod(path, 0o644))
	second := life()
	require.NotEqual(t, first, second)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode().Perm())

	require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
	require.NotEqual(t, second, life())
}

func TestEmbeddedRunsWithoutNamesWhenItsStoreIsUnusable(t *testing.T) {
	dir := runtimeDir(t)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nats"), nil, 0o600))
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	sub := subscribe(t, client(t, dir), "a")
	require.Equal(t, 1, b.PublishEach("a", nil))
	next(t, sub)
	require.NoError(t, setName(b, "default", "weights", 1, []byte("{}")))
	s := wait(t, b, func(s natsbridge.Status) bool { return s.Names.Names == 1 })
	require.Equal(t, natsbridge.NamesUnavailable, s.Names.State)
	require.NotEmpty(t, s.Names.Error)
}

func TestCloseThatMayNotWaitSaysSoAndStillEnds(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := b.Close(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { // nothing tells when the server has ended
		b, err := natsbridge.Start(deadline(t), natsbridge.Config{RuntimeDir: dir})
		if err != nil {
			require.ErrorIs(t, err, natsbridge.ErrLocked)
			return false
		}
		return b.Close(deadline(t)) == nil
	}, patience, patience/1000)
}

func TestStartThatMayNotWaitLeavesNothing(t *testing.T) {
	dir := runtimeDir(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 { // it may be ready before it looks
		b, err := natsbridge.Start(ctx, natsbridge.Config{RuntimeDir: dir})
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
			continue
		}
		require.NoError(t, b.Close(deadline(t)))
	}
	start(t, natsbridge.Config{RuntimeDir: dir})
}

func TestPublishRefusesSubjectsThatAreNotTokens(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	sub := subscribe(t, client(t, dir), ">")
	bad := []string{"", ".", "a.", ".a", "a..b", "a.*", "a.>", ">", "a b", "a\tb", "a\r\nPUB x 0\r\n", "a/b", "ä", "$SYS.x"}
	for _, s := range bad {
		require.Zero(t, b.PublishEach(s, nil), "%q", s)
	}
	require.Equal(t, uint64(len(bad)), b.Status().Dropped)
	require.Equal(t, 1, b.PublishEach("A-z_0.9", nil))
	require.Equal(t, "A-z_0.9", next(t, sub).Subject)
}

func TestPublishRefusesMoreThanTheServerTakes(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	sub := subscribe(t, client(t, dir), "a")
	require.Zero(t, b.PublishEach("a", make([]byte, 1<<20+1)))
	require.Equal(t, 1, b.PublishEach("a", make([]byte, 1<<20)))
	require.Len(t, next(t, sub).Data, 1<<20)
	require.True(t, b.Status().Connected)
}

func TestStartRefusesWrongSettings(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("nothing useful"), 0o600))
	join := func(j natsbridge.JoinConfig) natsbridge.Config {
		return natsbridge.Config{RuntimeDir: filepath.Join(dir, "run"), Owner: "a", Join: &j}
	}
	ok := []string{"nats://127.0.0.1:1"}
	cases := map[string]natsbridge.Config{
		"no directory":         {},
		"port":                 {RuntimeDir: dir, Port: 65536},
		"negative limit":       {RuntimeDir: dir, MaxStore: -1},
		"owner with a newline": {RuntimeDir: dir, Owner: "a\r\nb: c"},
		"no owner":             {RuntimeDir: dir, Join: &natsbridge.JoinConfig{URLs: ok}},
		"no URL":               join(natsbridge.JoinConfig{}),
		"http":                 join(natsbridge.JoinConfig{URLs: []string{"http://x"}}),
		"path":                 join(natsbridge.JoinConfig{URLs: []string{"nats://x/y"}}),
		"no host":              join(natsbridge.JoinConfig{URLs: []string{"nats://:4222"}}),
		"unreadable URL":       join(natsbridge.JoinConfig{URLs: []string{"nats://joe:hunter2@x:y:z"}}),
		"no creds file":        join(natsbridge.JoinConfig{URLs: ok, Creds: file + "x"}),
		"creds":                join(natsbridge.JoinConfig{URLs: ok, Creds: file}),
		"seed":                 join(natsbridge.JoinConfig{URLs: ok, Seed: file}),
		"password alone":       join(natsbridge.JoinConfig{URLs: ok, Password: "hunter2"}),
		"CA":                   join(natsbridge.JoinConfig{URLs: ok, CA: file}),
		"certificate alone":    join(natsbridge.JoinConfig{URLs: ok, Cert: file}),
		"certificate":          join(natsbridge.JoinConfig{URLs: ok, Cert: file, Key: file}),
	}
	for name, cfg := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := natsbridge.Start(deadline(t), cfg)
			require.ErrorIs(t, err, natsbridge.ErrConfig)
			require.ErrorIs(t, err, protocol.ErrInvalid)
			require.NotContains(t, err.Error(), "hunter2")
			require.NoFileExists(t, filepath.Join(dir, "run", "nats.lock"))
		})
	}
}
