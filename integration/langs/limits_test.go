package langs

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/testkit"
)

// drivenIn are the languages there are drivers in.
func drivenIn(t *testing.T) []language {
	if _, err := os.Stat(interpreter(t)); err != nil {
		t.Logf("without a driver in Python: %v (make test builds it)", err)
		return languages
	}
	return append(slices.Clone(languages), python)
}

// everyone starts a driver of each language there is.
func everyone(t *testing.T, b *testkit.Broker) (all []*driver) {
	for _, l := range drivenIn(t) {
		all = append(all, start(t, b, l))
	}
	return all
}

// holding has each driver hold something of its own, of a name, and of a topic.
func holding(all []*driver) {
	for _, d := range all {
		d.do(command{"do": "read", "topic": "t"})
	}
	all[0].do(command{"do": "set", "name": "w", "seed": nameSeed})
	all[0].do(command{"do": "put", "queue": "q", "redeliver": true, "seed": 40, "count": len(all)})
	all[1].do(command{"do": "send", "topic": "t", "seed": 50, "words": 3000})
	for _, d := range all {
		d.do(command{"do": "hoard", "seed": 60, "count": 3})
		d.do(command{"do": "get", "name": "w", "seed": nameSeed, "hold": true})
		d.do(command{"do": "receive", "topic": "t", "hold": true})
	}
}

// unharmed has each driver look at all that it holds, go on with it, and let it go.
func unharmed(t *testing.T, b *testkit.Broker, all []*driver) {
	for _, d := range all {
		d.do(command{"do": "check"})
		d.do(command{"do": "send", "topic": "t", "seed": 70})
	}
	for _, d := range all {
		for range all {
			d.do(command{"do": "receive", "topic": "t"})
		}
		d.do(command{"do": "take", "queue": "q", "redeliver": true})
		d.do(command{"do": "release"})
	}
	all[0].do(command{"do": "delete", "name": "w"})
	leave(t, b, all...)
}

// leftBehind is what a broker leaves for the next: the record and the state.
func leftBehind(t *testing.T, b *testkit.Broker, of *driver) (sums [2]string) {
	state, err := os.ReadFile(filepath.Join(b.Dir, statefile.Name))
	require.NoError(t, err)
	sums[0] = fmt.Sprintf("%x", sha256.Sum256(state))
	at := fmt.Sprintf("/proc/%d/fd", of.PID())
	files, err := os.ReadDir(at)
	require.NoError(t, err)
	for _, f := range files {
		path := filepath.Join(at, f.Name())
		if to, err := os.Readlink(path); err == nil && (strings.Contains(to, "memfd:baton-broker") || filepath.Base(to) == "broker-0") {
			record, err := os.ReadFile(path)
			require.NoError(t, err)
			sums[1] = fmt.Sprintf("%x", sha256.Sum256(record))
		}
	}
	require.NotEmpty(t, sums[1], "the record is among the files of %s", of.Name)
	return sums
}

// limits is the step in which limits of files are swept: BATON_LIMITS, or so that a
// few are tried.
func limits(t *testing.T) int {
	s := os.Getenv("BATON_LIMITS")
	if s == "" {
		return 32
	}
	step, err := strconv.Atoi(s)
	require.NoError(t, err, "BATON_LIMITS")
	require.Positive(t, step, "BATON_LIMITS")
	return step
}

var (
	named   = regexp.MustCompile(`open files to (\d+) or more`)
	namedBy = regexp.MustCompile(`open files by (\d+) or more`)
)

