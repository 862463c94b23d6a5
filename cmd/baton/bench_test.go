package main_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The figures of a quick run mean nothing; that they exist is what is tested.
func TestBenchMeasuresWithItsOwnProcesses(t *testing.T) {
	p := newPlace(t)
	out := p.must("bench", "--quick", "--only", "one-way,take", "--json", "-q")
	var figures map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &figures), out)
	assert.NotEmpty(t, figures)
	assert.Contains(t, out, "one-way")
	p.baton("bench", "--only", "nonsense").fails(t, 2, "nonsense", "")
}
