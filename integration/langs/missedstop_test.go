package langs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// inFiles starts a broker whose memory outlives it.
func inFiles(t *testing.T) *testkit.Broker {
	dir := t.TempDir()
	return testkit.StartBroker(t, func(c *testkit.BrokerConfig) { c.MemoryDir = dir })
}

// A client that is suspended while a broker with its memory in files is stopped goes on with
// the next one, which counted it as a member meanwhile: it receives what is sent, and what it
// had put is taken.
func TestWhoStandsStillOverAStopGoesOn(t *testing.T) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			b := inFiles(t)
			late := start(t, b, l)
			late.do(command{"do": "read", "topic": "t"})
			late.do(command{"do": "put", "queue": "q", "seed": 10, "count": 3, "words": 3000})
			late.do(command{"do": "hoard", "seed": 60, "count": 3})
			late.Stop()
			b.End()
			late.Cont() // it learns of the stop, and finds that its session goes on
			b.Restart()
			other := start(t, b, languages[0])
			other.do(command{"do": "send", "topic": "t", "seed": 50, "words": 3000})
			require.EqualValues(t, 50, late.do(command{"do": "receive", "topic": "t"}).Seed)
			for k := range 3 {
				require.EqualValues(t, 10+k, other.do(command{"do": "take", "queue": "q"}).Seed)
			}
			late.do(command{"do": "release"})
			leave(t, b, late, other)
		})
	}
}

// What a session had put when its broker was stopped is free once others have taken it from
// the next one, though its process goes on with all that it had open.
func TestLanesOfALostSessionAreEmptied(t *testing.T) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			b := inFiles(t)
			other := start(t, b, languages[0]) // which has the queue open over the stop
			other.do(command{"do": "put", "queue": "q", "seed": 1})
			other.do(command{"do": "take", "queue": "q"})
			lost := start(t, b, l)
			lost.do(command{"do": "put", "queue": "q", "seed": 10, "count": 3, "words": 3000})
			other.Stop()
			b.End()
			other.Cont()
			require.Equal(t, "SessionLost", lost.try(command{"do": "put", "queue": "q", "seed": 13}).Code)
			b.Restart()
			for k := range 3 {
				require.EqualValues(t, 10+k, other.do(command{"do": "take", "queue": "q"}).Seed)
			}
			testkit.Until(t, "what was taken is free", func() (bool, string) {
				h := testkit.Look(t, b)
				return len(h.Storages) == 0, h.String()
			})
			lost.Kill()
			leave(t, b, other)
		})
	}
}
