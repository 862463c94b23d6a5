package langs

import (
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
)

// python is the driver in Python, where make has built the package.
var python = language{"python", func(t *testing.T) []testkit.StartOption {
	interpreter := interpreter(t)
	program := filepath.Join(clib.Root(t), "python/tests/driver.py")
	return []testkit.StartOption{func(c *exec.Cmd) { c.Path, c.Args = interpreter, []string{interpreter, program} }}
}}

// everyLanguage are the languages that there are here.
func everyLanguage(t *testing.T) []language {
	if _, err := os.Stat(interpreter(t)); err != nil {
		t.Logf("without a driver in Python: %v (make test builds it)", err)
		return languages
	}
	return append(slices.Clone(languages), python)
}

func interpreter(t *testing.T) string { return filepath.Join(clib.Root(t), "build/venv/bin/python") }

// seams is how many seams the campaign goes through: BATON_SEAMS, or a few.
func seams(t *testing.T) int {
	n := 30
	if s := os.Getenv("BATON_SEAMS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err, "BATON_SEAMS")
	}
	return n
}

// Drivers of all languages work side by side while clients and brokers are killed,
// ended in order, replaced and stopped, sessions closed and programs replaced by exec.
// What a driver holds is looked at when it comes and before it is let go. Nothing
// changes; nothing that a living sender put is lost; in the end nothing is left.
func TestSeamsInMixedCompany(t *testing.T) {
	testSeams(t, func(*testkit.BrokerConfig) {})
}

// As above with memory in files: then what the dead have put is not lost either.
func TestSeamsInMixedCompanyWithMemoryInFiles(t *testing.T) {
	dir := t.TempDir()
	testSeams(t, func(c *testkit.BrokerConfig) { c.MemoryDir = filepath.Join(dir, "memory") })
}

func testSeams(t *testing.T, config testkit.BrokerOption) {
	b := testkit.StartBroker(t, config)
	seed := rand.Int63()
	t.Logf("random seed %d", seed)
	s := &crew{t: t, b: b, random: rand.New(rand.NewSource(seed)), seen: map[uint64]bool{}}
	for _, l := range everyLanguage(t) {
		for range 2 {
			s.members = append(s.members, s.join(l))
		}
	}
	happens := []func(){s.killMember, s.killBroker, s.termBroker, s.replaceBroker, s.stopBroker, s.stopMember, s.closeSession, s.exec}
	for n := range seams(t) {
		s.round(happens[n%len(happens)])
	}
	s.part()
}

// crew is the members of the campaign.
type crew struct {
	t       *testing.T
	b       *testkit.Broker
	random  *rand.Rand
	members []*member
	items   uint64          // seeds of items, each put once
	seen    map[uint64]bool // items that a member took
	unheard int             // takers that died before they had said what they took
}

// member is a driver and what it has put.
type member struct {
	*driver
	language language
	asked    command // the one that is to be answered
	owed     []uint64
}

func (s *crew) join(l language) *member {
	m := &member{driver: start(s.t, s.b, l), language: l}
	m.do(command{"do": "read", "topic": "t"})
	return m
}

// round gives every member something to do, lets a thing happen meanwhile, and hears the
// answers.
func (s *crew) round(happen func()) {
	for _, m := range s.members {
		m.asked = s.work(m)
		m.ask(m.asked)
	}
	for range s.random.Intn(5000) {
		runtime.Gosched()
	}
	happen()
	for _, m := range s.members {
		s.hear(m)
	}
}

// mayAtSeams is what may become of a command there: that its time ran out, that there
// is nothing yet, or that the broker is away. Never that a session is lost.
var mayAtSeams = []string{"", "Timeout", "Empty", "Full", "NotFound", "BrokerLost", "NoBroker", "Busy"}

// hear takes the answer to what a member was asked.
func (s *crew) hear(m *member) {
	if m.asked == nil {
		return
	}
	var a answer
	m.Next(&a)
	require.Empty(s.t, a.Broken, "%s: %v", m.language.name, m.asked)
	require.Contains(s.t, mayAtSeams, a.Code, "%s: %v: %s", m.language.name, m.asked, a.Message)
	s.account(m, &a)
	m.asked = nil
}

// account notes what was put and taken.
func (s *crew) account(m *member, a *answer) {
	if a.Code != "" {
		return
	}
	switch m.asked["do"] {
	case "put":
		from, n := m.asked["seed"].(uint64), m.asked["count"].(uint64)
		for i := range n {
			m.owed = append(m.owed, from+i)
		}
	case "take":
		s.seen[a.Seed] = true
	}
}

