package main_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// A broker that a program starts runs in another directory than the operator's shell, from which
// the names of files were given.
func TestStandInFindsTheFilesOfRelativeNames(t *testing.T) {
	p := newPlace(t)
	p.user()
	p.write("token", "s3cret\n")
	cert, key, _ := p.keyPair()
	p.setenv("BATON_HTTP_KEY", filepath.Base(key))
	endpoint := p.file("http.sock")
	first := p.serve("--http", endpoint, "--http-token-file", "token", "--http-cert", filepath.Base(cert))
	first.signal(syscall.SIGTERM)
	require.Zero(t, first.wait().code)
	require.NoFileExists(t, endpoint)
	_, err := p.userClient(p.ctx())
	require.NoError(t, err)
	assert.FileExists(t, endpoint)
}

// A secret that is gone keeps the recorded settings from starting a broker: the client, doctor
// and stop say so, and stop makes way for other ones.
func TestRecordedSettingsThatStartNoBrokerAreToldAndForgotten(t *testing.T) {
	p := newPlace(t)
	p.user()
	token := p.write("token", "s3cret\n")
	first := p.serve("--http", p.file("http.sock"), "--http-token-file", token)
	assert.Equal(t, "ok", p.findings()["recorded settings"].State)
	first.signal(syscall.SIGTERM)
	require.Zero(t, first.wait().code)
	require.NoError(t, os.Remove(token))

	_, err := client.Connect(p.ctx())
	require.ErrorIs(t, err, protocol.ErrNoBroker)
	for _, text := range []string{"ended at once", filepath.Join(p.dir, "baton/state.json"), "--http-token-file: open " + token + ": no such file", "baton stop"} {
		assert.ErrorContains(t, err, text)
	}
	r := p.baton("doctor")
	assert.Equal(t, 1, r.code)
	assert.Regexp(t, `(?m)^fail +recorded settings +.*--http-token-file: open .*no such file.*\n +→ .*baton stop`, r.out)

	var forgotten map[string]any
	p.json(&forgotten, "stop")
	assert.Equal(t, map[string]any{"socket": p.socket(), "ended": false, "discarded": false, "forgotten": true}, forgotten)
	p.baton("stop").fails(t, 4, "no broker answers", "")
	assert.NotContains(t, p.must("doctor"), "fail ")
	c, err := p.userClient(p.ctx())
	require.NoError(t, err)
	require.NotZero(t, c.Session())
}

// The sessions of a broker that has died are not what stop forgets: the next one takes them over.
func TestStopWithoutABrokerKeepsSessions(t *testing.T) {
	p := newPlace(t)
	first := p.serve("--memory", "64MiB")
	c := p.client()
	was := p.statusOf(c)
	first.signal(syscall.SIGKILL)
	first.wait()
	p.must("stop")
	var st struct {
		Settings   []string
		Supervised bool
		Sessions   []any
	}
	line, _, _ := strings.Cut(p.state(), "\n")
	require.NoError(t, json.Unmarshal([]byte(line), &st))
	assert.Nil(t, st.Settings)
	assert.False(t, st.Supervised)
	p.serve()
	assert.Equal(t, was.Instance, p.statusOf(c).Instance)
}
