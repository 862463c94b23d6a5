package natsbridge_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/internal/testkit"
)

// authority signs certificates for one test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign writes NAME.pem and NAME.key.
func (a *authority) sign(name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.Subject = pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, parentKey := a.cert, a.key
	if parent == nil {
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	require.NoError(a.t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	require.NoError(a.t, os.WriteFile(a.file(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(a.t, os.WriteFile(a.file(name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	out, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return out, key
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// serverTLS makes a server want TLS, and certificates of its clients if verify.
func (a *authority) serverTLS(verify bool) *tls.Config {
	a.t.Helper()
	a.sign("server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	c, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: a.file("server.pem"), KeyFile: a.file("server.key"),
		CaFile: a.file("ca.pem"), Verify: verify, Timeout: patience.Seconds()})
	require.NoError(a.t, err)
	return c
}

// secureOperator is a server with a user and TLS.
func secureOperator(t *testing.T, a *authority) *operator {
	return startOperator(t, func(o *server.Options) {
		o.TLSConfig, o.TLSTimeout = a.serverTLS(false), patience.Seconds()
		o.Username, o.Password = "joe", "hunter2"
	})
}

func (o *operator) client(opts ...nats.Option) *nats.Conn {
	o.t.Helper()
	nc, err := nats.Connect(o.ClientURL(), append(opts, nats.Timeout(patience))...)
	require.NoError(o.t, err)
	o.t.Cleanup(nc.Close)
	return nc
}

func TestJoinWithUserAndTLS(t *testing.T) {
	a := newAuthority(t)
	o := secureOperator(t, a)
	dir := runtimeDir(t)
	var log lockedBuffer
	b := start(t, natsbridge.Config{RuntimeDir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}, User: "joe", Password: "hunter2", CA: a.file("ca.pem")}})
	s := wait(t, b, connected)
	require.Equal(t, natsbridge.ModeJoined, s.Mode)
	sub := subscribe(t, o.client(nats.UserInfo("joe", "hunter2"), nats.RootCAs(a.file("ca.pem"))), "baton.>")
	require.Equal(t, 1, b.PublishEach("baton.default.topic.a", []byte("hello")))
	require.Equal(t, "hello", string(next(t, sub).Data))

	// Other clients that know the password may connect in the same way. The password is shown nowhere.
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	require.Equal(t, "joe", info.User)
	nc, err := info.Connect(nats.Timeout(patience), nats.UserInfo("joe", "hunter2"))
	require.NoError(t, err)
	nc.Close()
	shown, err := json.Marshal(b.Status())
	require.NoError(t, err)
	written, err := os.ReadFile(filepath.Join(dir, "nats.json"))
	require.NoError(t, err)
	require.NoError(t, b.Close(deadline(t)))
	for _, text := range []string{string(shown), string(written), log.String()} {
		require.NotContains(t, text, "hunter2")
	}
	require.NoDirExists(t, filepath.Join(dir, "nats"), "no server of our own")
}

func TestJoinConfigIsLoggedWithoutSecrets(t *testing.T) {
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "join", &natsbridge.JoinConfig{
		URLs: []string{"nats://joe:hunter2@h:1", "nats://token7@h:2"}, User: "joe", Password: "hunter3"})
	require.NotContains(t, log.String(), "hunter")
	require.NotContains(t, log.String(), "token7")
	require.Contains(t, log.String(), "nats://h:1,nats://h:2")
}

func TestJoinWithCredentialsInTheURL(t *testing.T) {
	o := startOperator(t, func(o *server.Options) { o.Username, o.Password = "joe", "hunter2" })
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir,
		Join: &natsbridge.JoinConfig{URLs: []string{fmt.Sprintf("nats://joe:hunter2@127.0.0.1:%d", o.opts.Port)}}})
	s := wait(t, b, connected)
	require.Equal(t, fmt.Sprintf("nats://127.0.0.1:%d", o.opts.Port), s.URL)
	info, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	require.Equal(t, s.URL, info.URL)
}

func TestJoinWithClientCertificate(t *testing.T) {
	a := newAuthority(t)
	o := startOperator(t, func(o *server.Options) {
		o.TLSConfig, o.TLSTimeout, o.TLSVerify = a.serverTLS(true), patience.Seconds(), true
	})
	a.sign("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	join := natsbridge.JoinConfig{URLs: []string{fmt.Sprintf("tls://127.0.0.1:%d", o.opts.Port)},
		CA: a.file("ca.pem"), Cert: a.file("client.pem"), Key: a.file("client.key")}
	dir := runtimeDir(t)
	wait(t, start(t, natsbridge.Config{RuntimeDir: dir, Join: &join}), connected)
	client(t, dir)

	join.Cert, join.Key = "", ""
	b := start(t, natsbridge.Config{Join: &join})
	wait(t, b, func(s natsbridge.Status) bool { return s.LastError != "" })
	require.False(t, b.Status().Connected)
}

func TestJoinWithTLSBeforeAnythingElse(t *testing.T) {
	a := newAuthority(t)
	o := startOperator(t, func(o *server.Options) {
		o.TLSConfig, o.TLSTimeout, o.TLSHandshakeFirst = a.serverTLS(false), patience.Seconds(), true
	})
	wait(t, start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()},
		CA: a.file("ca.pem"), TLSFirst: true}}), connected)
}

