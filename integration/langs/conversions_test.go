package langs

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/integration/clib"
	"github.com/baton-ipc/baton/internal/testkit"
)

// What becomes of arguments in C is what the table says for every language.
func TestConversionsInCAreThoseOfEveryLanguage(t *testing.T) {
	text, err := os.ReadFile("../../protocol/testdata/conversions.json")
	require.NoError(t, err)
	var table struct {
		Values [][3]string
		Calls  [][2]string
	}
	require.NoError(t, json.Unmarshal(text, &table))
	var rows strings.Builder
	for _, row := range table.Values {
		fmt.Fprintln(&rows, strings.Join(append([]string{"value"}, row[:]...), "\t"))
	}
	for _, row := range table.Calls {
		fmt.Fprintln(&rows, strings.Join(append([]string{"call"}, row[:]...), "\t"))
	}
	program := clib.Compiled(t, "gcc", "integration/langs/c/conversions.c", clib.Sanitize...)
	b := testkit.StartBroker(t)
	cmd := exec.CommandContext(testkit.Context(t), program)
	cmd.Env = append(os.Environ(), "BATON_ADDRESS=unix:"+b.Socket)
	cmd.Stdin = strings.NewReader(rows.String())
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, said.String())
	require.Equal(t, fmt.Sprintln(len(table.Values)+len(table.Calls)), string(out))
}
