package demo_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/demo"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

func TestRunRefusesOptionsThatCannotBe(t *testing.T) {
	for name, o := range map[string]demo.Options{
		"one worker":       {Workers: 1},
		"too many workers": {Workers: 1000},
		"negative batches": {Batches: -1},
		"negative time":    {Limit: -time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := demo.Run(t.Context(), o)
			assert.ErrorIs(t, err, protocol.ErrInvalid)
		})
	}
}

// temporary is the folder for what is temporary in this test.
func temporary(t *testing.T) string {
	t.Helper()
	dir := shortdir.New(t)
	t.Setenv("TMPDIR", dir)
	return dir
}

func TestRunTellsWhatTheBrokerSaidAndLeavesNothing(t *testing.T) {
	program := filepath.Join(t.TempDir(), "baton")
	dir := temporary(t)
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho no memory today >&2\nexit 7\n"), 0o700))
	_, err := demo.Run(t.Context(), demo.Options{Binary: program})
	require.Error(t, err)
	assert.ErrorContains(t, err, "broker (pid ")
	assert.ErrorContains(t, err, "exit status 7")
	assert.ErrorContains(t, err, "no memory today")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestRunNeedsNoShortTemporaryFolder(t *testing.T) {
	program := filepath.Join(t.TempDir(), "baton")
	t.Setenv("TMPDIR", filepath.Join(temporary(t), strings.Repeat("x", 100)))
	require.NoError(t, os.Mkdir(os.Getenv("TMPDIR"), 0o700))
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\necho told: $@ >&2\nexit 7\n"), 0o700))
	_, err := demo.Run(t.Context(), demo.Options{Binary: program})
	require.ErrorContains(t, err, "told: serve")
	require.NotContains(t, err.Error(), "xxx", "no socket has room there")
}

func TestRunEndsWithItsContext(t *testing.T) {
	program := filepath.Join(t.TempDir(), "baton")
	dir := temporary(t)
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\nexec sleep 1000\n"), 0o700))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := demo.Run(ctx, demo.Options{Binary: program})
	assert.ErrorIs(t, err, context.Canceled)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestRoleRefusesWhatRunDoesNotStart(t *testing.T) {
	assert.ErrorIs(t, demo.Role(t.Context(), "cook", []string{"{}"}), protocol.ErrInvalid)
	assert.ErrorIs(t, demo.Role(t.Context(), "worker", nil), protocol.ErrInvalid)
	assert.ErrorIs(t, demo.Role(t.Context(), "worker", []string{"{"}), protocol.ErrInvalid)
}

func TestResultIsGoodOnlyIfItShowsEverything(t *testing.T) {
	good := demo.Result{Accuracy: 0.96, Killed: 1}
	assert.NoError(t, good.Check())
	for name, spoil := range map[string]func(*demo.Result){
		"inaccurate":   func(r *demo.Result) { r.Accuracy = 0.949 },
		"none killed":  func(r *demo.Result) { r.Killed = 0 },
		"memory left":  func(r *demo.Result) { r.StoragesLeft = 1 },
		"bytes copied": func(r *demo.Result) { r.BytesCopied = 1 },
	} {
		bad := good
		spoil(&bad)
		assert.Error(t, bad.Check(), name)
	}
}

func TestDrawShowsTheFigures(t *testing.T) {
	r := demo.Result{Accuracy: 0.9751, SamplesPerSecond: 123456, BatchesPerSecond: 1929, Handovers: 42101,
		BytesHandedOver: 660 << 20, NATSTuples: 41997, Killed: 1, Seconds: 10.5, Batches: 40000, Workers: 6, PythonWorkers: 2}
	drawn, err := r.Draw(termtext.Style{})
	require.NoError(t, err)
	for _, figure := range []string{"97.5 %", "123,456", "1,929", "42,101", "660 MiB", "41,997", "6, 2, 1", "40,000", "10.5 s"} {
		assert.Contains(t, drawn, figure)
	}
	for _, r := range drawn {
		assert.Less(t, r, rune(128), "plain style")
	}
}