func TestJoinRefusesServerOfAnotherAuthority(t *testing.T) {
	o := secureOperator(t, newAuthority(t))
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}, User: "joe", Password: "hunter2",
		CA: newAuthority(t).file("ca.pem")}})
	s := wait(t, b, func(s natsbridge.Status) bool { return s.LastError != "" })
	require.Contains(t, s.LastError, "certificate")
	require.False(t, s.Connected)
	require.Zero(t, b.PublishEach("a", nil))
}

func TestJoinWithNkeySeed(t *testing.T) {
	key, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := key.PublicKey()
	require.NoError(t, err)
	seed, err := key.Seed()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "operator.nk")
	require.NoError(t, os.WriteFile(file, seed, 0o600))
	o := startOperator(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} })
	dir := runtimeDir(t)
	wait(t, start(t, natsbridge.Config{RuntimeDir: dir, Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}, Seed: file}}), connected)
	client(t, dir)
}

func TestJoinWithCredentialsFile(t *testing.T) {
	operatorKey, err := nkeys.CreateOperator()
	require.NoError(t, err)
	accountKey, err := nkeys.CreateAccount()
	require.NoError(t, err)
	userKey, err := nkeys.CreateUser()
	require.NoError(t, err)
	public := func(k nkeys.KeyPair) string {
		p, err := k.PublicKey()
		require.NoError(t, err)
		return p
	}
	accountJWT, err := jwt.NewAccountClaims(public(accountKey)).Encode(operatorKey)
	require.NoError(t, err)
	userJWT, err := jwt.NewUserClaims(public(userKey)).Encode(accountKey)
	require.NoError(t, err)
	seed, err := userKey.Seed()
	require.NoError(t, err)
	creds, err := jwt.FormatUserConfig(userJWT, seed)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "joe.creds")
	require.NoError(t, os.WriteFile(file, creds, 0o600))
	claims := jwt.NewOperatorClaims(public(operatorKey))
	resolver := &server.MemAccResolver{}
	require.NoError(t, resolver.Store(public(accountKey), accountJWT))
	o := startOperator(t, func(o *server.Options) {
		o.JetStream = false
		o.TrustedOperators = []*jwt.OperatorClaims{claims}
		o.AccountResolver = resolver
	})
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir, Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}, Creds: file}})
	wait(t, b, connected)
	sub := subscribe(t, client(t, dir), "a")
	require.Equal(t, 1, b.PublishEach("a", nil))
	next(t, sub)
}

func TestJoinWithWrongPasswordTellsAndGoesOnTrying(t *testing.T) {
	o := startOperator(t, func(o *server.Options) { o.Username, o.Password = "joe", "new" })
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}, User: "joe", Password: "old"}})
	s := wait(t, b, func(s natsbridge.Status) bool { return s.LastError != "" })
	require.False(t, s.Connected)
	require.Contains(t, s.LastError, "Authorization")
	require.NotNil(t, s.LastErrorAt)
	require.Zero(t, b.PublishEach("a", nil))
	require.Equal(t, uint64(1), b.Status().Dropped)
	require.ErrorIs(t, b.Flush(deadline(t)), natsbridge.ErrDisconnected)
	require.NoError(t, setName(b, "default", "a", 1, nil), "local work goes on")

	// The operator gives the old password back.
	o.stop()
	o.opts.Password = "old"
	o.start()
	wait(t, b, connected)
	wait(t, b, mirrored)
	require.Equal(t, 1, b.PublishEach("a", nil))
}

