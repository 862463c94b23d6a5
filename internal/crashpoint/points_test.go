package crashpoint_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/crashpoint"
)

// Each point of the list stands at exactly one place of the code, and each
// place has a point of the list.
func TestEveryPointStandsInTheCodeOnce(t *testing.T) {
	at := regexp.MustCompile(`crashpoint\.At\("([^"]*)"\)`)
	places := map[string][]string{}
	for _, dir := range []string{"client", "handles", "shm"} {
		root := filepath.Join("..", "..", dir)
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			for _, m := range at.FindAllStringSubmatch(string(data), -1) {
				places[m[1]] = append(places[m[1]], path)
			}
			return err
		}))
	}
	listed := map[string]bool{}
	for _, p := range slices.Concat(crashpoint.Points, crashpoint.KeeperPoints, crashpoint.CallPoints) {
		require.False(t, listed[p.Name], "%s is listed twice", p.Name)
		listed[p.Name] = true
		require.Len(t, places[p.Name], 1, "%s must stand at one place", p.Name)
		require.NotEmpty(t, p.What)
	}
	for name, files := range places {
		require.True(t, listed[name], "%s of %v is not in the list", name, files)
	}
}
