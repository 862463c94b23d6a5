package langs

import (
	"encoding/json"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// evict has `baton evict` end the session of a driver.
func evict(t *testing.T, b *testkit.Broker, d *driver, flags ...string) protocol.EvictReply {
	t.Helper()
	serial := uint64(0)
	for _, s := range testkit.Look(t, b).Sessions {
		if s.PID == d.PID() && s.State != "closed" {
			serial = s.Serial
		}
	}
	require.NotZero(t, serial, "a session of process %d", d.PID())
	args := append([]string{"evict", strconv.FormatUint(serial, 10), "--address", b.Socket, "--yes", "--json"}, flags...)
	out, err := exec.Command(testkit.Binary(t), args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	var replies []protocol.EvictReply
	require.NoError(t, json.Unmarshal(out, &replies), "%s", out)
	require.Len(t, replies, 1)
	return replies[0]
}

// holdsOfAll makes a driver hold what it made, what it received and an item of a queue, and
// have messages and items waiting.
func holdsOfAll(d, other *driver) {
	d.do(command{"do": "hoard", "seed": 60, "count": 3, "words": 3000})
	d.do(command{"do": "read", "topic": "t"})
	other.do(command{"do": "send", "topic": "t", "seed": 5, "words": 3000})
	d.do(command{"do": "receive", "topic": "t", "hold": true})
	other.do(command{"do": "put", "queue": "q", "redeliver": true, "seed": 7})
	d.do(command{"do": "take", "queue": "q", "redeliver": true, "hold": true})
	d.do(command{"do": "put", "queue": "sent", "seed": 20, "count": 3, "words": 3000})
}

// over waits until a broker has no session of a driver any more.
func over(t *testing.T, b *testkit.Broker, d *driver) {
	t.Helper()
	testkit.Until(t, "the session is over", func() (bool, string) {
		h := testkit.Look(t, b)
		for _, s := range h.Sessions {
			if s.PID == d.PID() {
				return false, h.String()
			}
		}
		return true, ""
	})
}

// fillAnew makes others use all memory that is free, so that what a process should have kept
// would be overwritten.
func fillAnew(other *driver) {
	for seed := range 8 {
		other.do(command{"do": "hoard", "seed": 900 + seed, "count": 4, "words": 6000})
	}
	other.do(command{"do": "release"})
}

// A session that is evicted while its process lives and works is lost to that, and what the
// process holds stays as it was. Its item goes to another taker, and what it had sent is
// received.
func TestEvictedSessionIsLostAndItsProcessKeepsWhatItHolds(t *testing.T) {
	for _, l := range everyLanguage(t) {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			other, d := start(t, b, languages[0]), start(t, b, l)
			other.try(command{"do": "take", "queue": "sent", "timeout_ms": 1}) // it has the queue open from here on
			holdsOfAll(d, other)
			reply := evict(t, b, d)
			require.Equal(t, protocol.EvictedClosed, reply.State)
			require.Equal(t, d.PID(), reply.PID)
			require.Greater(t, reply.Held, uint64(4*3000*8), "what it made and received")

			lost := d.try(command{"do": "put", "queue": "sent", "seed": 30})
			require.Equal(t, "SessionLost", lost.Code)
			require.Contains(t, lost.Message, "an operator evicted it")
			require.EqualValues(t, 7, other.do(command{"do": "take", "queue": "q", "redeliver": true}).Seed)
			for k := range 3 {
				require.EqualValues(t, 20+k, other.do(command{"do": "take", "queue": "sent"}).Seed)
			}
			fillAnew(other)
			d.do(command{"do": "check"})
			d.do(command{"do": "release"})
			over(t, b, d)
			d.Kill()
			leave(t, b, other)
		})
	}
}

// A process that stands still keeps all its memory when it is evicted, and nothing else: its
// item goes to another at once. It hears of the end when it goes on, also from another broker.
func TestEvictedProcessThatStandsStillHearsOfItLater(t *testing.T) {
	for _, l := range everyLanguage(t) {
		for _, way := range []string{"same broker", "broker replaced"} {
			t.Run(l.name+" "+way, func(t *testing.T) {
				b := testkit.StartBroker(t)
				other, d := start(t, b, languages[0]), start(t, b, l)
				other.try(command{"do": "take", "queue": "sent", "timeout_ms": 1}) // it has the queue open from here on
				holdsOfAll(d, other)
				d.Stop()
				reply := evict(t, b, d)
				require.Equal(t, protocol.EvictedUnheard, reply.State)
				require.GreaterOrEqual(t, reply.Granted, reply.Held-3000*8)
				require.EqualValues(t, 7, other.do(command{"do": "take", "queue": "q", "redeliver": true}).Seed)
				for k := range 3 {
					require.EqualValues(t, 20+k, other.do(command{"do": "take", "queue": "sent"}).Seed)
				}
				if way == "broker replaced" {
					b.Replace()
				}
				fillAnew(other)
				d.Cont()
				testkit.Until(t, "it hears that its session is lost", func() (bool, string) {
					a := d.try(command{"do": "put", "queue": "sent", "seed": 30})
					return a.Code == "SessionLost", a.Code + a.Broken
				})
				d.do(command{"do": "check"})
				d.do(command{"do": "release"})
				if way == "same broker" { // another one cannot know that it has heard
					over(t, b, d)
				}
				d.Kill()
				testkit.Gone(t, b, d.PID())
				leave(t, b, other)
			})
		}
	}
}

// With --kill the process ends, and nothing of it is left.
func TestEvictKillsTheProcessWhereTold(t *testing.T) {
	b := testkit.StartBroker(t)
	other := start(t, b, languages[0])
	other.try(command{"do": "take", "queue": "sent", "timeout_ms": 1}) // it has the queue open from here on
	for _, still := range []bool{false, true} {
		d := start(t, b, languages[0])
		holdsOfAll(d, other)
		if still {
			d.Stop()
		}
		reply := evict(t, b, d, "--kill")
		require.Equal(t, protocol.EvictedOver, reply.State)
		require.True(t, reply.Killed)
		require.Zero(t, reply.Held)
		d.Killed()
		testkit.Gone(t, b, d.PID())
		other.do(command{"do": "take", "queue": "q", "redeliver": true})
		for range 3 {
			other.do(command{"do": "take", "queue": "sent"})
		}
	}
	leave(t, b, other)
}
