package settings_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
)

// load makes settings from a command line, an environment and a file's content.
func load(t *testing.T, args []string, env map[string]string, file string) (*settings.Settings, error) {
	t.Helper()
	return loadFor(t, true, args, env, file)
}

func loadFor(t *testing.T, listen bool, args []string, env map[string]string, file string) (*settings.Settings, error) {
	t.Helper()
	dir := t.TempDir()
	if file != "" {
		require.NoError(t, os.Mkdir(filepath.Join(dir, "baton"), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "baton", "baton.toml"), []byte(file), 0o600))
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s := settings.Define(flags, listen)
	require.NoError(t, flags.Parse(args))
	return s, s.Load(func(key string) string {
		if key == "XDG_CONFIG_HOME" {
			return dir
		}
		return env[key]
	})
}

func TestFlagWinsOverEnvironmentOverFileOverDefault(t *testing.T) {
	env := map[string]string{"BATON_MEMORY": "2G", "BATON_SESSION_MEMORY": "200M"}
	file := "memory = \"3G\"\nsession-memory = \"300M\"\nidle-exit = \"3m\"\n"
	s, err := load(t, []string{"--memory", "1G"}, env, file)
	require.NoError(t, err)
	assert.Equal(t, uint64(1<<30), s.Memory)
	assert.Equal(t, uint64(200<<20), s.SessionMemory)
	assert.Equal(t, 3*time.Minute, s.IdleExit)
	assert.Equal(t, 10*time.Second, s.DrainTimeout)
	for key, want := range map[string]string{"memory": "flag", "session-memory": "environment", "idle-exit": "file", "drain-timeout": "default"} {
		assert.Equal(t, want, s.Source(key), key)
	}
}

func TestFileMayBeginWithAByteOrderMark(t *testing.T) {
	s, err := load(t, nil, nil, "\ufeffmemory = \"3G\"\n")
	require.NoError(t, err)
	assert.Equal(t, uint64(3<<30), s.Memory)
}

func TestFileHoldsEveryKindOfValue(t *testing.T) {
	s, err := load(t, nil, nil, `
memory = 1073741824
allow-uid = [1000, 1001]
no-nats = true
log-level = "debug"
log-format = "json"
socket-mode = "0660"
memory-dir = "/dev/shm"
`)
	require.NoError(t, err)
	assert.Equal(t, uint64(1<<30), s.Memory)
	assert.Equal(t, []uint32{1000, 1001}, s.AllowUIDs)
	assert.True(t, s.NoNATS)
	assert.Equal(t, slog.LevelDebug, s.LogLevel)
	assert.Equal(t, "json", s.LogFormat)
	assert.Equal(t, os.FileMode(0o660), s.SocketMode)
	assert.Equal(t, "/dev/shm", s.MemoryDir)
}

func TestMistakesAreToldWithTheirPlace(t *testing.T) {
	for _, c := range []struct {
		name, env, value, file string
		place, text            string
	}{
		{name: "environment", env: "BATON_MEMORY", value: "lots", place: "$BATON_MEMORY", text: "is not a size"},
		{name: "file value", file: "memory = \"lots\"", place: "memory in ", text: "is not a size"},
		{name: "file type", file: "[memory]\nsize = 1", place: "memory in ", text: "top level"},
		{name: "file date", file: "memory = 2020-01-01T00:00:00Z", place: "memory in ", text: "a date is no setting"},
		{name: "unknown key", file: "ram = 1", place: "ram in ", text: "no such setting"},
		{name: "config in config", file: "config = \"x\"", place: "config in ", text: "no such setting"},
		{name: "syntax", file: "memory = \n", place: "baton.toml:1:", text: "toml"},
		{name: "truth value", file: "no-nats = \"perhaps\"", place: "no-nats in ", text: "perhaps"},
		{name: "missing file", env: "BATON_CONFIG", value: "/nowhere/b.toml", place: "$BATON_CONFIG", text: "no such file"},
		{name: "combination", env: "BATON_NATS_USER", value: "me", place: "$BATON_NATS_USER", text: "--nats URL too"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := load(t, nil, map[string]string{c.env: c.value}, c.file)
			var e *settings.Error
			require.ErrorAs(t, err, &e)
			assert.Contains(t, e.Place, c.place)
			assert.Contains(t, err.Error(), c.text)
		})
	}
}

func TestAMistakeInTheFileIsToldEvenWhereAFlagWins(t *testing.T) {
	_, err := load(t, []string{"--memory", "1G"}, nil, "memory = \"lots\"")
	var e *settings.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "memory", e.Key)
}

