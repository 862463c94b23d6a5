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

// metrics are the names of all that a broker may serve.
func metrics(t *testing.T) (all []string) {
	t.Helper()
	for _, d := range observe.Described() {
		if m := regexp.MustCompile(`fqName: "(baton_\w+)"`).FindStringSubmatch(d); m != nil {
			all = append(all, m[1])
		}
	}
	require.NotEmpty(t, all)
	return all
}

// Each metric is on the dashboard: an operator that looks for what is wrong knows none of them by name.
func TestEachMetricIsOnTheDashboard(t *testing.T) {
	dashboard, err := os.ReadFile("../../../../packaging/monitoring/grafana.json")
	require.NoError(t, err)
	asked := regexp.MustCompile(`\bbaton_\w+`).FindAllString(string(dashboard), -1)
	for _, name := range metrics(t) {
		assert.True(t, slices.Contains(asked, name) || slices.Contains(asked, name+"_bucket"), "%s is in no panel", name)
	}
}

// The table of metrics in docs/operations.md has all that a broker may serve, and no others.
func TestEachMetricIsInTheTable(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/operations.md")
	require.NoError(t, err)
	there := metrics(t)
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`baton_.*?) \\|").FindAllStringSubmatch(string(page), -1) {
		for _, name := range regexp.MustCompile("`(baton_\\w+)").FindAllStringSubmatch(row[1], -1) {
			documented = append(documented, name[1])
		}
	}
	slices.Sort(there)
	slices.Sort(documented)
	assert.Equal(t, there, documented)
}
