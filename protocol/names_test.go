package protocol_test

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNamesOfTheGrammarAreAccepted(t *testing.T) {
	for _, name := range []string{"a", "-", "_", "0", "weights/actor", "A-Z_9/b/c", strings.Repeat("n", protocol.MaxName)} {
		assert.NoError(t, protocol.CheckName(name), name)
	}
	for _, ns := range []string{"default", "team-1_x", strings.Repeat("n", protocol.MaxNamespace)} {
		assert.NoError(t, protocol.CheckNamespace(ns), ns)
	}
}

func TestTopicSubjectHasOneTokenForEachOfTheName(t *testing.T) {
	assert.Equal(t, "baton.default.topic.weights.actor", protocol.TopicSubject("default", "weights/actor"))
}

func TestMatchNameAgreesWithItsRegexp(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	word := func(alphabet string) string {
		b := make([]byte, r.IntN(7))
		for i := range b {
			b[i] = alphabet[r.IntN(len(alphabet))]
		}
		return string(b)
	}
	matched := 0
	for range 20000 {
		pattern, name := word("ab/**"), word("ab/")
		want := pattern == "" || regexp.MustCompile("^"+strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*")+"$").MatchString(name)
		require.Equal(t, want, protocol.MatchName(pattern, name), "pattern %q, name %q", pattern, name)
		if want {
			matched++
		}
	}
	assert.Greater(t, matched, 1000)
}
