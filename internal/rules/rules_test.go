package rules_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/rules"
)

const root = "../.."

// project loads the project's own files.
func project(t *testing.T) *rules.Tree {
	t.Helper()
	tree, err := rules.Load(os.DirFS(root))
	require.NoError(t, err)
	require.NotNil(t, tree.File("go.mod"), "not the root of the project")
	return tree
}

func report(t *testing.T, vs []rules.Violation) {
	t.Helper()
	for _, v := range vs {
		t.Error(v)
	}
}

// TestProjectKeepsRule is the rule book applied to the project itself.
func TestProjectKeepsRule(t *testing.T) {
	tree := project(t)
	for _, rule := range rules.All {
		t.Run(rule.Name, func(t *testing.T) { report(t, rule.Check(tree)) })
	}
}

func TestBinaryDependsOnNothingDynamic(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			cmd := exec.Command("go", "list", "-deps", "./cmd/baton")
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
			var stderr strings.Builder
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			require.NoError(t, err, "go list -deps ./cmd/baton: %s", stderr.String())
			paths := strings.Fields(string(out))
			require.Contains(t, paths, "github.com/baton-ipc/baton/cmd/baton")
			report(t, rules.CheckBinaryDependencies(paths))
		})
	}
}

func TestBinaryRuleRefusesDynamicDependencies(t *testing.T) {
	assert.Empty(t, rules.CheckBinaryDependencies([]string{"os", "github.com/ebitengine/puregolike"}))
	for _, bad := range []string{"github.com/ebitengine/purego", "github.com/ebitengine/purego/internal/strings", "runtime/cgo"} {
		vs := rules.CheckBinaryDependencies([]string{"os", bad})
		require.Len(t, vs, 1, bad)
		assert.Contains(t, vs[0].String(), bad)
	}
}
