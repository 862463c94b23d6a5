package langs

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// A provider replies what it should not: replies of other calls, several, and what is
// none, and parts in an order that is none. A caller in each language has
// the result, or ProtocolError, once, and its next call goes on.
func TestOddRepliesAtCallersInEachLanguage(t *testing.T) {
	languages := deathLanguages(t)
	odd := testkit.TestBinary(t, "client")
	b := testkit.StartBroker(t)
	provider := b.Start("odd", nil, testkit.Program(odd), testkit.Env("BATON_TEST_ODD_PROVIDER", "1"))
	var ends struct { // by what the provider does
		Calls map[string]string
		Parts map[string]struct {
			Parts int
			Code  string
		}
	}
	provider.Next(&ends)
	answers := map[string]string{}
	for how, code := range ends.Calls {
		answers[how] = cmp.Or(code, "1")
	}
	for how, end := range ends.Parts {
		answers["parts:"+how] = strings.TrimSpace(fmt.Sprint(end.Parts, " ", end.Code))
	}
	require.Contains(t, answers, "parts:none")
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			d := &deaths{t: t, b: b}
			caller := d.plays(l, "ask")
			for how, answer := range answers {
				for _, call := range [][2]string{{how, answer}, {"none", "1"}, {"parts:none", "0"}} {
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
