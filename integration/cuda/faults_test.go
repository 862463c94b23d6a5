package cuda

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

func init() { roles["driver that begins anew"] = beginAnew }

// beginAnew is the driver in Go; where it cannot begin it tells why, and tries again.
func beginAnew(child *testkit.Child) error {
	w, err := newWorker(child)
	for ; err != nil; w, err = newWorker(child) {
		if err := child.Say(told(answer{}, err)); err != nil {
			return err
		}
	}
	if err := child.Say(answer{}); err != nil {
		return err
	}
	if err := drive(w); err != nil {
		return err
	}
	return w.c.Close()
}

// everything has a driver do all that it can with another one, which is well, by queues
// and names of this run's, and adds what was refused.
func everything(t *testing.T, run string, s, peer *speaker, refused *[]answer) {
	t.Helper()
	try := func(s *speaker, c command) answer {
		t.Helper()
		a := s.try(c)
		if a.Code+a.Broken != "" {
			*refused = append(*refused, a)
		}
		return a
	}
	in, name := run+"/in", run+"/name"
	for seed := range 2 {
		out := fmt.Sprint(run, "/out", seed)
		peer.do(command{"do": "take", "queue": out, "count": 0}) // keeps the queue
		if try(s, command{"do": "put", "queue": out, "seed": seed, "bytes": 100_000}).Code == "" {
			assert.Equal(t, numbers(seed, 1), peer.do(command{"do": "take", "queue": out}))
		}
	}
	try(s, command{"do": "take", "queue": in, "count": 0})
	for i, do := range []string{"put", "lend"} {
		peer.do(command{"do": do, "queue": in, "seed": 7 * i, "count": 2, "bytes": 100_000})
		for seed := range 2 {
			if a := try(s, command{"do": "take", "queue": in, "hold": seed == 0}); a.Code == "" {
				assert.Equal(t, numbers(7*i+seed, 1), a.Seen)
			}
		}
		try(s, command{"do": "held"})
		try(s, command{"do": "release"})
	}
	if try(s, command{"do": "set", "name": name, "seed": 4}).Code == "" {
		assert.Equal(t, numbers(4, 1), peer.do(command{"do": "get", "name": name}))
		peer.do(command{"do": "delete", "name": name})
	}
	if h := try(s, command{"do": "handle", "seed": 5}); h.Code == "" {
		assert.Equal(t, numbers(5, 1), peer.do(command{"do": "open", "handle": h.Handle}))
	}
}

// Whichever call of the driver fails, once, no more than what it was for is refused, by a
// typed error, all else goes on, and nothing is left behind.
func TestEachCallOfTheDriverFailsOnce(t *testing.T) {
	standinOnly(t)
	for _, l := range languages[:2] { // C and Python call it through Rust
		t.Run(l.name, func(t *testing.T) {
			l.with(t)
			m := start(t, 1)
			testkit.Look(t, m.Broker) // its own session stays
			before := testkit.FDs(m.Process().PID())
			peer := m.speak(t, languages[0])
			// begin starts a driver of which one call fails, and tells what came of its start.
			begin := func(nth int) (*speaker, []answer) {
				role, opts := "driver", append(l.with(t), testkit.Env("BATON_STANDIN_DELAY", "0"))
				if nth > 0 {
					opts = append(opts, testkit.Env("BATON_STANDIN_FAULTS", fmt.Sprintf("*=998@%d", nth)))
				}
				if l.name == "go" {
					role += " that begins anew"
				}
				s := &speaker{m.play(role, nil, opts...), t}
				var refused []answer
				for a := (answer{Code: "not begun"}); l.name == "go" && a.Code != ""; {
					if s.Next(&a); a.Code != "" {
						refused = append(refused, a)
					}
				}
				return s, refused
			}
			s, refused := begin(0)
			everything(t, "first", s, peer, &refused)
			n, err := strconv.Atoi(fmt.Sprint(s.do(command{"do": "calls"})[0]))
			require.NoError(t, err)
			everything(t, "second", s, peer, &refused)
			require.Empty(t, refused)
			s.Done()
			peer.do(command{"do": "free"})
			for nth := 1; nth <= n; nth++ {
				s, refused := begin(nth)
				everything(t, fmt.Sprint(nth), s, peer, &refused)
				everything(t, fmt.Sprint("again", nth), s, peer, &refused)
				s.Done()
				peer.do(command{"do": "free"})
				said := fmt.Sprintf("call %d: %s refused: %+v", nth, s.Log(), refused)
				assert.Contains(t, s.Log(), "told to fail")
				assert.LessOrEqual(t, len(refused), 1, said)
				for _, a := range refused {
					assert.NotEmpty(t, a.Code, said)
					assert.Contains(t, a.Message, "CUDA error 998", said)
				}
			}
			peer.Done()
			m.empty(t)
			brokerKeepsNoMore(t, m, before)
		})
	}
}
