package observe_test

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cmd/baton/internal/observe"
)

// The table of metrics in docs/operations.md has all that a broker may serve, and no others.
func TestEachMetricIsInTheTable(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/operations.md")
	require.NoError(t, err)
	var there, documented []string
	for _, d := range observe.Described() {
		if m := regexp.MustCompile(`fqName: "(baton_\w+)"`).FindStringSubmatch(d); m != nil {
			there = append(there, m[1])
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\| (`baton_.*?) \\|").FindAllStringSubmatch(string(page), -1) {
		for _, name := range regexp.MustCompile("`(baton_\\w+)").FindAllStringSubmatch(row[1], -1) {
			documented = append(documented, name[1])
		}
	}
	slices.Sort(there)
	slices.Sort(documented)
	require.NotEmpty(t, there)
	assert.Equal(t, there, documented)
}