func TestOneFileServesServeAndRun(t *testing.T) {
	file := "idle-exit = \"3m\"\nmemory = \"1G\"\n"
	s, err := loadFor(t, false, nil, nil, file)
	require.NoError(t, err)
	assert.Equal(t, uint64(1<<30), s.Memory)
	assert.Zero(t, s.IdleExit)
	_, err = loadFor(t, false, nil, nil, "idle-exits = 1")
	assert.Error(t, err)
}

func TestPasswordsAreHidden(t *testing.T) {
	s, err := load(t, []string{"--nats", "nats://u:pw1@h:1,tls://tok@i:2,j:3", "--nats-user", "u", "--nats-password", "pw2"}, nil, "")
	require.NoError(t, err)
	for _, l := range s.Lines() {
		assert.NotContains(t, l.Value, "pw")
		assert.NotContains(t, l.Value, "tok")
		if l.Key == "nats" {
			assert.Equal(t, "nats://h:1,tls://i:2,j:3", l.Value)
		}
	}
}

func TestReloadKeepsFlagsAndReadsTheRestAnew(t *testing.T) {
	env := map[string]string{"BATON_LOG_LEVEL": "warn"}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	s := settings.Define(flags, true)
	require.NoError(t, flags.Parse([]string{"--memory", "1G", "--allow-uid", "5", "--allow-uid", "6"}))
	getenv := func(key string) string { return env[key] }
	require.NoError(t, s.Load(getenv))
	env["BATON_LOG_LEVEL"], env["BATON_MEMORY"], env["BATON_IDLE_EXIT"] = "error", "2G", "1m"
	next, err := s.Reload(getenv, nil)
	require.NoError(t, err)
	assert.Equal(t, uint64(1<<30), next.Memory)
	assert.Equal(t, []uint32{5, 6}, next.AllowUIDs)
	assert.Equal(t, slog.LevelError, next.LogLevel)
	assert.Equal(t, slog.LevelWarn, s.LogLevel, "the former settings stay")
	var changed []string
	for key, value := range next.Values() {
		if s.Values()[key] != value {
			changed = append(changed, key)
		}
	}
	assert.ElementsMatch(t, []string{"log-level", "idle-exit"}, changed)

	env["BATON_LOG_LEVEL"] = "loud"
	_, err = s.Reload(getenv, nil)
	assert.Error(t, err)
}

// A broker that a client starts reads recorded settings in another directory. What is a plain
// text here is no path.
func TestEveryPathIsAbsoluteOrRefused(t *testing.T) {
	texts := []string{"nats", "nats-user", "nats-password", "data-listen"}
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("there", []byte("x"), 0o600))
	here, err := filepath.Abs("there")
	require.NoError(t, err)
	define := func() (*pflag.FlagSet, *settings.Settings) {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		return flags, settings.Define(flags, true)
	}
	flags, _ := define()
	flags.VisitAll(func(f *pflag.Flag) {
		if t := f.Value.Type(); t != "string" && t != "file" || slices.Contains(texts, f.Name) {
			return
		}
		flags, s := define()
		require.NoError(t, flags.Set(f.Name, "there"))
		if got := flags.Lookup(f.Name).Value.String(); got != "there" {
			assert.Equal(t, here, got, f.Name)
			return
		}
		err := s.Load(func(string) string { return "" })
		assert.Regexp(t, "not an absolute path|neither a socket path", err, "%s: give it a kind, or name it above", f.Name)
	})
}

func TestEveryFlagIsInOneGroup(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	settings.Define(flags, true)
	var grouped, defined []string
	for _, g := range settings.Groups {
		grouped = append(grouped, g.Keys...)
	}
	flags.VisitAll(func(f *pflag.Flag) { defined = append(defined, f.Name) })
	assert.ElementsMatch(t, defined, grouped)
}

func TestSharedBrokerIsReachedByOthersUnlessToldOtherwise(t *testing.T) {
	s, err := load(t, []string{"--shared", "--allow-uid", "7"}, nil, "")
	require.NoError(t, err)
	assert.Equal(t, settings.SharedSocket, s.Socket)
	assert.Equal(t, os.FileMode(0o666), s.SocketMode)
	s, err = load(t, []string{"--shared", "--observe-group", "0"}, map[string]string{"BATON_SOCKET_MODE": "0660"}, "address = \"/srv/b/b.sock\"")
	require.NoError(t, err)
	assert.Equal(t, "/srv/b/b.sock", s.Socket)
	assert.Equal(t, os.FileMode(0o660), s.SocketMode)
	_, err = load(t, []string{"--shared"}, nil, "")
	assert.ErrorContains(t, err, "--shared: no other user may connect")
}

