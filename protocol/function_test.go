package protocol_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// functionsTable is the table of functions that the tests of every language read.
type functionsTable struct {
	Names    [][2]string
	Versions []string
}

func readFunctions(t *testing.T) (all functionsTable) {
	text, err := os.ReadFile("testdata/functions.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &all))
	require.Greater(t, len(all.Names), 15)
	return all
}

func TestNamesOfFunctionsAreThoseOfEveryLanguage(t *testing.T) {
	for _, row := range readFunctions(t).Names {
		err := protocol.CheckFunction(row[0])
		if row[1] == "" {
			require.NoError(t, err, row[0])
			continue
		}
		require.Equal(t, protocol.CodeInvalid, protocol.CodeOf(err), row[0])
		require.Equal(t, "baton: "+row[1], err.Error())
	}
}

func TestVersionsAreOrderedAsSemanticVersions(t *testing.T) {
	order := readFunctions(t).Versions
	for i, a := range order {
		for j, b := range order {
			got := protocol.CompareVersions(a, b)
			require.Equal(t, i < j, got < 0, "%q and %q", a, b)
			require.Equal(t, i == j, got == 0, "%q and %q", a, b)
		}
	}
}
