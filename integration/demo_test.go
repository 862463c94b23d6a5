package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
)

// demoRun is `baton demo` with a folder for temporary files of its own.
type demoRun struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
	tmp      string
}

func newDemo(t *testing.T, args ...string) *demoRun {
	t.Helper()
	tmp := shortdir.New(t)
	d := &demoRun{cmd: exec.Command(testkit.Binary(t), append([]string{"demo", "--python", "none"}, args...)...), tmp: tmp}
	d.cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "NO_COLOR=1")
	d.cmd.Stdout, d.cmd.Stderr = &d.out, &d.err
	return d
}

// leavesNothing fails the test for files that a run has left.
func (d *demoRun) leavesNothing(t *testing.T) {
	t.Helper()
	left, err := os.ReadDir(d.tmp)
	require.NoError(t, err)
	assert.Empty(t, left, "files left behind")
}

// process names one process, also after its number is used again.
type process struct {
	pid   int
	start uint64
}

// gone tells that it has ended, whether or not its parent has waited for it.
func (p process) gone() bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	start, startErr := sys.StartTime(p.pid)
	if err != nil || startErr != nil || start != p.start {
		return true
	}
	return strings.HasPrefix(string(data[bytes.LastIndexByte(data, ')')+1:]), " Z")
}

// childrenOf lists the children of a process by what their command lines hold.
func childrenOf(pid int) map[string]process {
	found := map[string]process{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) < 20 || fields[1] != strconv.Itoa(pid) || fields[0] == "Z" {
			continue
		}
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		start, _ := sys.StartTime(child)
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		found[strings.Join(args[min(1, len(args)):], " ")] = process{child, start}
	}
	return found
}

// startDemo starts a run that takes long, and returns all of its children once
// they are there: the broker, the evaluator, four workers and the loader.
func startDemo(t *testing.T) (*demoRun, map[string]process) {
	t.Helper()
	d := newDemo(t, "--batches", "100000000")
	require.NoError(t, d.cmd.Start())
	t.Cleanup(func() {
		d.cmd.Process.Kill()
		d.cmd.Wait()
	})
	var children map[string]process
	testkit.Until(t, "the demo has started all its processes", func() (bool, string) {
		children = childrenOf(d.cmd.Process.Pid)
		return len(children) == 7, fmt.Sprint(children)
	})
	return d, children
}

func exitStatus(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil {
		require.True(t, errors.As(err, &exit), "%v", err)
		return exit.ExitCode()
	}
	return 0
}

func TestDemoTrainsInProcessesThatShareMemoryAndLeavesNothing(t *testing.T) {
	d := newDemo(t, "--json", "--batches", "3000")
	require.NoError(t, d.cmd.Run(), "%s\n%s", &d.out, &d.err)
	var figures map[string]float64
	require.NoError(t, json.Unmarshal(d.out.Bytes(), &figures), "%s", &d.out)
	for _, key := range []string{"accuracy", "samples_per_second", "handovers", "bytes_handed_over", "bytes_copied",
		"nats_tuples", "killed", "storages_left", "seconds"} {
		assert.Contains(t, figures, key)
	}
	assert.GreaterOrEqual(t, figures["accuracy"], 0.95)
	assert.Positive(t, figures["samples_per_second"])
	assert.Greater(t, figures["handovers"], 3000.0, "all batches, and snapshots and progress besides")
	assert.Greater(t, figures["bytes_handed_over"], 3000*64*65.0, "all pictures with their labels")
	assert.Zero(t, figures["bytes_copied"])
	assert.Positive(t, figures["nats_tuples"])
	assert.LessOrEqual(t, figures["nats_tuples"], figures["handovers"])
	assert.Equal(t, 1.0, figures["killed"])
	assert.Zero(t, figures["storages_left"])
	assert.Positive(t, figures["seconds"])
	d.leavesNothing(t)
}

func TestDemoDrawsWhatHappened(t *testing.T) {
	d := newDemo(t, "--batches", "2000", "--workers", "2")
	require.NoError(t, d.cmd.Run(), "%s\n%s", &d.out, &d.err)
	for _, text := range []string{"was killed with SIGKILL: training goes on", "Accuracy on held-out pictures over time",
		"worker 1 killed", "hand-overs", "bytes copied on the way", "storages left at the end"} {
		assert.Contains(t, d.out.String(), text)
	}
	d.leavesNothing(t)
}

func TestDemoThatLearnsTooLittleFails(t *testing.T) {
	d := newDemo(t, "--json", "--batches", "8")
	assert.Equal(t, 1, exitStatus(t, d.cmd.Run()))
	assert.Contains(t, d.err.String(), "is below 0.95")
	var figures map[string]float64
	require.NoError(t, json.Unmarshal(d.out.Bytes(), &figures), "the figures are printed all the same: %s", &d.out)
	assert.Zero(t, figures["storages_left"])
	d.leavesNothing(t)
}

func TestDemoInterruptedStopsAllProcessesAndLeavesNothing(t *testing.T) {
	d, children := startDemo(t)
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGINT))
	assert.Equal(t, 130, exitStatus(t, d.cmd.Wait()), "%s", &d.err)
	for name, p := range children {
		assert.True(t, p.gone(), "%s (process %d) still runs", name, p.pid)
	}
	d.leavesNothing(t)
}

func TestDemoProcessesEndWhenItIsKilled(t *testing.T) {
	d, children := startDemo(t)
	require.NoError(t, d.cmd.Process.Kill())
	d.cmd.Wait()
	testkit.Until(t, "the processes of the killed demo have ended", func() (bool, string) {
		for name, p := range children {
			if !p.gone() {
				return false, fmt.Sprintf("%s (process %d) still runs", name, p.pid)
			}
		}
		return true, ""
	})
}
