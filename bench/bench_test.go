package bench_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/bench"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/internal/testkit"
)

func TestMain(m *testing.M) {
	bench.Child()
	testkit.Main(m, nil)
}

// A quick run says nothing about speed; it says that everything is measured.
func TestRunMeasuresEverything(t *testing.T) {
	testkit.Need(t, "cpus")
	r, err := bench.Run(context.Background(), bench.Options{Quick: true, Binary: testkit.Binary(t), Version: "test", Log: t.Output()})
	require.NoError(t, err)
	require.NotEmpty(t, r.Figures)
	seen := map[string]bool{}
	for _, f := range r.Figures {
		seen[f.Group] = true
		name := f.Group + ": " + f.Name
		assert.NotEmpty(t, f.Passes, name)
		assert.False(t, math.IsNaN(f.P50) || math.IsInf(f.P50, 0) || f.P50 < 0, "%s: %v", name, f.P50)
		// Only a share, or sleeps, may be too little to be seen.
		if f.Unit != bench.UnitShare && f.Group != "rest" {
			assert.Positive(t, f.P50, name)
		}
		if f.N > len(f.Passes) {
			assert.LessOrEqual(t, f.P50, f.P99, name)
			assert.LessOrEqual(t, f.P99, f.P999, name)
		}
		if f.Floor != "" {
			assert.NotNil(t, r.Find(f.Group, f.Floor), name)
			assert.Positive(t, f.Ratio, name)
		}
		assert.Equal(t, f.Bar != nil, f.Met != nil, name)
	}
	for _, group := range strings.Split(bench.GroupNames(), ", ") {
		// They need the program of rust/bench, and a Python with the package and torch.
		if group != "rust" && !strings.HasPrefix(group, "python") {
			assert.True(t, seen[group], "nothing of %s", group)
		}
	}

	out := r.Render(termtext.Style{Width: 80})
	for _, f := range r.Figures {
		if f.Bar != nil && *f.Met {
			assert.Contains(t, out, "met ")
		}
	}
	assert.Contains(t, out, "do not believe")

	file := filepath.Join(t.TempDir(), "results", "quick.json")
	require.NoError(t, r.WriteFile(file))
	back, err := bench.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, r.Markdown(), back.Markdown())
	assert.Contains(t, back.Markdown(), "| "+r.Figures[0].Name+" |")
	require.NoError(t, os.WriteFile(file, []byte("not a report"), 0o600))
	_, err = bench.ReadFile(file)
	require.ErrorContains(t, err, file)
}

func TestRunMeasuresOnlyWhatIsWanted(t *testing.T) {
	testkit.Need(t, "cpus")
	r, err := bench.Run(context.Background(), bench.Options{Quick: true, Passes: 2, Only: []string{"take"}, Binary: testkit.Binary(t)})
	require.NoError(t, err)
	for _, f := range r.Figures {
		assert.Equal(t, "take", f.Group)
		assert.Len(t, f.Passes, 2)
	}
	_, err = bench.Run(context.Background(), bench.Options{Only: []string{"nonsense"}, Binary: testkit.Binary(t)})
	require.ErrorContains(t, err, "nonsense")
	require.ErrorContains(t, err, "one-way")
}

func TestRunNamesTheBrokerThatDoesNotStart(t *testing.T) {
	_, err := bench.Run(context.Background(), bench.Options{Only: []string{"take"}, Binary: "/bin/false"})
	require.ErrorContains(t, err, "/bin/false serve")
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := bench.Run(ctx, bench.Options{Only: []string{"take"}, Binary: testkit.Binary(t)})
	require.Error(t, err)
}

// atLine calls a function at the line of a log that begins so.
type atLine struct {
	begins string
	do     func()
}

func (a atLine) Write(p []byte) (int, error) {
	if strings.HasPrefix(string(p), a.begins) {
		a.do()
	}
	return len(p), nil
}

// Of a run that is interrupted there is what was measured, and no more.
func TestInterruptedRunShowsWhatWasMeasured(t *testing.T) {
	testkit.Need(t, "cpus")
	for line, passes := range map[string]int{"take 1/3": 0, "take 2/3": 1} {
		ctx, cancel := context.WithCancel(context.Background())
		r, err := bench.Run(ctx, bench.Options{Quick: true, Passes: 3, Only: []string{"take"}, Binary: testkit.Binary(t), Log: atLine{line, cancel}})
		require.Error(t, err)
		require.NotNil(t, r)
		assert.True(t, r.Interrupted)
		assert.Equal(t, passes, r.Passes, line)
		assert.Equal(t, passes > 0, len(r.Figures) > 0)
		for _, f := range r.Figures {
			assert.NotEmpty(t, f.Passes)
			assert.False(t, math.IsNaN(f.P50))
		}
		require.NoError(t, r.WriteFile(filepath.Join(t.TempDir(), "r.json")))
		assert.Regexp(t, `interrupted:\s+medians\s+of\s+`+strconv.Itoa(passes), r.Render(termtext.Style{Width: 80}))
	}
}
