package logfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cmd/baton/internal/logfile"
)

func open(t *testing.T) (*os.File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "broker.log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f, path
}

func TestLogIsBoundedAndKeepsWhatIsNew(t *testing.T) {
	f, path := open(t)
	l, err := logfile.New(f, 1000)
	require.NoError(t, err)
	for i := range 1000 {
		_, err := fmt.Fprintf(l, "line %04d\n", i)
		require.NoError(t, err)
	}
	_, err = f.WriteString("a panic, written past it\n")
	require.NoError(t, err)
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	before, err := os.ReadFile(path + ".1")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(now), 1000+100)
	assert.LessOrEqual(t, len(before), 1000)
	all := string(before) + string(now)
	assert.True(t, strings.HasSuffix(all, "line 0999\na panic, written past it\n"), all)
	assert.Equal(t, 1000-strings.Count(all, "line"), firstLine(t, all), "none is missing in between")
}

func firstLine(t *testing.T, text string) (n int) {
	t.Helper()
	_, err := fmt.Sscanf(text, "line %d", &n)
	require.NoError(t, err)
	return n
}

func TestLogThatCannotBeRenamedGoesOn(t *testing.T) {
	f, path := open(t)
	l, err := logfile.New(f, 10)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	for range 3 {
		_, err := l.Write([]byte("a line\n"))
		require.NoError(t, err)
	}
	info, err := f.Stat()
	require.NoError(t, err)
	assert.EqualValues(t, 21, info.Size())
}

func TestOnlyFilesAreBounded(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = logfile.New(w, 10)
	assert.ErrorContains(t, err, "no regular file")
}
