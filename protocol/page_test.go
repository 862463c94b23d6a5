package protocol_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client is written from docs/protocol.md: where it gives the offset of a field,
// that is where the field is, and it leaves out none of the structures that its
// paragraphs describe.
func TestProtocolPageSaysWhereFieldsAre(t *testing.T) {
	var layout struct {
		Structs []struct {
			Name   string
			Fields []struct {
				Name   string
				Offset int64
			}
		}
	}
	data, err := os.ReadFile("testdata/v1/layout.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &layout))
	page, err := os.ReadFile("../docs/protocol.md")
	require.NoError(t, err)
	paragraphs := describedStructs(string(page))
	field := regexp.MustCompile("`\\w+(?:\\[\\w*\\])? (\\w+)(?:\\[[^\\]]*\\])? @(0x[0-9a-f]+|\\d+)`")
	checked := 0
	for _, s := range layout.Structs {
		text, there := paragraphs[s.Name]
		if !there {
			continue // of one or two words, described in a table or a sentence
		}
		said := map[string]int64{}
		for _, m := range field.FindAllStringSubmatch(text, -1) {
			at, err := strconv.ParseInt(m[2], 0, 64)
			require.NoError(t, err)
			// A constant, and what follows a structure of fixed size.
			if !strings.HasPrefix(m[1], "0x") && !strings.Contains(m[0], "[ndim]") {
				said[m[1]] = at
			}
		}
		for _, f := range s.Fields {
			if at, is := said[f.Name]; is {
				require.Equal(t, f.Offset, at, "%s of %s", f.Name, s.Name)
				delete(said, f.Name)
				checked++
			}
		}
		require.Empty(t, said, "fields of %s that do not exist", s.Name)
	}
	require.Greater(t, checked, 80, "the page says less than it did")
}

// describedStructs finds, for each structure that begins in bold, its text up to
// the next one.
func describedStructs(page string) map[string]string {
	out := map[string]string{}
	bold := regexp.MustCompile(`\*\*(\w+)\*\*`)
	for _, line := range strings.Split(page, "\n") {
		at := bold.FindAllStringSubmatchIndex(line, -1)
		for i, m := range at {
			end := len(line)
			if i+1 < len(at) {
				end = at[i+1][0]
			}
			out[line[m[2]:m[3]]] = line[m[0]:end]
		}
	}
	return out
}
