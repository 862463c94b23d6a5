package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/baton-ipc/baton/internal/testkit"
)

const packaging = "../../packaging/"

func packaged(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(packaging + name)
	require.NoError(t, err)
	return string(data)
}

// accepts fails unless the program has such a command, with such flags and values.
func accepts(t *testing.T, from string, args []string) {
	t.Helper()
	c, rest, err := tree(io.Discard).Find(args)
	require.NoError(t, err, "%s: %q", from, args)
	require.True(t, c.HasParent(), "%s: %q names no command", from, args)
	require.NoError(t, c.ParseFlags(rest), "%s: %q", from, args)
	require.NoError(t, c.ValidateArgs(c.Flags().Args()), "%s: %q", from, args)
}

// variables are those of the environment that the program reads.
func variables() map[string]bool {
	known := map[string]bool{"BATON_ADDRESS": true, "BATON_NAMESPACE": true, "BATON_NAME": true, "BATON_TRACE": true, "BATON_BINARY": true}
	serve, _, _ := tree(io.Discard).Find([]string{"serve"})
	serve.Flags().VisitAll(func(f *pflag.Flag) {
		known["BATON_"+strings.ReplaceAll(strings.ToUpper(f.Name), "-", "_")] = true
	})
	return known
}

var variable = regexp.MustCompile(`\bBATON_[A-Z_]+\b`)

func knowsVariables(t *testing.T, from, text string) {
	t.Helper()
	for _, name := range variable.FindAllString(text, -1) {
		assert.True(t, variables()[name], "%s: no setting reads %s", from, name)
	}
}

var execLine = regexp.MustCompile(`(?m)^Exec\w*=(/usr/bin/baton.*)$`)

func TestUnitsGiveFlagsThatExist(t *testing.T) {
	for _, of := range []string{"system", "user"} {
		unit := packaged(t, "systemd/"+of+"/baton.service")
		lines := execLine.FindAllStringSubmatch(unit, -1)
		require.NotEmpty(t, lines, of)
		for _, line := range lines {
			accepts(t, of, strings.Fields(line[1])[1:])
		}
		// The socket that the manager binds has to be the one that the broker looks for.
		socket := regexp.MustCompile(`(?m)^ListenStream=(\S+)$`).FindStringSubmatch(packaged(t, "systemd/"+of+"/baton.socket"))
		require.NotNil(t, socket)
		assert.Contains(t, unit, "--address unix:"+socket[1])
	}
}

// TestUnitsAreGood asks systemd, with units whose program exists.
func TestUnitsAreGood(t *testing.T) {
	testkit.Need(t, "systemd-analyze")
	program, err := exec.LookPath("true")
	require.NoError(t, err)
	for _, of := range []string{"system", "user"} {
		t.Run(of, func(t *testing.T) {
			dir := t.TempDir()
			args := []string{"--" + of, "--man=no", "verify"}
			for _, name := range []string{"baton.socket", "baton.service"} {
				unit := strings.ReplaceAll(packaged(t, "systemd/"+of+"/"+name), "/usr/bin/baton", program)
				file := filepath.Join(dir, name)
				require.NoError(t, os.WriteFile(file, []byte(unit), 0o644))
				args = append(args, file)
			}
			cmd := exec.Command("systemd-analyze", args...)
			cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			for _, line := range strings.Split(string(out), "\n") {
				// Of a machine's own units, and where systemd does not run, it says more.
				assert.NotContains(t, line, dir)
				assert.NotContains(t, line, "baton.")
			}
		})
	}
}

func TestSettingsFileOfThePackageIsGood(t *testing.T) {
	dir := t.TempDir()
	text := strings.ReplaceAll(packaged(t, "baton.toml"), `["baton"]`, `["root"]`) // a group that is here
	knowsVariables(t, "baton.toml", text)
	// As it is, and with each line that is commented out.
	for i, text := range []string{text, regexp.MustCompile(`(?m)^# ([a-z-]+ = )`).ReplaceAllString(text, "$1")} {
		file := filepath.Join(dir, "baton.toml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		var out strings.Builder
		root := tree(&out)
		root.SetArgs([]string{"serve", "--check-config", "--config", file, "--address", "unix:" + filepath.Join(dir, "b.sock")})
		require.NoError(t, root.Execute(), text)
		if i == 1 {
			assert.Regexp(t, `memory +8(\.0)? ?GiB +file`, out.String())
			assert.Regexp(t, `allow-uid +1000 +file`, out.String())
			assert.Regexp(t, `allow-group +\S+ +file`, out.String())
		}
	}
}

// jsonLine finds what an instruction of a Containerfile has in brackets.
var jsonLine = regexp.MustCompile(`(?m)^(?:ENTRYPOINT|CMD|HEALTHCHECK .*CMD) (\[.*\])$`)

func TestContainerfileGivesFlagsThatExist(t *testing.T) {
	text := packaged(t, "container/Containerfile")
	knowsVariables(t, "Containerfile", text)
	var command []string
	for _, line := range jsonLine.FindAllStringSubmatch(text, -1) {
		var words []string
		require.NoError(t, json.Unmarshal([]byte(line[1]), &words), line[0])
		if strings.HasPrefix(line[0], "HEALTHCHECK") {
			require.Equal(t, "/baton", words[0])
			accepts(t, line[0], words[1:])
			continue
		}
		command = append(command, words...)
	}
	require.Equal(t, "/baton", command[0])
	accepts(t, "Containerfile", command[1:])
	assert.Regexp(t, `(?m)^FROM scratch$`, text)
	assert.NotRegexp(t, `(?m)^USER (root|0)`, text)
	assert.Regexp(t, `(?m)^USER \d+:\d+$`, text, "Kubernetes tells by a number alone that it is not root")
}

func TestManifestsGiveFlagsThatExist(t *testing.T) {
	number, err := os.ReadFile("../../VERSION")
	require.NoError(t, err)
	for _, name := range []string{"container/compose.yaml", "kubernetes/sidecar.yaml", "kubernetes/daemonset.yaml"} {
		text := packaged(t, name)
		knowsVariables(t, name, text)
		var doc map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(text), &doc), name)
		commands := 0
		walk(doc, func(key string, words []string) {
			switch {
			case len(words) > 1 && words[0] == "CMD":
				words = words[1:]
			case key == "args" || key == "command" && words[0] == "serve":
				words = append([]string{"/baton"}, words...)
			}
			if words[0] == "/baton" {
				commands++
				accepts(t, name, words[1:])
			}
		})
		assert.GreaterOrEqual(t, commands, 2, "%s runs the program and asks it how it is", name)
		for _, image := range regexp.MustCompile(`baton-ipc/baton:(\d\S+)`).FindAllStringSubmatch(text, -1) {
			assert.Equal(t, strings.TrimSpace(string(number)), image[1], name)
		}
	}
}

// walk calls f for each list of words below a value, with the key that it has.
func walk(v any, f func(key string, words []string)) {
	switch v := v.(type) {
	case map[string]any:
		for key, item := range v {
			if list, ok := item.([]any); ok && len(list) > 0 {
				var words []string
				for _, w := range list {
					if s, ok := w.(string); ok {
						words = append(words, s)
					}
				}
				if len(words) == len(list) {
					f(key, words)
				}
			}
			walk(item, f)
		}
	case []any:
		for _, item := range v {
			walk(item, f)
		}
	}
}
