package natsbridge_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/protocol"
)

// livingInfo is the content of nats.json of a bridge in this process.
func livingInfo(t testing.TB) map[string]any {
	dir := filepath.Join(t.TempDir(), "run")
	b, err := natsbridge.Start(t.Context(), natsbridge.Config{RuntimeDir: dir})
	require.NoError(t, err)
	data, err := os.ReadFile(filepath.Join(dir, "nats.json"))
	require.NoError(t, err)
	require.NoError(t, b.Close(t.Context()))
	var info map[string]any
	require.NoError(t, json.Unmarshal(data, &info))
	return info
}

func TestReadInfoRefusesWhatCannotBeTrusted(t *testing.T) {
	good := livingInfo(t)
	write := func(t *testing.T, change map[string]any) string {
		t.Helper()
		m := maps.Clone(good)
		maps.Copy(m, change)
		data, err := json.Marshal(m)
		require.NoError(t, err)
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nats.json"), data, 0o600))
		return dir
	}
	_, err := natsbridge.ReadInfo(write(t, map[string]any{"later": "version"}))
	require.NoError(t, err)

	for name, change := range map[string]map[string]any{
		"version": {"v": 2}, "mode": {"mode": "other"}, "scheme": {"url": "http://x"}, "no URL": {"url": ""},
		"no pid": {"pid": 0}, "no boot": {"boot_id": ""}, "type": {"url": 7},
	} {
		_, err := natsbridge.ReadInfo(write(t, change))
		require.ErrorIs(t, err, protocol.ErrProtocol, name)
	}
	for name, change := range map[string]map[string]any{
		"another boot": {"boot_id": "x"}, "no such process": {"pid": 1<<22 + 1}, "pid used again": {"start_time": 1},
	} {
		_, err := natsbridge.ReadInfo(write(t, change))
		require.ErrorIs(t, err, natsbridge.ErrNotRunning, name)
	}
	// A pid of another namespace means nothing here.
	_, err = natsbridge.ReadInfo(write(t, map[string]any{"pid": 1<<22 + 1, "pid_namespace": 1}))
	require.NoError(t, err)

	dir := write(t, nil)
	require.NoError(t, os.Chmod(filepath.Join(dir, "nats.json"), 0o620))
	_, err = natsbridge.ReadInfo(dir)
	require.ErrorContains(t, err, "open to others")

	link := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(write(t, nil), "nats.json"), filepath.Join(link, "nats.json")))
	_, err = natsbridge.ReadInfo(link)
	require.Error(t, err)

	folder := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(folder, "nats.json"), 0o700))
	_, err = natsbridge.ReadInfo(folder)
	require.ErrorContains(t, err, "no regular file")

	big := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(big, "nats.json"), make([]byte, 1<<20), 0o600))
	_, err = natsbridge.ReadInfo(big)
	require.ErrorIs(t, err, protocol.ErrProtocol)
}

func TestReadInfoOfAnEmptyDirectory(t *testing.T) {
	_, err := natsbridge.ReadInfo(t.TempDir())
	require.ErrorIs(t, err, natsbridge.ErrNotRunning)
	require.NotErrorIs(t, err, fs.ErrExist)
}

func TestDamagedInfoStopsNoStart(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nats.json"), []byte("{"), 0o600))
	start(t, natsbridge.Config{RuntimeDir: dir})
	client(t, dir)
}

func FuzzReadInfo(f *testing.F) {
	good, err := json.Marshal(livingInfo(f))
	require.NoError(f, err)
	f.Add(good)
	for _, s := range []string{"", "{}", "[]", "null", `{"v":1}`, `{"v":1,"mode":"embedded","url":"nats://[::1","pid":1,"boot_id":"x"}`,
		`{"v":1,"mode":"joined","url":",,nats://a,b:c@d:5","pid":-1,"boot_id":"x"}`} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nats.json"), data, 0o600))
		info, err := natsbridge.ReadInfo(dir)
		if err != nil {
			return
		}
		require.Equal(t, 1, info.Version)
		require.Contains(t, []string{natsbridge.ModeEmbedded, natsbridge.ModeJoined}, info.Mode)
		require.NotEmpty(t, info.URL)
		require.Positive(t, info.PID)
	})
}

var subjectForm = regexp.MustCompile(`\A[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\z`)

func FuzzPublishSubject(f *testing.F) {
	b, err := natsbridge.Start(f.Context(), natsbridge.Config{RuntimeDir: filepath.Join(f.TempDir(), "run")})
	require.NoError(f, err)
	f.Cleanup(func() { b.Close(context.Background()) })
	for _, s := range []string{"a", "baton.default.topic.x", "a..b", ".", "a.*", ">", "a b", "\x00", "\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, subject string) {
		require.Equal(t, subjectForm.MatchString(subject), b.PublishEach(subject, nil) == 1, "%q", subject)
		require.NoError(t, b.Flush(t.Context()))
		require.True(t, b.Status().Connected)
	})
}
