package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// roleForker has this program be a process with a session that holds 1 MiB and is in a fork, as a client does that lets
// children keep what it holds, or with the value "child" what it has forked: a process that could not count what it
// inherited.
const roleForker = "BATON_TEST_FORKER"

// memoryFile finds an open memory file of this process by its name.
func memoryFile(name string) *sys.FD {
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		panic(err)
	}
	for _, path := range all {
		if to, _ := os.Readlink(path); strings.HasPrefix(to, "/memfd:"+name) {
			n, _ := strconv.Atoi(filepath.Base(path))
			return sys.NewFD(n)
		}
	}
	panic("no memory file " + name)
}

func forkUntilKilled(what string) {
	if what == "child" {
		// It lives as long as nothing says otherwise, whatever becomes of its parent.
		if _, err := sys.Map(sys.NewFD(3), 4096, true); err != nil {
			panic(err)
		}
		os.NewFile(4, "ready").Close()
		select {}
	}
	c, err := client.Connect(context.Background(), client.WithName("forker"))
	if err != nil {
		panic(err)
	}
	if _, err := c.Zeros(context.Background(), dlpack.Uint8, []int64{1 << 20}); err != nil {
		panic(err)
	}
	file, err := sys.Map(memoryFile("baton-session"), protocol.SessionBytes, true)
	if err != nil {
		panic(err)
	}
	began := sys.Monotonic()
	if what == "long" { // ago
		began = 1
	}
	shm.NewRegion(file).Store64(protocol.SessionForking, began)
	ready, ours, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), roleForker+"=child")
	child.ExtraFiles = []*os.File{os.NewFile(uintptr(memoryFile("baton-alive").Int()), "alive"), ours}
	if err := child.Start(); err != nil {
		panic(err)
	}
	ours.Close()
	io.ReadAll(ready) // ends when the child has the file mapped
	fmt.Println(child.Process.Pid)
	select {}
}

// forker starts such a process, and returns it with its child.
func (p *place) forker(what string) (parent *exec.Cmd, child int) {
	p.t.Helper()
	parent = exec.Command(os.Args[0])
	parent.Env = append(slices.Clone(p.env), roleForker+"="+what)
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(p.t, err)
	child, err = strconv.Atoi(strings.TrimSpace(line))
	require.NoError(p.t, err)
	p.t.Cleanup(func() {
		parent.Process.Kill()
		parent.Wait()
		if process, err := os.FindProcess(child); err == nil {
			process.Kill()
		}
	})
	return parent, child
}

// heirs is what show and why say of a session's children.
type heirs struct {
	Children []struct {
		PID     int
		Command string
	}
	Holds []because
}

func TestMemoryOfAnEndedProcessThatStaysForItsChildren(t *testing.T) {
	p := newPlace(t)
	p.serve()
	parent, child := p.forker("now")
	serial := p.sessionsOf("forker")[0].Serial
	require.NoError(t, parent.Process.Kill())
	parent.Wait()
	p.until("its end is noticed", func() bool { return p.sessionsOf("forker")[0].State == "closed" })

	for _, args := range [][]string{{"evict", fmt.Sprint(serial), "--yes"}, {"evict", fmt.Sprint(serial), "--kill", "--yes"}} {
		want := fmt.Sprintf("evicted session %d (forker, pid %d): its process had ended already; 1.0 MiB stay for the children that it forked, until they end: baton why session %d names them\n",
			serial, parent.Process.Pid, serial)
		assert.Equal(t, want, p.must(args...))
	}
	var evicted []struct {
		Killed, Ended bool
		ForChildren   bool `json:"for_children"`
	}
	p.json(&evicted, "evict", fmt.Sprint(serial), "--kill", "--yes")
	require.Len(t, evicted, 1)
	assert.Equal(t, []bool{false, true, true}, []bool{evicted[0].Killed, evicted[0].Ended, evicted[0].ForChildren})
	for _, e := range p.events("--kind", "steered") {
		assert.Equal(t, "evicted by hand: the process had ended, and what it held stays for the children that it forked", e.Text)
	}

	kill := fmt.Sprintf("kill %d", child)
	for _, what := range []string{"show", "why"} {
		var found []json.RawMessage
		p.json(&found, what, "session", fmt.Sprint(serial))
		require.Len(t, found, 1)
		var h heirs
		require.NoError(t, json.Unmarshal(found[0], &h))
		require.Len(t, h.Children, 1, what)
		assert.Equal(t, child, h.Children[0].PID)
		assert.NotEmpty(t, h.Children[0].Command)
		for _, r := range h.Holds {
			assert.Equal(t, kill, r.Free)
			assert.Equal(t, fmt.Sprintf("children made by fork (pid %d)", child), r.What)
		}
		assert.Contains(t, p.must(what, "session", fmt.Sprint(serial)), kill)
	}

	process, err := os.FindProcess(child)
	require.NoError(t, err)
	require.NoError(t, process.Kill())
	p.until("its memory is free", func() bool { return len(p.sessionsOf("forker")) == 0 })
}

// To end the parent frees nothing that a child has mapped.
func TestWhyNamesTheChildrenOfAProcessThatLives(t *testing.T) {
	for _, when := range []string{"now", "long"} {
		t.Run(when, func(t *testing.T) {
			p := newPlace(t)
			p.serve()
			_, child := p.forker(when)
			said := p.must("why", "session", "forker")
			assert.Contains(t, said, fmt.Sprintf("the program or children made by fork (pid %d)", child))
			assert.Contains(t, said, fmt.Sprintf("kill %d", child))
			assert.NotContains(t, said, "evict")
		})
	}
}

func TestEvictWithKillKills(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	_, err := c.Set(p.ctx(), "held", p.tensor(c, 1))
	require.NoError(t, err)
	holder := p.holder("nothing")
	var evicted []struct {
		Killed, Ended bool
		State         string
	}
	p.json(&evicted, "evict", fmt.Sprint(p.sessionsOf("holder")[0].Serial), "--kill", "--yes")
	require.Len(t, evicted, 1)
	assert.True(t, evicted[0].Killed)
	assert.False(t, evicted[0].Ended)
	assert.Equal(t, protocol.EvictedOver, evicted[0].State)
	holder.Wait()
	assert.Equal(t, "signal: killed", holder.ProcessState.String())
}
