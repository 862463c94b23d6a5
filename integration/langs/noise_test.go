package langs

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/stretchr/testify/require"
)

// A client in C writes noise into every page that it may write, while honest
// ones of all languages share two topics with it and have one of their own.
// None of them crashes, what honest ones send arrives whole, the broker lives,
// and when the hostile one has died nothing of it is left.
func TestNoiseOfAClientInC(t *testing.T) {
	noise := clib.Compiled(t, "gcc", "integration/langs/c/noise.c", "-O2")
	b := testkit.StartBroker(t)
	var honest []*driver
	join := func(l language) {
		d := start(t, b, l)
		d.do(command{"do": "read", "topic": "commons"})
		d.do(command{"do": "read", "topic": "council", "lossless": true, "group": "mixed"})
		d.do(command{"do": "read", "topic": "safe"})
		honest = append(honest, d)
	}
	for _, l := range languages {
		join(l)
	}
	seed := rand.Int63()
	t.Logf("random seed %d", seed)
	hostile := b.Start("hostile", nil, testkit.Program(noise), testkit.Env("NOISE_SEED", fmt.Sprint(seed)))
	var said struct{ Pages, Rounds int }
	hostile.Next(&said)
	require.Positive(t, said.Pages)
	// Ones that meet the hostile one's pages as they are now.
	for _, l := range languages {
		join(l)
	}
	words := uint64(0)
	exchange := func() {
		for _, from := range honest {
			words++
			from.do(command{"do": "send", "topic": "safe", "seed": words, "words": 2 + words%350*2})
			for _, to := range honest {
				require.Equal(t, words, to.do(command{"do": "receive", "topic": "safe"}).Seed)
				// Of the hostile one anything may come, but an answer must.
				to.try(command{"do": "receive", "topic": "commons", "timeout_ms": 0})
				to.try(command{"do": "receive", "topic": "council", "timeout_ms": 0})
			}
			from.try(command{"do": "send", "topic": "commons", "words": 10})
			from.try(command{"do": "send", "topic": "council", "lossless": true, "words": 10, "timeout_ms": 0})
		}
	}
	for range 5 {
		hostile.Next(&said)
		exchange()
		require.True(t, hostile.Alive(), hostile.Log())
	}
	hostile.Kill()
	testkit.Gone(t, b, hostile.PID())
	testkit.Audit(t, b)
	exchange()
	honest[0].do(command{"do": "end", "topic": "council"})
	leave(t, b, honest...)
}
