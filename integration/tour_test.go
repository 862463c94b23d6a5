package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/testkit"
)

// The tour of the README, run as a newcomer would: no broker runs, and the first
// connection starts the user's.
func TestTourRunsAndStartsTheUsersBroker(t *testing.T) {
	root, err := testkit.Root()
	require.NoError(t, err)
	dir := shortdir.New(t)
	tour := filepath.Join(dir, "tour")
	build := exec.Command("go", "build", "-o", tour, "./examples/tour")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))

	baton := testkit.Binary(t)
	env := []string{"XDG_RUNTIME_DIR=" + dir, "BATON_BINARY=./" + filepath.Base(baton), "PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	run := exec.Command(tour)
	run.Env, run.Dir = env, filepath.Dir(baton)
	out, err = run.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, `published tour/weights, revision 1
batch 1: [2 3], first 0, last 5
batch 2: [2 3], first 10, last 15
batch 3: [2 3], first 20, last 25
got tour/weights, revision 1: [w]
`, string(out))

	// The broker that it started ends when told to, and takes its files along.
	state, err := os.ReadFile(filepath.Join(dir, "baton", "state.json"))
	require.NoError(t, err)
	pid := regexp.MustCompile(`"pid":\s*(\d+)`).FindSubmatch(state)
	require.NotNil(t, pid, string(state))
	number, err := strconv.Atoi(string(pid[1]))
	require.NoError(t, err)
	broker, err := os.FindProcess(number)
	require.NoError(t, err)
	require.NoError(t, broker.Signal(syscall.SIGINT))
	socket := filepath.Join(dir, "baton", "broker.sock")
	testkit.Until(t, "the broker's socket to go", func() (bool, string) {
		_, err := os.Stat(socket)
		return os.IsNotExist(err), socket
	})
	testkit.Until(t, "the runtime directory to be removable", func() (bool, string) {
		return os.RemoveAll(dir) == nil, dir
	})
}

// What the README shows is the region of the file that runs.
func TestReadmeShowsTheRegionsOfItsExamples(t *testing.T) {
	root, err := testkit.Root()
	require.NoError(t, err)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	shown := regexp.MustCompile("(?s)<!-- region (\\S+) (\\S+) -->\n```\\w+\n(.*?)```").FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, shown)
	for _, s := range shown {
		source, err := os.ReadFile(filepath.Join(root, s[1]))
		require.NoError(t, err)
		region := regexp.MustCompile(`(?s)(?://|#) region ` + s[2] + `\n(.*?)\n\s*(?://|#) endregion`).FindSubmatch(source)
		require.NotNil(t, region, "%s has no region %s", s[1], s[2])
		lines := strings.Split(string(region[1]), "\n")
		indent := lines[0][:len(lines[0])-len(strings.TrimLeft(lines[0], " \t"))]
		for i := range lines {
			lines[i] = strings.TrimPrefix(lines[i], indent)
		}
		require.Equal(t, strings.Join(lines, "\n"), strings.TrimSuffix(s[3], "\n"), "region %s of %s", s[2], s[1])
	}
}
