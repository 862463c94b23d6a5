package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

// ports are those at which a broker's endpoint has listened, in their order.
func (s *server) ports() (list []string) {
	for _, m := range regexp.MustCompile(`msg="HTTP endpoint" .*address=\S*:(\d+)`).FindAllStringSubmatch(s.err.String(), -1) {
		list = append(list, m[1])
	}
	return list
}

// port waits for the n-th of them.
func (s *server) port(n int) string {
	s.p.t.Helper()
	s.p.until("it listens at another address", func() bool { return len(s.ports()) >= n })
	return s.ports()[n-1]
}

// state is what the broker would leave to the next one.
func (p *place) state() string {
	p.t.Helper()
	data, err := os.ReadFile(p.file("baton/state.json"))
	require.NoError(p.t, err)
	return string(data)
}

// keyPair writes a certificate for loopback and its key.
func (p *place) keyPair() (cert, key string, roots *x509.CertPool) {
	p.t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(p.t, err)
	about := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &own.PublicKey, own)
	require.NoError(p.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	require.NoError(p.t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	roots = x509.NewCertPool()
	require.True(p.t, roots.AppendCertsFromPEM(text))
	return p.write("cert.pem", string(text)), p.write("key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))), roots
}

// A token guards an address: where the address of a file is another one, the token that it leaves
// out does not open the former.
func TestHupChangesTheHTTPAddressWithWhatGuardsIt(t *testing.T) {
	p := newPlace(t)
	token := p.write("token", "s3cret\n")
	file := p.write("c.toml", fmt.Sprintf("http = \"0.0.0.0:0\"\nhttp-token-file = %q\npprof = true\n", token))
	broker := p.serve("--config", file)
	public := "127.0.0.1:" + broker.port(1)
	code, _ := fetch(t, "http://"+public+"/metrics", "")
	assert.Equal(t, 401, code)

	// An address that cannot be bound changes nothing of the endpoint.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	p.write("c.toml", fmt.Sprintf("http = %q\nidle-exit = \"1h\"\n", taken.Addr()))
	hup(broker)
	broker.logs("the HTTP endpoint stays as it was")
	broker.logs("changed=idle-exit failed=\"http, http-token-file, pprof\"\n")
	for _, path := range []string{"/metrics", "/api/look", "/debug/pprof/cmdline"} {
		code, _ = fetch(t, "http://"+public+path, "")
		assert.Equal(t, 401, code, path)
		code, _ = fetch(t, "http://"+public+path, "s3cret")
		assert.Equal(t, 200, code, path)
	}
	assert.Contains(t, p.state(), "--http=0.0.0.0:0")
	assert.Contains(t, p.state(), "--http-token-file="+token)

	p.write("c.toml", "http = \"127.0.0.1:0\"\n")
	hup(broker)
	broker.logs(`changed="idle-exit, http, http-token-file, pprof"`)
	local := "127.0.0.1:" + broker.port(2)
	code, _ = fetch(t, "http://"+local+"/metrics", "")
	assert.Equal(t, 200, code)
	code, _ = fetch(t, "http://"+local+"/debug/pprof/cmdline", "")
	assert.Equal(t, 404, code)
	_, err = net.Dial("tcp", public)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, "nothing is at the former address")
	assert.Contains(t, p.state(), "--http=127.0.0.1:0")
	assert.NotContains(t, p.state(), "token")

	p.write("c.toml", "")
	hup(broker)
	_, err = net.Dial("tcp", local)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED, "there is no endpoint")
	p.write("c.toml", "http = \"127.0.0.1:0\"\n")
	hup(broker)
	code, _ = fetch(t, "http://127.0.0.1:"+broker.port(3)+"/readyz", "")
	assert.Equal(t, 200, code)
}

