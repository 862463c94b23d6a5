package langs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// The drivers that take part where the place of a lane is used anew.
type placed struct {
	t                    *testing.T
	b                    *testkit.Broker
	reader, writer, more *driver
}

// lanesAre waits until there are so many lanes: the places of others are free.
func (p *placed) lanesAre(want int) {
	p.t.Helper()
	page := p.b.Raw().Broker
	testkit.Until(p.t, "the lane is no more", func() (bool, string) {
		n := 0
		for i := range uint64(page.Load32(protocol.BrokerTopicsEnd)) {
			at := protocol.BrokerTopics + i*protocol.TopicRecordSize
			for k := range uint64(protocol.MaxLanes) {
				if page.Load64(at+protocol.TopicLanes+k*protocol.LaneRecordSize+protocol.LaneRecordIncarnation) != 0 {
					n++
				}
			}
		}
		return n == want, fmt.Sprint(n, " are there")
	})
}

// A reader that has an old view of a lane receives nothing of the one that has got its
// place: of another queue or topic, while the broker is there, was killed, or stands
// still. The other one's readers miss nothing.
func TestReaderReceivesNothingOfAnotherLaneInItsPlace(t *testing.T) {
	kinds := map[string]func(p *placed, away, back func()){"queue": queuePlaces, "topic": topicPlaces}
	nothing := func(*testkit.Broker) {}
	states := map[string][2]func(b *testkit.Broker){
		"there":   {nothing, nothing},
		"killed":  {(*testkit.Broker).Kill, (*testkit.Broker).Restart},
		"stopped": {func(b *testkit.Broker) { b.Process().Stop() }, func(b *testkit.Broker) { b.Process().Cont() }},
	}
	for _, l := range everyLanguage(t) {
		if l.name == "go" {
			continue // package integration has these
		}
		for kind, places := range kinds {
			for state, put := range states {
				t.Run(fmt.Sprintf("%s, %s, broker %s", l.name, kind, state), func(t *testing.T) {
					b := testkit.StartBroker(t)
					p := &placed{t, b, start(t, b, l), start(t, b, languages[0]), start(t, b, languages[0])}
					places(p, func() { put[0](b) }, func() { put[1](b) })
					for _, d := range []*driver{p.reader, p.writer, p.more} {
						d.do(command{"do": "forget"})
						d.Done()
					}
				})
			}
		}
	}
}

// nothing asserts that an answer is none.
func (p *placed) nothing(a answer) {
	p.t.Helper()
	require.Empty(p.t, a.Broken)
	require.Contains(p.t, []string{"Empty", "Timeout", "BrokerLost"}, a.Code, "seed %d", a.Seed)
}

const places = 10 // one of so many is the former one

func queuePlaces(p *placed, away, back func()) {
	take := func(queue string) command { return command{"do": "take", "queue": queue} }
	briefly := command{"do": "take", "queue": "a", "timeout_ms": 200}
	p.nothing(p.reader.try(briefly)) // it has joined
	for seed := uint64(1); seed <= 5; seed++ {
		p.writer.do(command{"do": "put", "queue": "a", "seed": seed})
		require.Equal(p.t, seed, p.reader.do(take("a")).Seed)
	}
	p.writer.do(command{"do": "forget"})
	p.lanesAre(0)
	// Each sends the numbers that the reader of a waits for.
	other := func(k int) string { return fmt.Sprint("b", k) }
	for k := range places {
		p.writer.do(command{"do": "put", "queue": other(k), "seed": 100, "count": 8})
		require.EqualValues(p.t, 100, p.more.do(take(other(k))).Seed)
	}
	away()
	p.nothing(p.reader.try(briefly))
	for k := range places {
		for seed := uint64(101); seed < 108; seed++ {
			require.Equal(p.t, seed, p.more.do(take(other(k))).Seed, other(k))
		}
	}
	back()
}

func topicPlaces(p *placed, away, back func()) {
	send := func(d *driver, topic string, seed, count uint64) {
		p.t.Helper()
		d.do(command{"do": "send", "topic": topic, "depth": 8, "seed": seed, "count": count})
	}
	p.reader.do(command{"do": "read", "topic": "a", "depth": 8})
	for seed := uint64(1); seed <= 5; seed++ {
		send(p.writer, "a", seed, 1)
		require.Equal(p.t, seed, p.reader.do(command{"do": "receive", "topic": "a"}).Seed)
	}
	p.writer.do(command{"do": "forget"})
	// The lane goes when as many newer messages are there as the topic keeps.
	send(p.more, "a", 50, 8)
	p.lanesAre(1)
	for k := range places {
		send(p.writer, fmt.Sprint("b", k), 100, 7)
	}
	away()
	receive := command{"do": "receive", "topic": "a", "timeout_ms": 200}
	heard := uint64(50)
	for ; ; heard++ {
		a := p.reader.try(receive)
		if a.Code != "" {
			p.nothing(a)
			break
		}
		require.Empty(p.t, a.Broken)
		require.Equal(p.t, heard, a.Seed)
	}
	back()
	// Without a broker it cannot map a lane that it has not seen.
	for ; heard < 58; heard++ {
		require.Equal(p.t, heard, p.reader.do(command{"do": "receive", "topic": "a"}).Seed)
	}
}
