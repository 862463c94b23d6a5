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

// reply is what `baton evict` says of a session.
type reply struct {
	Serial uint64
	protocol.EvictReply
}

// evict has `baton evict` end the session of a driver.
func evict(t *testing.T, b *testkit.Broker, d *driver, flags ...string) reply {
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
	var replies []reply
	require.NoError(t, json.Unmarshal(out, &replies), "%s", out)
	require.Len(t, replies, 1)
	return replies[0]
}

// opens makes a driver have a queue open until it forgets it.
func opens(d *driver, queue string) {
	d.do(command{"do": "put", "queue": queue, "seed": 1})
	d.do(command{"do": "take", "queue": queue})
}

// holdsOfAll makes a driver hold what it made, what it received and an item of a queue, and
// have sent what others are to receive.
func holdsOfAll(d, other *driver, l language) {
	d.do(command{"do": "hoard", "seed": 60, "count": 3, "words": 3000})
	d.do(command{"do": "read", "topic": "t"})
	other.do(command{"do": "send", "topic": "t", "seed": 5, "words": 3000})
	d.do(command{"do": "receive", "topic": "t", "hold": true})
	other.do(command{"do": "put", "queue": "q", "redeliver": true, "seed": 7})
	d.do(command{"do": "take", "queue": "q", "redeliver": true, "hold": true})
	if l.name == python.name { // whose driver puts nothing
		d = other
	}
	d.do(command{"do": "put", "queue": "sent", "seed": 20, "count": 3, "words": 3000})
}

// lostCall asks for what a lost session refuses.
var lostCall = command{"do": "set", "name": "n", "seed": 30, "timeout_ms": 5000}