// The error of the first attempt must not hide that of later ones.
func TestJoinTellsOfWrongPasswordFoundAfterTheServerWasAway(t *testing.T) {
	o := startOperator(t, func(o *server.Options) { o.Username, o.Password = "joe", "new" })
	o.stop()
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{
		URLs: []string{fmt.Sprintf("nats://127.0.0.1:%d", o.opts.Port)}, User: "joe", Password: "old"}})
	s := wait(t, b, func(s natsbridge.Status) bool { return s.LastError != "" })
	require.Contains(t, s.LastError, "refused")
	o.start()
	wait(t, b, func(s natsbridge.Status) bool { return strings.Contains(s.LastError, "Authorization Violation") })
}

func TestJoinSurvivesServerRestartAndSendsNothingOld(t *testing.T) {
	o := startOperator(t, nil)
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	before := wait(t, b, connected)
	o.stop()
	s := wait(t, b, disconnected)
	require.True(t, s.Since.After(before.Since))
	require.Zero(t, b.PublishEach("a", []byte("stale")))
	require.ErrorIs(t, b.Flush(deadline(t)), natsbridge.ErrDisconnected)

	o.opts.DontListen = true
	o.start() // first for the subscriber alone, so that it misses nothing
	nc, err := nats.Connect("", nats.Timeout(patience), nats.InProcessServer(o.Server))
	require.NoError(t, err)
	defer nc.Close()
	sub := subscribe(t, nc, "a")
	go o.AcceptLoop(make(chan struct{}))
	s = wait(t, b, connected)
	require.Equal(t, uint64(1), s.Reconnects)
	require.Equal(t, 1, b.PublishEach("a", []byte("fresh")))
	require.Equal(t, "fresh", string(next(t, sub).Data))
	require.Equal(t, uint64(1), b.Status().Dropped)
}

func TestUnreachableServerStopsNothing(t *testing.T) {
	url := fmt.Sprintf("nats://127.0.0.1:%d", testkit.HeldPort(t))
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir, Join: &natsbridge.JoinConfig{URLs: []string{url}}})
	require.Zero(t, b.PublishEach("a", nil))
	require.NoError(t, setName(b, "default", "weights", 1, []byte("{}")))
	require.NoError(t, b.DeleteName("default", "weights"))
	s := wait(t, b, func(s natsbridge.Status) bool { return s.LastError != "" })
	require.Contains(t, s.LastError, "refused")
	require.Equal(t, url, s.URL)
	_, err := natsbridge.ReadInfo(dir)
	require.NoError(t, err)
	require.NoError(t, b.Close(deadline(t)), "nothing could be sent, and that is no failure")
}

// fakeServer accepts connections and leaves each to serve, in a goroutine of its own
// that ends with the test.
func fakeServer(t *testing.T, serve func(n int, c net.Conn, stop <-chan struct{})) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	stop := make(chan struct{})
	var all sync.WaitGroup
	t.Cleanup(func() {
		close(stop)
		l.Close()
		all.Wait()
	})
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				serve(n, c, stop)
			})
		}
	})
	return "nats://" + l.Addr().String()
}

// greet makes a client believe that it is connected.
func greet(c net.Conn) {
	fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"max_payload\":1048576,\"headers\":true,\"proto\":1}\r\n")
	var got []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(got, []byte("PING\r\n")) {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		got = append(got, buf[:n]...)
	}
	fmt.Fprintf(c, "PONG\r\n")
}

// Close must not wait for a server that accepts and then says nothing.
func TestCloseWhileServerIsSilent(t *testing.T) {
	accepted := make(chan struct{}, 1)
	url := fakeServer(t, func(n int, _ net.Conn, stop <-chan struct{}) {
		if n == 0 {
			accepted <- struct{}{}
		}
		<-stop
	})
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{url}}})
	<-accepted
	require.NoError(t, b.Close(deadline(t)))
}

