package langs

import (
	"math/rand"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

// kills is how many processes the campaign kills.
func kills(t *testing.T) int {
	n := 40
	if s := os.Getenv("BATON_CRASH_KILLS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err, "BATON_CRASH_KILLS")
	}
	return n
}

// may is what may happen to a command while others are killed.
var may = []string{"", "Timeout", "Empty", "Full", "NotFound"}

// Drivers of all languages send, receive, put, take and set names side by side.
// Again and again one is killed at some instruction and another takes its place.
// Whatever arrives is whole, and in the end nothing is left of any process.
func TestRandomKillsInMixedCompany(t *testing.T) {
	b := testkit.StartBroker(t)
	random, drivers, join := company(t, b)
	for n := range kills(t) {
		for _, d := range drivers {
			d.ask(work(random))
		}
		for range random.Intn(5000) {
			runtime.Gosched()
		}
		victim := n % len(drivers)
		drivers[victim].Kill()
		for i, d := range drivers {
			if i == victim {
				continue
			}
			d.answersAsItMay(t)
		}
		drivers[victim] = join(languages[victim%len(languages)])
	}
	part(t, b, drivers)
}

// As above, and no process dies: one, or the broker, is stopped at some instruction. The
// others do not need a driver that is suspended; when it goes on, and when the broker
// does, all goes on as if nothing had been.
func TestRandomStopsInMixedCompany(t *testing.T) {
	b := testkit.StartBroker(t)
	random, drivers, _ := company(t, b)
	for n := range kills(t) / 2 { // a stopped one holds the round up
		for _, d := range drivers {
			d.ask(work(random))
		}
		for range random.Intn(5000) {
			runtime.Gosched()
		}
		late := drivers // without the broker any driver may be late
		stopped := b.Process()
		if victim := n % (len(drivers) + 1); victim < len(drivers) {
			stopped, late = drivers[victim].Process, drivers[victim:victim+1]
		}
		stopped.Stop()
		for _, d := range drivers {
			if !slices.Contains(late, d) {
				d.answersAsItMay(t)
			}
		}
		stopped.Cont()
		for _, d := range late {
			d.answersAsItMay(t)
		}
	}
	part(t, b, drivers)
}

// company starts two drivers of each language, and gives what starts another.
func company(t *testing.T, b *testkit.Broker) (*rand.Rand, []*driver, func(language) *driver) {
	seed := rand.Int63()
	t.Logf("random seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	join := func(l language) *driver {
		d := start(t, b, l)
		d.do(command{"do": "read", "topic": "t"})
		return d
	}
	var drivers []*driver
	for range 2 {
		for _, l := range languages {
			drivers = append(drivers, join(l))
		}
	}
	return random, drivers, join
}

// part has drivers end, and nothing is left of them.
func part(t *testing.T, b *testkit.Broker, drivers []*driver) {
	testkit.Audit(t, b)
	drivers[0].do(command{"do": "set", "name": "w", "seed": nameSeed})
	drivers[0].do(command{"do": "delete", "name": "w"})
	leave(t, b, drivers...)
}

func (d *driver) answersAsItMay(t *testing.T) {
	var a answer
	d.Next(&a)
	require.Empty(t, a.Broken, d.Name)
	require.Contains(t, may, a.Code, a.Message)
}

// nameSeed is the seed of every revision of the name, so that a reader knows it.
const nameSeed = 7

// work is something to do that takes a while.
func work(random *rand.Rand) command {
	words := 2 * (1 + random.Intn(1500))
	return slices.Clone([]command{
		{"do": "send", "topic": "t", "seed": random.Intn(1000), "count": 30, "words": words},
		{"do": "receive", "topic": "t", "timeout_ms": 5},
		{"do": "receive", "topic": "t", "timeout_ms": 5, "hold": true},
		{"do": "put", "queue": "q", "redeliver": true, "seed": random.Intn(1000), "count": 5, "words": words, "timeout_ms": 5},
		{"do": "take", "queue": "q", "redeliver": true, "timeout_ms": 5, "write": true},
		{"do": "take", "queue": "q", "redeliver": true, "timeout_ms": 5, "hold": true},
		{"do": "set", "name": "w", "seed": nameSeed, "words": words},
		{"do": "get", "name": "w", "seed": nameSeed, "timeout_ms": 50},
		{"do": "handle", "seed": 3, "words": words},
		{"do": "release"},
		{"do": "collect"},
	})[random.Intn(11)]
}