// advice is the number that a broker's last words name.
func advice(t *testing.T, of *regexp.Regexp, said string) int {
	found := of.FindStringSubmatch(said)
	require.NotNil(t, found, said)
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// A broker that may open too few files for what it is to take over says how many it
// needs, however few it may open, and leaves everything to the next. One that may open
// so many serves, and nothing was lost to any client.
func TestFilesOfTheNextBrokerAreSwept(t *testing.T) {
	for _, files := range []bool{false, true} {
		t.Run(map[bool]string{false: "memfds", true: "files"}[files], func(t *testing.T) {
			b := testkit.StartBroker(t, func(c *testkit.BrokerConfig) {
				if files {
					c.MemoryDir = filepath.Join(t.TempDir(), "memory")
				}
			})
			all := everyone(t, b)
			holding(all)
			with := func(n int) testkit.BrokerOption { return func(c *testkit.BrokerConfig) { c.OpenFiles = n } }
			end, other := b.Kill, b.Term
			refused := 0
			for limit := fewestFiles; ; limit += limits(t) {
				end()
				left := leftBehind(t, b, all[0])
				said := b.TryRestart(with(limit))
				if said == "" {
					break
				}
				refused++
				require.Equal(t, left, leftBehind(t, b, all[0]), "with %d files", limit)
				enough := advice(t, named, said)
				require.Greater(t, enough, limit)
				require.Empty(t, b.TryRestart(with(enough)), "%d files were refused, and %d named as enough", limit, enough)
				for _, d := range all {
					d.do(command{"do": "check"})
				}
				end, other = other, end
			}
			require.GreaterOrEqual(t, refused, 2, "it is swept from far too few")
			end()
			require.Empty(t, b.TryRestart(with(0)))
			unharmed(t, b, all)
		})
	}
}

// As above, of a broker that is to replace one that runs: that goes on.
func TestFilesOfAReplacementAreSwept(t *testing.T) {
	b := testkit.StartBroker(t)
	all := everyone(t, b)
	holding(all)
	with := func(n int) testkit.BrokerOption { return func(c *testkit.BrokerConfig) { c.OpenFiles = n } }
	refused := 0
	for limit := fewestFiles; ; limit += limits(t) {
		said := b.TryReplace(with(limit))
		if said == "" {
			break
		}
		refused++
		enough := limit + advice(t, namedBy, said)
		require.Empty(t, b.TryReplace(with(enough)), "%d files were refused, and %d named as enough", limit, enough)
		for _, d := range all {
			d.do(command{"do": "check"})
		}
	}
	require.GreaterOrEqual(t, refused, 2, "it is swept from far too few")
	require.Empty(t, b.TryReplace(with(0)))
	unharmed(t, b, all)
}

// fewestFiles is less than any takeover needs, and enough for a program to start.
const fewestFiles = 24

// Below limits lower than what is held a new broker serves: everything stays, what is
// new is refused. Above them all goes on.
func TestQuotasAreLoweredBelowWhatIsHeld(t *testing.T) {
	b := testkit.StartBroker(t)
	all := everyone(t, b)
	holding(all)
	for _, lower := range []testkit.BrokerOption{
		func(c *testkit.BrokerConfig) { c.SessionMemory = 64 << 10 },
		func(c *testkit.BrokerConfig) { c.Memory = 256 << 10 },
	} {
		b.Kill()
		require.Empty(t, b.TryRestart(lower))
		for _, d := range all {
			d.do(command{"do": "check"})
			testkit.Until(t, "the broker refuses", func() (bool, string) {
				a := d.try(command{"do": "hoard", "words": 8 << 20, "timeout_ms": 200})
				require.Contains(t, []string{"QuotaExceeded", "OutOfMemory", "Timeout", "BrokerLost"}, a.Code, "%s", a.Message+a.Broken)
				return a.Code == "QuotaExceeded" || a.Code == "OutOfMemory", a.Message
			})
		}
		b.Term()
		require.Empty(t, b.TryRestart(func(c *testkit.BrokerConfig) { c.Memory, c.SessionMemory = 0, 0 }))
		for _, d := range all {
			d.do(command{"do": "hoard", "seed": 80, "words": 100_000})
		}
	}
	unharmed(t, b, all)
}

// A client at its own limit of open files keeps what it has through the death of a
// broker, and goes on when it may open some again.
func TestClientsAtTheirLimitOfFilesMeetANewBroker(t *testing.T) {
	b := testkit.StartBroker(t)
	for _, l := range drivenIn(t) {
		t.Run(l.name, func(t *testing.T) {
			limited := &driver{b.Start("driver", nil, append(l.options(t), testkit.OpenFiles(400), testkit.Occupied(336))...), t}
			limited.do(command{"do": "hoard", "seed": 5, "count": 3})
			var others []*driver
			for refused := false; !refused; {
				other := start(t, b, languages[0])
				others = append(others, other)
				name := fmt.Sprintf("n%d", len(others))
				other.do(command{"do": "set", "name": name, "seed": nameSeed})
				a := limited.try(command{"do": "get", "name": name, "seed": nameSeed, "hold": true})
				require.Contains(t, []string{"", "TooMany"}, a.Code, "%s", a.Message+a.Broken)
				refused = a.Code != ""
			}
			require.Greater(t, len(others), 3)
			for _, again := range []func(){func() { b.Kill(); b.Restart() }, func() { b.Term(); b.Restart() }, func() { b.Replace() }} {
				again()
				limited.do(command{"do": "check"})
			}
			limited.do(command{"do": "release"})
			for i, other := range others {
				other.do(command{"do": "delete", "name": fmt.Sprintf("n%d", i+1)})
				other.Done()
			}
			last := start(t, b, languages[0])
			last.do(command{"do": "set", "name": "last", "seed": nameSeed})
			testkit.Until(t, "it may open files again", func() (bool, string) {
				a := limited.try(command{"do": "get", "name": "last", "seed": nameSeed, "timeout_ms": 1000})
				require.Empty(t, a.Broken)
				return a.Code == "", a.Message
			})
			last.do(command{"do": "delete", "name": "last"})
			leave(t, b, limited, last)
		})
	}
}
