package langs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// A provider replies what it should not: replies of other calls, several, and what is none. A caller in each language has
// the result, or ProtocolError, once, and its next call goes on.
func TestOddRepliesAtCallersInEachLanguage(t *testing.T) {
	languages := deathLanguages(t)
	odd := testkit.TestBinary(t, "client")
	b := testkit.StartBroker(t)
	provider := b.Start("odd", nil, testkit.Program(odd), testkit.Env("BATON_TEST_ODD_PROVIDER", "1"))
	var ends map[string]string // how a call ends, by what the provider does
	provider.Next(&ends)
	require.NotEmpty(t, ends)
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			d := &deaths{t: t, b: b}
			caller := d.plays(l, "ask")
			for how, code := range ends {
				if code == "" {
					code = "1"
				}
				for _, call := range [][2]string{{how, code}, {"none", "1"}} {
					caller.Tell(call[0])
					var said string
					caller.Next(&said)
					require.Equal(t, call[1], said, how)
				}
			}
			caller.Done()
		})
	}
	provider.Done()
	testkit.AuditEmpty(t, b)
}
