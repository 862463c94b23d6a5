package langs

import (
	"maps"
	"testing"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTopicMessagesArriveInOrderReadOnlyAndWhole(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		to.do(command{"do": "read", "topic": "t"})
		for seed := uint64(10); seed < 60; seed++ {
			from.do(command{"do": "send", "topic": "t", "seed": seed, "words": 100 * seed})
			a := to.do(command{"do": "receive", "topic": "t"})
			require.Equal(t, []any{seed, seed - 9, uint64(0), true}, []any{a.Seed, a.Sequence, a.Lost, a.ReadOnly})
		}
		from.do(command{"do": "end", "topic": "t"})
		assert.Equal(t, "Closed", to.try(command{"do": "receive", "topic": "t"}).Code)
		leave(t, b, from, to)
	})
}

// A tensor that is alone stands in one line of its slot.
func TestATensorAloneArrivesAsItWasSent(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		to.do(command{"do": "read", "topic": "t"})
		to.do(command{"do": "read", "topic": "l", "lossless": true, "group": "g"})
		for seed := uint64(1); seed < 30; seed++ {
			send := func(more command) {
				c := command{"do": "send", "lone": true, "seed": seed, "words": 16 * seed}
				maps.Copy(c, more)
				from.do(c)
			}
			send(command{"topic": "t"})
			if seed%3 == 0 { // beside one of the other form
				send(command{"topic": "t", "lone": false, "seed": 1000 + seed})
			}
			send(command{"topic": "l", "lossless": true})
			send(command{"do": "put", "queue": "q"})
			a := to.do(command{"do": "receive", "topic": "t", "hold": seed%5 == 0})
			require.Equal(t, []any{seed, true}, []any{a.Seed, a.ReadOnly})
			if seed%3 == 0 {
				require.Equal(t, 1000+seed, to.do(command{"do": "receive", "topic": "t"}).Seed)
			}
			require.Equal(t, seed, to.do(command{"do": "receive", "topic": "l"}).Seed)
			a = to.do(command{"do": "take", "queue": "q", "write": true})
			require.Equal(t, []any{seed, false}, []any{a.Seed, a.ReadOnly})
		}
		to.do(command{"do": "release"})
		leave(t, b, from, to)
	})
}

func TestOvertakenReaderCountsWhatItLost(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		to.do(command{"do": "read", "topic": "t", "depth": 4})
		from.do(command{"do": "send", "topic": "t", "depth": 4, "seed": 1, "count": 100})
		seen, lost := uint64(0), uint64(0)
		for seen+lost < 100 {
			a := to.do(command{"do": "receive", "topic": "t"})
			seen++
			lost += a.Lost
			require.Equal(t, a.Sequence, a.Seed)
		}
		assert.LessOrEqual(t, seen, uint64(4))
		assert.Equal(t, "Timeout", to.try(command{"do": "receive", "topic": "t", "timeout_ms": 1}).Code)
		leave(t, b, from, to)
	})
}

func TestLosslessTopicWaitsForItsReader(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		to.do(command{"do": "read", "topic": "t", "depth": 2, "lossless": true})
		from.ask(command{"do": "send", "topic": "t", "depth": 2, "lossless": true, "seed": 1, "count": 200, "words": 64})
		for seed := uint64(1); seed <= 200; seed++ {
			a := to.do(command{"do": "receive", "topic": "t"})
			require.Equal(t, []uint64{seed, 0}, []uint64{a.Seed, a.Lost})
		}
		var a answer
		from.Next(&a)
		require.Empty(t, a.Message+a.Broken)
		leave(t, b, from, to)
	})
}

func TestQueueItemsAreWrittenByTheirTaker(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		from.ask(command{"do": "put", "queue": "q", "depth": 3, "seed": 1, "count": 100})
		for seed := uint64(1); seed <= 100; seed++ {
			a := to.do(command{"do": "take", "queue": "q", "depth": 3, "write": true})
			require.Equal(t, []any{seed, false}, []any{a.Seed, a.ReadOnly})
		}
		var a answer
		from.Next(&a)
		require.Empty(t, a.Message+a.Broken)
		assert.Equal(t, "Empty", to.try(command{"do": "take", "queue": "q", "timeout_ms": 1}).Code)
		from.do(command{"do": "end", "queue": "q"})
		assert.Equal(t, "Closed", to.try(command{"do": "take", "queue": "q"}).Code)
		leave(t, b, from, to)
	})
}

func TestItemsOfADeadTakerGoToAnother(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, dies, other *driver) {
		other.do(command{"do": "put", "queue": "q", "redeliver": true, "seed": 1, "count": 3})
		a := dies.do(command{"do": "take", "queue": "q", "redeliver": true, "hold": true})
		require.Equal(t, uint64(1), a.Seed)
		dies.Kill()
		testkit.Gone(t, b, dies.PID())
		for range 3 {
			a = other.do(command{"do": "take", "queue": "q"})
			require.NotZero(t, a.Seed)
		}
		assert.Equal(t, "Empty", other.try(command{"do": "take", "queue": "q", "timeout_ms": 1}).Code)
		leave(t, b, other)
	})
}

func TestNamesHaveTheirRevisions(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		to.lacks("w/a")
		for seed := uint64(1); seed <= 20; seed++ {
			assert.Equal(t, seed, from.do(command{"do": "set", "name": "w/a", "seed": seed}).Revision)
			a := to.do(command{"do": "get", "name": "w/a", "seed": seed, "hold": seed == 7})
			require.Equal(t, []any{seed, seed, true}, []any{a.Revision, a.Seed, a.ReadOnly}, "the seed is meta")
		}
		to.do(command{"do": "delete", "name": "w/a"})
		from.lacks("w/a")
		leave(t, b, from, to)
	})
}

