package langs

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]testkit.Role{"driver": drive, "gpu": onGPU, "liar": liar, "crowd": comeTogether, "functions": playFunctions, "streams": playStreams, "deaths": playDeaths})
}

// language starts a driver.
type language struct {
	name    string
	options func(t *testing.T) []testkit.StartOption
}

var languages = []language{
	{"go", func(*testing.T) []testkit.StartOption { return nil }},
	{"rust", func(t *testing.T) []testkit.StartOption {
		return []testkit.StartOption{testkit.Program(rustDriver(t))}
	}},
	{"c", func(t *testing.T) []testkit.StartOption {
		return []testkit.StartOption{testkit.Program(clib.Compiled(t, "gcc", "integration/langs/c/driver.c", clib.Sanitize...))}
	}},
}

var rustBuild struct {
	sync.Mutex
	paths map[string]string
}

// rustDriver builds the Rust driver, once.
func rustDriver(t *testing.T) string { return rustExample(t, "driver") }

// rustExample builds an example of the crate, once.
func rustExample(t *testing.T, name string) string {
	t.Helper()
	cargo := clib.NeedCargo(t)
	rustBuild.Lock()
	defer rustBuild.Unlock()
	if path := rustBuild.paths[name]; path != "" {
		return path
	}
	cmd := exec.Command(cargo, "build", "--locked", "--workspace", "--all-features", "--example", name, "--message-format", "json")
	cmd.Dir = filepath.Join(clib.Root(t), "rust")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err, "cargo build")
	path := executable(out, name)
	require.NotEmpty(t, path, "cargo names no executable")
	if rustBuild.paths == nil {
		rustBuild.paths = map[string]string{}
	}
	rustBuild.paths[name] = path
	return path
}

// executable finds the program of a name in what cargo says.
func executable(said []byte, name string) (path string) {
	for d := json.NewDecoder(bytes.NewReader(said)); ; {
		var line struct {
			Executable string `json:"executable"`
			Target     struct{ Name string }
		}
		if d.Decode(&line) != nil {
			return path
		}
		if line.Executable != "" && line.Target.Name == name {
			path = line.Executable
		}
	}
}

// answer is what a driver says to a command.
type answer struct {
	Code, Message, Broken string
	Seed, Sequence, Lost  uint64
	Revision              uint64
	Bytes                 uint64
	ReadOnly              bool
	Handle                json.RawMessage
}

// command is what a driver is asked to do; see drive.
type command map[string]any

// driver is a running driver.
type driver struct {
	*testkit.Process
	t *testing.T
}

func start(t *testing.T, b *testkit.Broker, l language) *driver {
	t.Helper()
	return &driver{b.Start("driver", nil, l.options(t)...), t}
}

// do carries a command out, which must succeed.
func (d *driver) do(c command) answer {
	d.t.Helper()
	a := d.try(c)
	require.Empty(d.t, a.Code, "%s: %v: %s", d.Name, c, a.Message)
	require.Empty(d.t, a.Broken, "%s: %v", d.Name, c)
	return a
}

// try carries a command out that may be refused.
func (d *driver) try(c command) (a answer) {
	d.t.Helper()
	d.ask(c)
	d.Next(&a)
	return a
}

// ask sends a command whose answer is taken later.
func (d *driver) ask(c command) { d.Tell(c) }

// pairs runs a test for every pair of languages, one of them not Go.
func pairs(t *testing.T, f func(t *testing.T, b *testkit.Broker, from, to *driver)) {
	for _, from := range languages {
		for _, to := range languages {
			if from.name == "go" && to.name == "go" {
				continue // package integration has these
			}
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				b := testkit.StartBroker(t)
				f(t, b, start(t, b, from), start(t, b, to))
			})
		}
	}
}