// A reload says what the endpoint does: it speaks TLS from then on at the same address, and plain
// HTTP again, and connections from before end.
func TestHupChangesBetweenPlainHTTPAndTLS(t *testing.T) {
	p := newPlace(t)
	cert, key, roots := p.keyPair()
	file := p.write("c.toml", "http = \"127.0.0.1:0\"\n")
	broker := p.serve("--config", file)
	address := "127.0.0.1:" + broker.port(1)
	kept, err := net.Dial("tcp", address) // it may be kept alive, and asks once more
	require.NoError(t, err)
	defer kept.Close()
	ask := func() (int, error) {
		if _, err := fmt.Fprintf(kept, "GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n", address); err != nil {
			return 0, err
		}
		return readStatus(kept)
	}
	code, err := ask()
	require.NoError(t, err)
	require.Equal(t, 200, code)

	token := p.write("token", "s3cret\n")
	p.write("c.toml", fmt.Sprintf("http = \"127.0.0.1:0\"\nhttp-cert = %q\nhttp-key = %q\nhttp-token-file = %q\n", cert, key, token))
	hup(broker)
	broker.logs(`changed="http-token-file, http-cert, http-key"`)
	code, err = ask()
	assert.True(t, err != nil || code == 503, "status %d: it was opened before there was a token", code)
	secure := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer secure.CloseIdleConnections()
	r, err := secure.Get("https://" + address + "/readyz")
	require.NoError(t, err)
	r.Body.Close()
	assert.Equal(t, 200, r.StatusCode)
	code, _ = fetch(t, "http://"+address+"/readyz", "")
	assert.Equal(t, 400, code, "it does not speak plain HTTP")

	p.write("c.toml", "http = \"127.0.0.1:0\"\n")
	hup(broker)
	code, _ = fetch(t, "http://"+address+"/metrics", "")
	assert.Equal(t, 200, code)
}

// readStatus reads one answer that has a length or is in chunks, and returns its status.
func readStatus(c net.Conn) (int, error) {
	c.SetReadDeadline(time.Now().Add(patience))
	var got []byte
	for b := make([]byte, 4096); !strings.HasSuffix(string(got), "\r\n0\r\n\r\n"); {
		n, err := c.Read(b)
		got = append(got, b[:n]...)
		if err != nil {
			return 0, err
		}
	}
	var code int
	_, err := fmt.Sscanf(string(got), "HTTP/1.1 %d", &code)
	return code, err
}

// What waits for a restart is known by what is in force, not by the file that was read last.
func TestHupSaysEachTimeWhatWaitsForARestart(t *testing.T) {
	p := newPlace(t)
	file := p.write("c.toml", "")
	broker := p.serve("--config", file)
	const waits = `these settings wait for a restart" event=steered settings=log-format`
	p.write("c.toml", "log-format = \"json\"\n")
	for n := 1; n <= 2; n++ {
		hup(broker)
		p.until("it says so again", func() bool { return strings.Count(broker.err.String(), waits) == n })
	}
	p.write("c.toml", "memory = \"1GiB\"\n")
	hup(broker)
	broker.logs("changed=memory\n")
	assert.Equal(t, 2, strings.Count(broker.err.String(), waits), "it is as it was again")
}

// HUP makes the file the truth again, whatever was set by hand.
func TestHupTakesAValidFileOverWhateverLimitHasSet(t *testing.T) {
	p := newPlace(t)
	file := p.write("c.toml", "memory = \"1GiB\"\n")
	broker := p.serve("--config", file)
	p.must("limit", "--session-memory", "512M")
	p.write("c.toml", "memory = \"256MiB\"\nallow-uid = [65534]\n")
	hup(broker)
	broker.logs(`changed="allow-uid, memory, session-memory"`)
	var now protocol.LimitReply
	p.json(&now, "limit")
	assert.Equal(t, []uint64{256 << 20, 0}, []uint64{now.Memory, now.SessionMemory})
	assert.NotContains(t, p.state(), "session-memory")

	p.must("limit", "--memory", "64MiB")
	hup(broker)
	p.json(&now, "limit")
	assert.EqualValues(t, 256<<20, now.Memory, "the same file")
	p.write("c.toml", "session-memory = \"500TiB\"\n") // more than the default of all memory, as at a start
	hup(broker)
	p.json(&now, "limit")
	assert.EqualValues(t, 500<<40, now.SessionMemory)
}
