package langs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// Memory whose grant is under way while a broker begins is handed to that one after the list of
// what its session has: what is put from it is taken.
func TestGrantUnderWayWhileABrokerBeginsIsHandedOver(t *testing.T) {
	const words = 32 << 20 // which take a while to be made ready
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			b := testkit.StartBroker(t)
			grows, taker := start(t, b, l), start(t, b, languages[0])
			grows.ask(command{"do": "put", "queue": "q", "seed": 1, "words": words})
			testkit.Until(t, "the memory is granted", func() (bool, string) {
				h := testkit.Look(t, b)
				for _, g := range h.Segments {
					if g.Bytes >= 8*words {
						return true, ""
					}
				}
				return false, h.String()
			})
			b.Kill()
			b.Restart()
			var a answer
			grows.Next(&a)
			require.Empty(t, a.Code, a.Message)
			require.EqualValues(t, 1, taker.do(command{"do": "take", "queue": "q"}).Seed)
			leave(t, b, grows, taker)
		})
	}
}
