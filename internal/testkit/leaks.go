package testkit

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// checkLeaks fails the test when this process has kept something of a broker
// whose clients are all closed: descriptors, goroutines of the client, or more
// mappings than closed clients may keep.
func checkLeaks(t testing.TB, dir string, clients int) {
	t.Helper()
	if t.Failed() { // it may have left things behind, which are not the next one's
		mapped, mappedBy = sharedMappings(dir), t.Name()
		return
	}
	// One that unmaps what is released ends when all is.
	ended := func() (bool, string) { runtime.GC(); s := clientGoroutines(); return s == "", s }
	if state, ok := until(Patience, ended); !ok {
		t.Errorf("goroutines of closed clients still run:\n%s", state)
		for _, g := range strings.Split(state, "\n\n") {
			leaked[goroutine(g)] = true
		}
	}
	if fds := sharedFDs(dir); len(fds) > 0 {
		t.Errorf("%d descriptors of shared memory are still open:\n%s", len(fds), strings.Join(fds, "\n"))
	}
	// Tensors that were not released when their client was closed stay mapped, so
	// that a late reader meets stale bytes and no fault. All else goes with the
	// client, which what the test has yet to return from may still refer to.
	left := func() (bool, string) { runtime.GC(); s := stillMapped(dir); return s == "", s }
	if mappedBy == t.Name() { // of another broker of the same test
		left = func() (bool, string) { return true, "" }
	}
	if state, ok := until(Patience, left); !ok {
		t.Errorf("mappings that tests before this one have left:\n%s", state)
	}
	// What goroutines mapped at once and only one has kept goes with the collector, too.
	var now map[string]int
	few := func() (bool, string) {
		runtime.GC()
		now = sharedMappings(dir)
		s := tooMany(now, clients)
		return s == "", s
	}
	if state, ok := until(Patience, few); !ok {
		t.Error(state)
	}
	mapped, mappedBy = now, t.Name()
}

// tooMany names what a test's clients have left mapped more than once each.
func tooMany(now map[string]int, clients int) string {
	var out []string
	for what, n := range now {
		if n-mapped[what] > clients {
			out = append(out, fmt.Sprintf("%d mappings of %s are left by %d clients", n-mapped[what], what, clients))
		}
	}
	return strings.Join(out, "\n")
}

// mapped counts the mappings that there were after the test before.
var (
	mapped   = map[string]int{}
	mappedBy string
)

// stillMapped names mappings that there were after the test before, but for those
// of tensors.
func stillMapped(dir string) string {
	var out []string
	for what := range sharedMappings(dir) {
		if mapped[what] > 0 && !strings.Contains(what, "segment-") {
			out = append(out, what)
		}
	}
	return strings.Join(out, "\n")
}

// Shared tells whether a path of /proc is shared memory of a broker's. The file that
// shows an exec is the program's own, and stays as long as it runs.
func shared(path, dir string) bool {
	return strings.Contains(path, "memfd:baton-") && !strings.Contains(path, "memfd:baton-alive") || dir != "" && strings.HasPrefix(path, dir+"/")
}

// sharedFDs lists this process's descriptors of shared memory.
func sharedFDs(dir string) []string {
	return fdsOf(os.Getpid(), dir)
}

func fdsOf(pid int, dir string) []string {
	at := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(at)
	var out []string
	for _, e := range entries {
		if target, err := os.Readlink(at + "/" + e.Name()); err == nil && shared(target, dir) {
			out = append(out, e.Name()+" → "+target)
		}
	}
	return out
}

// sharedMappings counts this process's mappings of each file of shared memory,
// by rights.
func sharedMappings(dir string) map[string]int {
	data, _ := os.ReadFile("/proc/self/maps")
	out := map[string]int{}
	for _, line := range strings.Split(string(data), "\n") {
		f := strings.Fields(line)
		if len(f) >= 6 && shared(f[5], dir) && f[2] == "00000000" {
			out[f[1]+" inode "+f[4]+" "+f[5]]++
		}
	}
	return out
}

// SharedFDs counts a process's descriptors of shared memory: what must not grow
// when peers, readers and topics come and go.
func SharedFDs(pid int) int { return len(fdsOf(pid, "")) }

// SharedMappings counts this process's mappings of shared memory, likewise.
func SharedMappings() (n int) {
	for _, k := range sharedMappings("") {
		n += k
	}
	return n
}

// leaked has the goroutines that a test has failed for: those behind it do not wait for them.
var leaked = map[string]bool{}

// goroutine names that of a stack: "goroutine 7".
func goroutine(stack string) string {
	name, _, _ := strings.Cut(stack, " [")
	return name
}

// clientGoroutines returns the stacks of goroutines that run code of the client.
func clientGoroutines() string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	var out []string
	for _, g := range strings.Split(string(buf), "\n\n") {
		if (strings.Contains(g, "baton/client.") || strings.Contains(g, "baton/client/")) && !leaked[goroutine(g)] {
			out = append(out, g)
		}
	}
	return strings.Join(out, "\n\n")
}

// FDs counts a process's descriptors.
func FDs(pid int) int {
	entries, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries)
}