// A server that no longer reads fills the queue; then Publish refuses at once.
func TestPublishRefusesWhenServerDoesNotRead(t *testing.T) {
	url := fakeServer(t, func(_ int, c net.Conn, stop <-chan struct{}) {
		greet(c)
		<-stop
	})
	b := start(t, natsbridge.Config{QueueBytes: 1 << 20, Join: &natsbridge.JoinConfig{URLs: []string{url}}})
	wait(t, b, connected)
	data := make([]byte, 64<<10)
	refused := false
	for i := 0; i < 1<<14 && !refused; i++ { // 1 GiB: more than any socket buffers
		refused = b.PublishEach("a", data) == 0
	}
	require.True(t, refused)
	require.NotZero(t, b.Status().Dropped)
	ctx, cancel := context.WithCancel(deadline(t))
	cancel()
	require.ErrorIs(t, b.Flush(ctx), context.Canceled)
	require.ErrorIs(t, b.Close(ctx), context.Canceled, "what is queued cannot be sent")
}

// What is listed anew while the server reads nothing waits for it; Close does not wait for that.
func TestCloseWhileServiceWaitsForServer(t *testing.T) {
	url := fakeServer(t, func(_ int, c net.Conn, stop <-chan struct{}) {
		greet(c)
		<-stop
	})
	b := start(t, natsbridge.Config{
		QueueBytes: 1 << 20, Call: func(natsbridge.Function, natsbridge.FunctionRequest) {},
		Join: &natsbridge.JoinConfig{URLs: []string{url}},
	})
	wait(t, b, connected)
	data := make([]byte, 64<<10)
	for b.PublishEach("a", data) != 0 {
	}
	go func() {
		for i := range 1 << 12 { // more than nats.go puts into its buffer
			b.Functions([]natsbridge.Function{{Namespace: "default", Name: fmt.Sprint("f", i)}})
		}
	}()
	buf := make([]byte, 1<<20)
	require.Eventually(t, func() bool { // the listing waits for the lock of the connection, or writes
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			state, _, _ := strings.Cut(g, "\n")
			if strings.Contains(g, "(*service).update") && (strings.Contains(state, "Mutex") || strings.Contains(state, "IO wait")) {
				return true
			}
		}
		return false
	}, 10*time.Second, time.Millisecond)
	ctx, cancel := context.WithCancel(deadline(t))
	cancel()
	require.ErrorIs(t, b.Close(ctx), context.Canceled)
}

// At some errors of the server nats.go gives the connection up for good.
func TestConnectionGivenUpIsMadeAnew(t *testing.T) {
	connected := make(chan struct{})
	url := fakeServer(t, func(n int, c net.Conn, stop <-chan struct{}) {
		greet(c)
		if n == 0 {
			<-connected // else it is the first connection that is made anew, which counts as none
			fmt.Fprintf(c, "-ERR 'Something Unheard Of'\r\n")
		}
		<-stop
	})
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{url}}})
	wait(t, b, func(s natsbridge.Status) bool { return s.Connected })
	close(connected)
	s := wait(t, b, func(s natsbridge.Status) bool { return s.Reconnects == 1 })
	require.True(t, s.Connected)
	require.Contains(t, s.LastError, "Something Unheard Of")
	require.Equal(t, 1, b.PublishEach("a", nil))
	ctx, cancel := context.WithCancel(deadline(t))
	cancel()
	require.ErrorIs(t, b.Close(ctx), context.Canceled, "this server confirms nothing")
}

// What a server sends that is no NATS at all ends in an error, not in a crash.
func TestServerThatTalksNonsense(t *testing.T) {
	for _, nonsense := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", "INFO {\r\n", "INFO {\"max_payload\":-1}\r\nPONG\r\nMSG x\r\n",
		"\x00\x01\x02\r\n", string(make([]byte, 1<<16))} {
		url := fakeServer(t, func(_ int, c net.Conn, _ <-chan struct{}) { fmt.Fprint(c, nonsense) })
		b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{url}}})
		wait(t, b, func(s natsbridge.Status) bool { return s.LastError != "" })
		require.Zero(t, b.PublishEach("a", []byte("x")))
		require.NoError(t, b.Close(deadline(t)))
	}
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