// work is something to do that takes a while.
func (s *crew) work(m *member) command {
	r := s.random
	words := 2 * (1 + r.Intn(1500))
	all := []command{
		{"do": "send", "topic": "t", "seed": r.Intn(1000), "count": 30, "words": words},
		{"do": "receive", "topic": "t", "timeout_ms": 5},
		{"do": "receive", "topic": "t", "timeout_ms": 5, "hold": true},
		{"do": "take", "queue": "q", "redeliver": true, "timeout_ms": 5},
		{"do": "take", "queue": "q", "redeliver": true, "timeout_ms": 5},
		{"do": "set", "name": "w", "seed": nameSeed, "words": words, "timeout_ms": 5000},
		{"do": "get", "name": "w", "seed": nameSeed, "timeout_ms": 50, "hold": true},
		{"do": "hoard", "seed": r.Intn(1000), "count": 3, "words": words},
		{"do": "handle", "seed": 3, "words": words},
		{"do": "check"},
		{"do": "release"},
		{"do": "collect"},
	}
	if m.language.name != "python" {
		s.items += 8
		put := command{"do": "put", "queue": "q", "redeliver": true, "seed": s.items, "count": uint64(4), "words": words, "timeout_ms": 5}
		all = append(all, put, put)
	}
	return all[r.Intn(len(all))]
}

func (s *crew) anyone() (int, *member) {
	i := s.random.Intn(len(s.members))
	return i, s.members[i]
}

// forgive gives up what a member has put: with the memory of its sender an item may go
// at the next end of a broker, unless memory is in files.
func (s *crew) forgive(m *member) {
	if !s.b.InFiles() {
		m.owed = nil
	}
}

// killMember kills a driver at some instruction, and another takes its place.
func (s *crew) killMember() {
	i, m := s.anyone()
	m.Kill()
	var a answer
	if m.Poll(&a) {
		s.account(m, &a)
	} else if m.asked["do"] == "take" {
		s.unheard++ // it may have let the item go, and not have said which
	}
	s.forgive(m)
	next := s.join(m.language)
	next.owed = m.owed
	s.members[i] = next
}

// killBroker kills the broker, and starts the next a while later.
func (s *crew) killBroker() {
	s.b.Kill()
	s.pause()
	s.b.Restart()
}

// termBroker ends it in order, to be followed by another.
func (s *crew) termBroker() {
	s.b.Term()
	s.pause()
	s.b.Restart()
}

// replaceBroker has a new one take over from the one that serves.
func (s *crew) replaceBroker() { s.b.Replace() }

// stopBroker suspends it for a while.
func (s *crew) stopBroker() {
	s.b.Process().Stop()
	s.pause()
	s.b.Process().Cont()
}

// stopMember suspends a driver while the broker is replaced after its death.
func (s *crew) stopMember() {
	_, m := s.anyone()
	m.Stop()
	s.killBroker()
	m.Cont()
}

// closeSession has a driver close its session and open another, with what it holds.
func (s *crew) closeSession() {
	_, m := s.anyone()
	s.hear(m)
	m.do(command{"do": "close"})
	s.forgive(m)
	m.do(command{"do": "check"})
	m.do(command{"do": "read", "topic": "t"})
}

// exec has a driver replaced by a new program in the same process.
func (s *crew) exec() {
	_, m := s.anyone()
	s.hear(m)
	m.do(command{"do": "exec"})
	s.forgive(m)
	m.do(command{"do": "read", "topic": "t"})
}

// pause lets the others run for a while.
func (s *crew) pause() {
	for range s.random.Intn(20000) {
		runtime.Gosched()
	}
}

// part takes what is left in the queue, and checks that every item came and that no
// member left anything.
func (s *crew) part() {
	testkit.Audit(s.t, s.b)
	for {
		a := s.members[0].try(command{"do": "take", "queue": "q", "redeliver": true, "timeout_ms": 100})
		if a.Code == "Timeout" || a.Code == "Empty" {
			break
		}
		if a.Code != "Busy" { // a member is not back yet that has the memory
			require.Empty(s.t, a.Code+a.Broken, a.Message)
			s.seen[a.Seed] = true
		}
	}
	var drivers []*driver
	var missing []string
	for _, m := range s.members {
		for _, item := range m.owed {
			if !s.seen[item] {
				missing = append(missing, fmt.Sprintf("%d of %s (process %d)", item, m.language.name, m.PID()))
			}
		}
		drivers = append(drivers, m.driver)
	}
	require.LessOrEqual(s.t, len(missing), s.unheard, "items that were put and never came: %v", missing)
	part(s.t, s.b, drivers)
}