func TestGroupsAreGivenByNameOrNumber(t *testing.T) {
	s, err := load(t, []string{"--allow-group", "root", "--allow-group", "12,13"}, nil, "observe-group = []")
	require.NoError(t, err)
	assert.Equal(t, []uint32{0, 12, 13}, s.AllowGIDs)
	assert.Empty(t, s.ObserveGIDs)
	for _, wrong := range []string{"no such group", "4294967295"} {
		_, err = load(t, nil, map[string]string{"BATON_ALLOW_GROUP": wrong}, "")
		assert.ErrorContains(t, err, "$BATON_ALLOW_GROUP: ")
		assert.ErrorContains(t, err, "group")
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "1": 1, "1073741824": 1 << 30, "1G": 1 << 30, "1Gi": 1 << 30, "1GiB": 1 << 30, "1 gib": 1 << 30, "1GB": 1e9,
		"1.5K": 1536, " 2M ": 2 << 20, "16TiB": 16 << 40, "18446744073709551615": 1<<64 - 1, "512b": 512,
		"1PiB": 1 << 50, "2P": 2 << 50, "3pi": 3 << 50, "1PB": 1e15, "15EiB": 15 << 60, "15E": 15 << 60, "18EB": 18e18, "1kb": 1000, "1.5PiB": 3 << 49, "8.5EiB": 17 << 59,
	} {
		n, err := settings.ParseSize(text)
		assert.NoError(t, err, text)
		assert.Equal(t, want, n, text)
	}
	for _, text := range []string{"", "G", "-1", "1X", "1GiBs", "1e3", "18446744073709551616", "16777216TiB", "1.2.3", "0x10", "nan", "99999999999999999999G", "0.0001", "0.5b"} {
		_, err := settings.ParseSize(text)
		assert.Error(t, err, text)
	}
	const units = "KiB, MiB, GiB, TiB, PiB and EiB (or K, M and so on) for powers of 1024, KB, MB, GB, TB, PB and EB for powers of 1000"
	for text, why := range map[string]string{"16EiB": "beyond 64 bits", "19EB": "beyond 64 bits", "16.5EiB": "beyond 64 bits", strings.Repeat("9", 400): "beyond 64 bits",
		"3XB": "no unit that is known", "1ZiB": "no unit that is known", "GiB": "is not a size"} {
		_, err := settings.ParseSize(text)
		assert.ErrorContains(t, err, why, text)
		assert.ErrorContains(t, err, units, text)
	}
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"1G", "1.5 KiB", "18446744073709551615", "..", "9999999999999T", "1EiB", "3.5PB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := settings.ParseSize(s)
		if err != nil {
			assert.Zero(t, n)
			return
		}
		// What is shown of it is read back as the same.
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		settings.Define(flags, true)
		v := flags.Lookup("memory").Value
		require.NoError(t, v.Set(s))
		require.NoError(t, v.Set(v.String()))
		if n != 0 {
			m, err := settings.ParseSize(v.String())
			require.NoError(t, err)
			assert.Equal(t, n, m)
		}
	})
}

func TestParseHTTPTakesSocketsAndLoopbackOnlyWhereNothingGuardsIt(t *testing.T) {
	for text, want := range map[string][2]string{
		"/run/b.sock":      {"unix", "/run/b.sock"},
		"unix:/run/b.sock": {"unix", "/run/b.sock"},
		"127.0.0.1:9464":   {"tcp", "127.0.0.1:9464"},
		"127.8.8.8:1":      {"tcp", "127.8.8.8:1"},
		"localhost:0":      {"tcp", "localhost:0"},
		"[::1]:9464":       {"tcp", "[::1]:9464"},
	} {
		network, address, err := settings.ParseHTTP(text, false)
		assert.NoError(t, err, text)
		assert.Equal(t, want, [2]string{network, address}, text)
	}
	for _, text := range []string{":9464", "0.0.0.0:1", "[::]:1", "example.com:1", "9464", "unix:rel.sock", "rel.sock", "unix:", "127.0.0.1:65536", "127.0.0.1:-1"} {
		_, _, err := settings.ParseHTTP(text, false)
		assert.Error(t, err, text)
	}
}
