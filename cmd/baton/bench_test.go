package main_test

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// The figures of a quick run mean nothing; that they exist is what is tested.
func TestBenchMeasuresWithItsOwnProcesses(t *testing.T) {
	testkit.Need(t, "cpus")
	p := newPlace(t)
	file := filepath.Join(t.TempDir(), "figures.json")
	out := p.must("bench", "--quick", "--only", "one-way,take", "--json", "-q", "-o", file)
	var figures map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &figures), out)
	assert.NotEmpty(t, figures)
	assert.Contains(t, out, "one-way")
	assert.Contains(t, p.must("bench", "--from", file, "--markdown"), "| bare spin, round trip |")
	p.baton("bench", "--from", file+"x").fails(t, 1, file+"x", "")
	p.baton("bench", "--only", "nonsense").fails(t, 2, "nonsense", "")
}
