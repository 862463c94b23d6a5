package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/bench"
	"github.com/baton-ipc/baton/internal/testkit"
)

func TestMain(m *testing.M) {
	bench.Child()
	testkit.Main(m, nil)
}

// does runs a command line and gives what it has printed.
func does(t *testing.T, status int, args ...string) (out, log string) {
	t.Helper()
	var printed, told strings.Builder
	require.Equal(t, status, run(testkit.Context(t), args, &printed, &told), told.String())
	return printed.String(), told.String()
}

// The figures of a quick run mean nothing; that they exist is what is tested.
func TestFiguresOfProcessesOfItsOwn(t *testing.T) {
	testkit.Need(t, "cpus")
	file := filepath.Join(t.TempDir(), "figures.json")
	out, _ := does(t, exitOK, "--quick", "--only", "one-way,take", "--json", "-q", "-o", file, "--binary", testkit.Binary(t))
	var figures map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &figures), out)
	assert.NotEmpty(t, figures)
	assert.Contains(t, out, "one-way")
	out, _ = does(t, exitOK, "--from", file, "--markdown")
	assert.Contains(t, out, "| bare spin, round trip |")
	_, log := does(t, exitError, "--from", file+"x")
	assert.Contains(t, log, file+"x")
}

func TestWrongCommandLines(t *testing.T) {
	for want, args := range map[string][]string{
		"nonsense":             {"--only", "nonsense"},
		"is negative":          {"--passes=-1"},
		"unknown argument":     {"everything"},
		"exclude each other":   {"--json", "--markdown"},
		"--from and --output":  {"--from", "a", "-o", "b"},
		"unknown flag: --fast": {"--fast"},
	} {
		_, log := does(t, exitUsage, args...)
		assert.Contains(t, log, want)
	}
	_, log := does(t, exitOK, "--help")
	assert.Contains(t, log, "Usage: baton-bench")
}