// lacks expects that a name is not set. Where a name is waited for, so long must be
// enough for the broker's answer, too.
func (d *driver) lacks(name string) {
	d.t.Helper()
	testkit.Until(d.t, "the broker tells that "+name+" is not set", func() (bool, string) {
		a := d.try(command{"do": "get", "name": name, "timeout_ms": 200})
		require.Contains(d.t, []string{"NotFound", "Timeout"}, a.Code, "%s", a.Message+a.Broken)
		return a.Code == "NotFound", a.Message
	})
}

func TestLiveNameIsOneMemoryForAll(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		from.do(command{"do": "set", "name": "live", "live": true, "seed": 5, "words": 10})
		assert.False(t, to.do(command{"do": "get", "name": "live", "seed": 5, "write": true}).ReadOnly)
		a := from.try(command{"do": "get", "name": "live", "seed": 5})
		assert.Equal(t, "word 0 of seed 5", a.Broken, "what the other wrote is seen")
		from.do(command{"do": "delete", "name": "live"})
		leave(t, b, from, to)
	})
}

func TestHandleOpensInTheOtherLanguageAndExpires(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		h := from.do(command{"do": "handle", "seed": 3, "words": 5000}).Handle
		assert.False(t, to.do(command{"do": "open", "handle": h, "seed": 3}).ReadOnly)
		from.Kill()
		testkit.Gone(t, b, from.PID())
		to.do(command{"do": "open", "handle": h, "seed": 3, "hold": true}) // its lease holds it
		to.do(command{"do": "release"})
		to.Done()
	})
}

func TestTensorOfCInHugePagesIsOpenedInGo(t *testing.T) {
	testkit.OwnHugePages(t)
	testkit.Need(t, "huge-pages")
	free := func() uint64 {
		n, err := sys.FreeHugePages(2 << 20)
		require.NoError(t, err)
		return n
	}
	before := free()
	b := testkit.StartBroker(t)
	from, to := start(t, b, languages[2]), start(t, b, languages[0])
	h := from.do(command{"do": "handle", "seed": 3, "words": 5000, "pages": "2M"}).Handle
	require.Less(t, free(), before, "the tensor lies in huge pages")
	to.do(command{"do": "open", "handle": h, "seed": 3})
	leave(t, b, from, to)
}

func TestKilledReaderLeavesNothing(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, dies *driver) {
		dies.do(command{"do": "read", "topic": "t"})
		from.do(command{"do": "send", "topic": "t", "count": 5})
		for range 5 {
			dies.do(command{"do": "receive", "topic": "t", "hold": true})
		}
		from.do(command{"do": "set", "name": "n", "seed": 1})
		dies.do(command{"do": "get", "name": "n", "seed": 1, "hold": true})
		dies.Kill()
		testkit.Gone(t, b, dies.PID())
		from.do(command{"do": "delete", "name": "n"})
		leave(t, b, from)
	})
}

func TestKilledSenderIsStillReceivedAndThenLeavesNothing(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, dies, to *driver) {
		to.do(command{"do": "read", "topic": "t"})
		dies.do(command{"do": "send", "topic": "t", "seed": 1, "count": 8})
		dies.Kill()
		testkit.Gone(t, b, dies.PID())
		for seed := uint64(1); seed <= 8; seed++ {
			require.Equal(t, seed, to.do(command{"do": "receive", "topic": "t", "hold": true}).Seed)
		}
		leave(t, b, to)
	})
}

// leave makes drivers let go of everything, and looks that nothing is held
// and nothing is left of the dead.
func leave(t *testing.T, b *testkit.Broker, drivers ...*driver) {
	t.Helper()
	for _, d := range drivers {
		d.do(command{"do": "release"})
		d.do(command{"do": "forget"})
	}
	testkit.AuditEmpty(t, b)
	for _, d := range drivers {
		d.Done()
	}
}

func TestHandOverGoesOnThroughTheDeathOfTheBroker(t *testing.T) {
	pairs(t, func(t *testing.T, b *testkit.Broker, from, to *driver) {
		to.do(command{"do": "read", "topic": "t"})
		from.do(command{"do": "set", "name": "n", "seed": 9})
		from.do(command{"do": "send", "topic": "t", "seed": 1})
		require.Equal(t, uint64(1), to.do(command{"do": "receive", "topic": "t", "hold": true}).Seed)
		b.Kill()
		from.do(command{"do": "send", "topic": "t", "seed": 2, "count": 3})
		for seed := uint64(2); seed <= 4; seed++ {
			require.Equal(t, seed, to.do(command{"do": "receive", "topic": "t"}).Seed)
		}
		b.Restart()
		to.do(command{"do": "get", "name": "n", "seed": 9})
		to.do(command{"do": "read", "topic": "u"})
		from.do(command{"do": "send", "topic": "u", "seed": 5, "words": 1 << 20})
		require.Equal(t, uint64(5), to.do(command{"do": "receive", "topic": "u"}).Seed)
		from.do(command{"do": "send", "topic": "t", "seed": 6})
		require.Equal(t, uint64(6), to.do(command{"do": "receive", "topic": "t"}).Seed)
		from.do(command{"do": "delete", "name": "n"})
		leave(t, b, from, to)
	})
}
