package main_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A process that reaches the address may open connections and say nothing. They take no descriptor that
// a session needs, and none of them keeps a probe out.
func TestSilentHTTPConnectionsLeaveRoomForSessions(t *testing.T) {
	p := newPlace(t)
	broker := p.serveIn("ulimit -n 512", "--no-nats", "--http", "127.0.0.1:0")
	address := "127.0.0.1:" + broker.port(1)
	for range 480 {
		c, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte("GET /metrics HTTP/1.1\r\n")) // and never the rest
		require.NoError(t, err)
	}
	for range 3 {
		c := p.client()
		_, err := c.Queue(p.ctx(), "work")
		require.NoError(t, err)
		bundle(p, c, "weights")
	}
	code, _ := fetch(t, "http://"+address+"/healthz", "")
	assert.Equal(t, 200, code)
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", broker.cmd.Process.Pid))
	require.NoError(t, err)
	assert.Less(t, len(files), 100)
}

// A page of another site whose name leads to this machine gets nothing, unless it has the token.
func TestHTTPWithoutATokenAnswersToNoForeignName(t *testing.T) {
	p := newPlace(t)
	ask := func(broker *server, host, path string) int {
		r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+broker.port(1)+path, nil)
		require.NoError(t, err)
		r.Host = host
		a, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		a.Body.Close()
		return a.StatusCode
	}
	broker := p.serve("--http", "127.0.0.1:0", "--pprof")
	for host, code := range map[string]int{"rebound.example": 403, "rebound.example:80": 403, "localhost.example": 403,
		"localhost:1234": 200, "LOCALHOST": 200, "127.0.0.1": 200, "[::1]:80": 200, "10.1.2.3:80": 200} {
		for _, path := range []string{"/", "/metrics", "/api/look", "/debug/pprof/cmdline"} {
			assert.Equal(t, code, ask(broker, host, path), "%s %s", host, path)
		}
		assert.Equal(t, 200, ask(broker, host, "/healthz"), "a probe says no more than yes")
	}
	broker.signal(syscall.SIGTERM)
	broker.wait()
	broker = p.serve("--http", "127.0.0.1:0", "--http-token-file", p.write("token", "s3cret"))
	assert.Equal(t, 401, ask(broker, "trainer.example", "/metrics"), "its guard is the token")
}
