package langs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/custody"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/internal/testkit"
)

// custodians lists the drivers whose processes have a file open.
func custodians(t *testing.T, all []*driver, file string) (list []int) {
	t.Helper()
	for i, d := range all {
		at := fmt.Sprintf("/proc/%d/fd", d.PID())
		open, err := os.ReadDir(at)
		require.NoError(t, err)
		for _, f := range open {
			if to, err := os.Readlink(filepath.Join(at, f.Name())); err == nil && strings.HasPrefix(to, "/memfd:"+file+" ") {
				list = append(list, i)
				break
			}
		}
	}
	return list
}

// keptByThree has drivers hold a tensor that an owner has set as a name, and returns the names
// of the files in which it lies, of which the first three keep the descriptors.
func keptByThree(t *testing.T, b *testkit.Broker) (owner *driver, all []*driver, files []string) {
	owner = start(t, b, languages[0])
	owner.do(command{"do": "set", "name": "w", "seed": nameSeed, "words": 100_000})
	for _, g := range testkit.List[memory.SegmentRow](t, b, "segments") {
		require.Equal(t, owner.PID(), g.PID)
		files = append(files, fmt.Sprintf("baton-segment-%d", g.Serial))
	}
	for _, s := range testkit.Look(t, b).Sessions {
		if s.PID == owner.PID() {
			files = append(files, fmt.Sprintf("baton-session-%d", s.Serial))
		}
	}
	require.Len(t, files, 2)
	for range 2 {
		all = append(all, everyone(t, b)...)
	}
	for _, d := range all {
		d.do(command{"do": "get", "name": "w", "seed": nameSeed, "hold": true})
	}
	for _, f := range files {
		require.Equal(t, []int{0, 1, 2}, custodians(t, all, f), "%s: those that asked first", f)
	}
	return owner, all, files
}

// keeping waits until so many drivers keep the files.
func keeping(t *testing.T, all []*driver, files []string, want int) {
	t.Helper()
	testkit.Until(t, "others keep the files", func() (bool, string) {
		state := ""
		for _, f := range files {
			state += fmt.Sprintln(f, custodians(t, all, f))
			if len(custodians(t, all, f)) < want {
				return false, state
			}
		}
		return true, state
	})
}

// Processes that are suspended cannot keep a file that they have closed: others do.
func TestProcessThatStandsStillIsNoCustodian(t *testing.T) {
	b := testkit.StartBroker(t)
	owner, all, files := keptByThree(t, b)
	still := all[custody.Enough : custody.Enough+2]
	for _, d := range still {
		d.Stop()
	}
	owner.Kill()
	for _, d := range all[:custody.Enough] {
		d.Kill()
	}
	others := all[custody.Enough+2:]
	keeping(t, others, files, min(len(others), custody.Enough))
	b.Kill()
	b.Restart()
	newcomer := start(t, b, languages[0])
	newcomer.do(command{"do": "get", "name": "w", "seed": nameSeed})
	for _, d := range still {
		d.Cont()
	}
	newcomer.do(command{"do": "delete", "name": "w"})
	leave(t, b, append(all[custody.Enough:], newcomer)...)
}

// Of a tensor that many processes have mapped, three keep the files for the next broker. Where
// these and its owner die others keep them, so that the next broker can still give it to
// all; and no process has them open when it is gone.
func TestFilesOfATensorHaveThreeCustodians(t *testing.T) {
	b := testkit.StartBroker(t)
	owner, all, files := keptByThree(t, b)
	owner.Kill()
	for len(all) > custody.Enough-1 {
		all[0].Kill()
		all = all[1:]
		keeping(t, all, files, min(len(all), custody.Enough))
	}
	b.Kill()
	b.Restart()
	newcomers := everyone(t, b)
	for _, d := range newcomers {
		d.do(command{"do": "get", "name": "w", "seed": nameSeed, "hold": true})
	}
	all = append(all, newcomers...)
	newcomers[0].do(command{"do": "delete", "name": "w"})
	for _, d := range all {
		d.do(command{"do": "release"})
	}
	testkit.Until(t, "the files of what is gone are closed", func() (bool, string) {
		for _, f := range files {
			if open := custodians(t, all, f); len(open) > 0 {
				return false, fmt.Sprintln(f, open)
			}
		}
		return true, ""
	})
	leave(t, b, all...)
}

// A session that the broker knows as closed closes what it has as it pleases: others are asked
// to keep it. What it still holds it hands over all the same.
func TestClosedSessionIsNoCustodian(t *testing.T) {
	b := testkit.StartBroker(t)
	owner, all, files := keptByThree(t, b)
	closed, others := all[:custody.Enough], all[custody.Enough:]
	for _, d := range closed {
		d.do(command{"do": "close"})
	}
	asked := 0
	for _, s := range testkit.Look(t, b).Sessions {
		if s.State == "closed" { // in Rust the next session of the process goes on with it
			asked++
		}
	}
	require.Positive(t, asked)
	keeping(t, all, files, custody.Enough+asked)
	owner.Kill()
	for _, d := range others {
		d.do(command{"do": "release"})
		d.Done()
	}
	for _, again := range []func(){func() { b.Term(); b.Restart() }, func() { b.Kill(); b.Restart() }} {
		again()
		newcomer := start(t, b, languages[0])
		newcomer.do(command{"do": "get", "name": "w", "seed": nameSeed})
		newcomer.Done()
	}
	for _, d := range closed {
		d.do(command{"do": "check"})
		d.do(command{"do": "release"})
		d.Done()
	}
	last := start(t, b, languages[0])
	last.do(command{"do": "delete", "name": "w"})
	leave(t, b, last)
}
