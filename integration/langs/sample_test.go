package langs

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// sample is how much there is of each thing that must not grow.
type sample map[string]int64

// String shows it in order.
func (s sample) String() string {
	var out []string
	for _, what := range slices.Sorted(maps.Keys(s)) {
		out = append(out, fmt.Sprintf("%s %d", what, s[what]))
	}
	return strings.Join(out, ", ")
}

// add notes what a process has: descriptors, mappings of shared memory, and resident
// bytes that are its alone.
func (s sample) add(t *testing.T, name string, pid int) {
	s[name+" files"] = int64(testkit.FDs(pid))
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	s[name+" mappings"] = int64(strings.Count(string(maps), "memfd:baton-"))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(status), "RssAnon:")
	f := strings.Fields(rest)
	require.NotEmpty(t, f, "RssAnon in %s", status)
	k, err := strconv.ParseInt(f[0], 10, 64)
	require.NoError(t, err)
	s[name+" heap"] = k << 10
}

// sharedBytes sums the pages of the shared memory that a process has open.
func sharedBytes(pid int) (sum int64) {
	at := fmt.Sprintf("/proc/%d/fd", pid)
	entries, _ := os.ReadDir(at)
	seen := map[uint64]bool{}
	for _, e := range entries {
		path := at + "/" + e.Name()
		to, err := os.Readlink(path)
		if err != nil || !strings.Contains(to, "memfd:baton-") {
			continue
		}
		if i, err := os.Stat(path); err == nil {
			if st := i.Sys().(*syscall.Stat_t); !seen[st.Ino] {
				seen[st.Ino] = true
				sum += st.Blocks * 512
			}
		}
	}
	return sum
}

// tolerance is by how much the median of the last samples may exceed that of the first.
func tolerance(what string) int64 {
	switch _, unit, _ := strings.Cut(what, " "); unit {
	case "files", "mappings":
		// The files of a session that ended are closed at the next comparison, which a
		// client makes every 5 s: a file, its mapping and a bell's for each guest of a
		// round or two, and a session of the process that closed while it held.
		return 12
	case "heap":
		// Heaps breathe, by what the collector leaves between two runs, and by arenas of
		// threads. A leak of a page for each guest exceeds this in an hour.
		return 8 << 20
	case "segments", "chunks":
		// A sender that was active within the last second keeps one to work with.
		return 2
	case "shared", "granted":
		return 8 << 20 // the bytes of those
	case "lane":
		// The lanes of a round may not all be back: of 20 KiB each. A leak of one for each
		// round exceeds this in a short soak.
		return 128 << 10
	default:
		panic(what)
	}
}

// series are samples in order.
type series []sample

// flat fails where something grows: where its median in the last third is above its
// median in the third after the warm-up, which is the first quarter. A single sample
// tells nothing, since what is late in one is gone in the next.
func (s series) flat(t *testing.T) {
	warm := s[len(s)/4:]
	third := len(warm) / 3
	first, last := warm[:third+1], warm[len(warm)-third-1:]
	for what := range s[0] {
		from, to := first.median(what), last.median(what)
		assert.LessOrEqual(t, to, from+tolerance(what), "%s grows from %d to %d in %d samples", what, from, to, len(s))
	}
	t.Logf("%d samples; medians after the warm-up %v; at the end %v", len(s), first.medians(), last.medians())
}

func (s series) median(what string) int64 {
	var all []int64
	for _, one := range s {
		all = append(all, one[what])
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func (s series) medians() sample {
	out := sample{}
	for what := range s[0] {
		out[what] = s.median(what)
	}
	return out
}
