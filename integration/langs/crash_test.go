package langs

import (
	"testing"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

// repertoire is all that a driver can do, so that it comes by every point. Between
// the two parts its partner falls asleep: a new lane alone has woken it. A process that dies in
// a wait waits however long it takes to come to that.
func repertoire(handle any, point crashpoint.Point) (opening, rest []command) {
	room, message := 1, 50
	if point.InAWait() {
		message = int(testkit.Patience.Milliseconds())
		if !point.ForMessages() {
			room = message
		}
	}
	opening = []command{
		{"do": "hoard", "count": 140, "words": 4}, {"do": "release"}, {"do": "collect"},
		{"do": "read", "topic": "news", "start": "all"},
		{"do": "receive", "topic": "news", "hold": true}, {"do": "receive", "topic": "news"},
		{"do": "send", "topic": "answers", "depth": 4, "seed": 100},
	}
	rest = []command{
		{"do": "send", "topic": "answers", "depth": 4, "seed": 101},
		{"do": "send", "topic": "answers", "depth": 4, "seed": 102, "count": 2, "wide": 60},
		{"do": "send", "topic": "answers", "depth": 4, "seed": 104, "count": 20},
	}
	for _, q := range []string{"work", "plain"} {
		redeliver := q == "work"
		rest = append(rest,
			command{"do": "take", "queue": q, "redeliver": redeliver},
			command{"do": "take", "queue": q, "redeliver": redeliver, "hold": true},
			command{"do": "put", "queue": q, "redeliver": redeliver, "seed": 200, "count": 3})
	}
	return opening, append(rest,
		command{"do": "put", "queue": "full", "depth": 1, "seed": 300},
		command{"do": "put", "queue": "full", "depth": 1, "seed": 301, "timeout_ms": room},
		command{"do": "read", "topic": "empty"}, command{"do": "receive", "topic": "empty", "timeout_ms": message},
		command{"do": "open", "handle": handle, "seed": 7}, command{"do": "handle", "seed": 8},
		command{"do": "set", "name": "weights/dying", "seed": 9}, command{"do": "get", "name": "weights/dying", "seed": 9},
		command{"do": "collect"}, command{"do": "forget"},
		// Leaving is carried out beside; the second answer comes after it.
		command{"do": "get", "name": "weights/dying", "seed": 9}, command{"do": "get", "name": "weights/dying", "seed": 9},
		command{"do": "quit"},
	)
}

// TestRustDriverKilledAtEveryPointLeavesNothing kills a driver in Rust between two
// instructions, at each point of the list, while one in Go works with it: nothing
// that was the dead one's is left, what it had sent is received whole, and the
// other goes on.
func TestRustDriverKilledAtEveryPointLeavesNothing(t *testing.T) {
	program := rustDriver(t) // with all features: crash points, too
	for _, p := range crashpoint.Points {
		t.Run(p.Name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			partner := start(t, b, languages[0])
			partner.do(command{"do": "read", "topic": "answers", "depth": 4})
			partner.do(command{"do": "send", "topic": "news", "seed": 1})
			partner.do(command{"do": "send", "topic": "news", "seed": 2, "wide": 60})
			for _, q := range []string{"work", "plain"} {
				partner.do(command{"do": "put", "queue": q, "redeliver": q == "work", "seed": 10, "count": 2})
				partner.do(command{"do": "put", "queue": q, "redeliver": q == "work", "seed": 12, "wide": 60})
			}
			handle := partner.do(command{"do": "handle", "seed": 7}).Handle
			partner.ask(command{"do": "receive", "topic": "answers"})
			partner.ask(command{"do": "receive", "topic": "answers"})

			dying := &driver{b.Start("driver", nil, testkit.Program(program), testkit.Env(crashpoint.Env, p.Name)), t}
			opening, rest := repertoire(handle, p)
			for _, c := range opening {
				dying.ask(c)
			}
			due := 2 // answers of the partner
			if meet(t, b, partner, dying, len(opening)) {
				due--
			}
			for _, c := range rest {
				dying.ask(c)
			}
			dying.Killed()
			testkit.Gone(t, b, dying.PID())
			testkit.Audit(t, b)
			goOn(t, b, partner, due)
			testkit.Audit(t, b)
			partner.Done()
		})
	}
}

// meet waits until the dying one has given its answers and the partner, whom it
// has to wake next, has received what came and sleeps; or until the one is dead,
// which makes it false.
func meet(t *testing.T, b *testkit.Broker, partner, dying *driver, answers int) bool {
	t.Helper()
	var word func() uint64
	for _, s := range testkit.Look(t, b).Sessions {
		if int(s.PID) == partner.PID() {
			word = testkit.ParkedWord(t, b, s.Serial)
		}
	}
	require.NotNil(t, word, "the partner has no session")
	var a answer
	for ; answers > 0; answers-- {
		testkit.Until(t, "the next answer", func() (bool, string) { return dying.Poll(&a) || !dying.Alive(), "" })
	}
	if !dying.Alive() {
		return false
	}
	partner.Next(&a)
	require.Equal(t, uint64(100), a.Seed, a.Broken)
	testkit.Until(t, "the partner sleeps", func() (bool, string) { return word()&1 == 1, "" })
	return true
}

// goOn receives what the dead one has sent, and uses all that it shared.
func goOn(t *testing.T, b *testkit.Broker, partner *driver, due int) {
	t.Helper()
	other := start(t, b, languages[0])
	// For whom nothing had come.
	other.do(command{"do": "send", "topic": "answers", "depth": 4, "seed": 500, "count": 2})
	var a answer
	for ; due > 0; due-- {
		partner.Next(&a)
		require.Empty(t, a.Code+a.Broken, a.Message)
	}
	a = partner.try(command{"do": "receive", "topic": "answers", "timeout_ms": 1})
	for ; a.Code != "Timeout"; a = partner.try(command{"do": "receive", "topic": "answers", "timeout_ms": 1}) {
		require.Empty(t, a.Code+a.Broken, a.Message)
	}
	for _, q := range []string{"work", "plain"} {
		partner.do(command{"do": "put", "queue": q, "redeliver": q == "work", "seed": 900})
		for a.Seed = 0; a.Seed != 900; {
			a = partner.do(command{"do": "take", "queue": q, "redeliver": q == "work"})
		}
	}
	partner.do(command{"do": "open", "handle": partner.do(command{"do": "handle", "seed": 17}).Handle, "seed": 17})
	other.Done()
}