// over waits until a broker has a session no more.
func over(t *testing.T, b *testkit.Broker, serial uint64) {
	t.Helper()
	testkit.Until(t, "the session is over", func() (bool, string) {
		h := testkit.Look(t, b)
		for _, s := range h.Sessions {
			if s.Serial == serial {
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
// process holds stays as it was. Its item goes to another taker once it has let go of it, and
// what it had sent is received.
func TestEvictedSessionIsLostAndItsProcessKeepsWhatItHolds(t *testing.T) {
	for _, l := range everyLanguage(t) {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			other, d := start(t, b, languages[0]), start(t, b, l)
			opens(other, "sent")
			holdsOfAll(d, other, l)
			r := evict(t, b, d)
			require.Equal(t, protocol.EvictedClosed, r.State)
			require.Equal(t, d.PID(), r.PID)
			require.Greater(t, r.Held, uint64(4*3000*8), "what it made and received")

			lost := d.try(lostCall)
			require.Equal(t, "SessionLost", lost.Code)
			require.Contains(t, lost.Message, "an operator evicted it")
			for k := range 3 {
				require.EqualValues(t, 20+k, other.do(command{"do": "take", "queue": "sent"}).Seed)
			}
			fillAnew(other)
			d.do(command{"do": "check"})
			d.do(command{"do": "release"})
			require.EqualValues(t, 7, other.do(command{"do": "take", "queue": "q", "redeliver": true}).Seed)
			over(t, b, r.Serial)
			d.Kill()
			leave(t, b, other)
		})
	}
}

// A process that is suspended keeps all its memory when it is evicted, and nothing else. It hears
// of the end when it goes on, also from another broker, and its item goes to another taker once
// it has let go of it.
func TestEvictedProcessThatStandsStillHearsOfItLater(t *testing.T) {
	for _, l := range everyLanguage(t) {
		for _, way := range []string{"same broker", "broker replaced"} {
			t.Run(l.name+" "+way, func(t *testing.T) {
				b := testkit.StartBroker(t)
				other, d := start(t, b, languages[0]), start(t, b, l)
				opens(other, "sent")
				holdsOfAll(d, other, l)
				d.Stop()
				r := evict(t, b, d)
				require.Equal(t, protocol.EvictedUnheard, r.State)
				require.GreaterOrEqual(t, r.Granted, r.Held-3000*8)
				for k := range 3 {
					require.EqualValues(t, 20+k, other.do(command{"do": "take", "queue": "sent"}).Seed)
				}
				if way == "broker replaced" {
					b.Replace()
				}
				fillAnew(other)
				d.Cont()
				var lost answer
				testkit.Until(t, "it hears that its session is lost", func() (bool, string) {
					lost = d.try(lostCall)
					return lost.Code == "SessionLost", lost.Code + lost.Broken
				})
				require.Regexp(t, "an operator (has )?evicted it", lost.Message, "the broker says so, or the client")
				d.do(command{"do": "check"})
				d.do(command{"do": "release"})
				require.EqualValues(t, 7, other.do(command{"do": "take", "queue": "q", "redeliver": true}).Seed)
				over(t, b, r.Serial)
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
	opens(other, "sent")
	for _, still := range []bool{false, true} {
		d := start(t, b, languages[0])
		holdsOfAll(d, other, languages[0])
		if still {
			d.Stop()
		}
		r := evict(t, b, d, "--kill")
		require.Equal(t, protocol.EvictedOver, r.State)
		require.True(t, r.Killed)
		require.Zero(t, r.Held)
		d.Killed()
		testkit.Gone(t, b, d.PID())
		other.do(command{"do": "take", "queue": "q", "redeliver": true})
		for range 3 {
			other.do(command{"do": "take", "queue": "sent"})
		}
	}
	leave(t, b, other)
}

// A process that is suspended while its broker dies has no connection to the next one, which
// evicts it. It says why its session is lost all the same.
func TestProcessEvictedAfterATakeOverSaysWhyItsSessionIsLost(t *testing.T) {
	for _, l := range everyLanguage(t) {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			other, d := start(t, b, languages[0]), start(t, b, l)
			d.do(command{"do": "hoard", "seed": 60, "count": 3})
			d.Stop()
			b.Kill()
			b.Restart()
			require.Equal(t, protocol.EvictedUnheard, evict(t, b, d).State)
			d.Cont()
			var lost answer
			testkit.Until(t, "it hears that its session is lost", func() (bool, string) {
				lost = d.try(lostCall)
				return lost.Code == "SessionLost", lost.Code + lost.Broken
			})
			require.Contains(t, lost.Message, "an operator evicted it")
			d.do(command{"do": "check"})
			d.Kill()
			testkit.Gone(t, b, d.PID())
			leave(t, b, other)
		})
	}
}

// The session of a process that holds nothing is over at once, and its record is gone. The process says that an
// operator evicted it all the same.
func TestEvictedProcessThatHoldsNothingSaysWhyItsSessionIsLost(t *testing.T) {
	for _, l := range everyLanguage(t) {
		for _, way := range []string{"works", "is suspended", "broker killed before", "broker killed behind"} {
			t.Run(l.name+" "+way, func(t *testing.T) {
				b := testkit.StartBroker(t)
				other, d := start(t, b, languages[0]), start(t, b, l)
				d.do(command{"do": "hoard", "seed": 60, "count": 1})
				d.do(command{"do": "release"})
				if way != "works" {
					d.Stop()
				}
				if way == "broker killed before" { // whose successor has no connection to it
					b.Kill()
					b.Restart()
				}
				r := evict(t, b, d)
				if way == "works" { // else it stays, as its client may count until it has read so
					over(t, b, r.Serial)
				}
				if way == "broker killed behind" {
					b.Kill()
					b.Restart()
				}
				d.Cont()
				var lost answer
				testkit.Until(t, "it hears that its session is lost", func() (bool, string) {
					lost = d.try(lostCall)
					return lost.Code == "SessionLost", lost.Code + lost.Broken
				})
				require.Regexp(t, "an operator (has )?evicted it", lost.Message)
				d.Kill()
				leave(t, b, other)
			})
		}
	}
}
