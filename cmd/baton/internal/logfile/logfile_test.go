package logfile_test

import (
	"errors"
	"fmt"
	"io/fs"
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

// The newline after a line that was cut, as on a full file system, ends nothing in a new file.
func TestNewFileBeginsWithNoEmptyLine(t *testing.T) {
	for name, renew := range map[string]func(path string) error{
		"turned":  func(path string) error { return os.Truncate(path, 100) },
		"removed": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			f, path := open(t)
			l, err := logfile.New(f, 100)
			require.NoError(t, err)
			_, err = l.Write([]byte("a line that was cu"))
			require.NoError(t, err)
			require.NoError(t, renew(path))
			n, err := l.Write([]byte("\nthe next\n"))
			require.NoError(t, err)
			assert.Equal(t, len("\nthe next\n"), n)
			now, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, "the next\n", string(now))
		})
	}
}

// lines writes so many lines of seven bytes.
func lines(t *testing.T, l *logfile.File, n int) {
	t.Helper()
	for range n {
		_, err := l.Write([]byte("a line\n"))
		require.NoError(t, err)
	}
}

func TestLogThatCannotBeRenamedGoesOn(t *testing.T) {
	f, path := open(t)
	l, err := logfile.New(f, 10)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Dir(path)))
	lines(t, l, 3)
	info, err := f.Stat()
	require.NoError(t, err)
	assert.EqualValues(t, 21, info.Size())
	_, err = l.Keep()
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func TestLogThatWasRemovedIsMadeAgainAndBounded(t *testing.T) {
	for name, lost := range map[string]func(path string) error{
		"removed":                       os.Remove,
		"renamed by a broker beside it": func(path string) error { return os.Rename(path, path+".1") },
		"removed with its directory": func(path string) error {
			return errors.Join(os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, path := open(t)
			l, err := logfile.New(f, 15)
			require.NoError(t, err)
			lines(t, l, 1)
			again, err := l.Keep()
			require.NoError(t, err)
			require.False(t, again)
			require.NoError(t, lost(path))
			lines(t, l, 4)
			for _, file := range []string{path, path + ".1"} {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				assert.Equal(t, "a line\na line\n", string(text), file)
			}
			again, err = l.Keep()
			require.NoError(t, err)
			require.True(t, again)
			again, err = l.Keep()
			require.NoError(t, err)
			require.False(t, again, "it was told")
		})
	}
}

func TestLogIsTheOneThatAnotherBrokerHasMade(t *testing.T) {
	f, path := open(t)
	l, err := logfile.New(f, 100)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("another's\n"), 0o600))
	again, err := l.Keep()
	require.NoError(t, err)
	require.False(t, again)
	lines(t, l, 1)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "another's\na line\n", string(text))
}

func TestLogInADirectoryThatOthersWriteIsNotMadeAgain(t *testing.T) {
	f, path := open(t)
	l, err := logfile.New(f, 100)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Chmod(filepath.Dir(path), 0o777))
	lines(t, l, 1)
	assert.NoFileExists(t, path)
	_, err = l.Keep()
	assert.ErrorContains(t, err, "can be written by others")
}

func TestLogThatWasRemovedBeforehandIsMadeUnderItsName(t *testing.T) {
	f, path := open(t)
	require.NoError(t, os.Remove(path))
	l, err := logfile.New(f, 100)
	require.NoError(t, err)
	lines(t, l, 1)
	assert.FileExists(t, path)
}

func TestLogThatEndsWithinALineIsSeen(t *testing.T) {
	f, _ := open(t)
	l, err := logfile.New(f, 100)
	require.NoError(t, err)
	assert.False(t, l.Cut(), "it is empty")
	for _, text := range []string{"a line\n", "a li", "\n", "a line\n"} {
		_, err := f.WriteString(text)
		require.NoError(t, err)
		assert.Equal(t, !strings.HasSuffix(text, "\n"), l.Cut(), text)
	}
}

func TestOnlyFilesAreBounded(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = logfile.New(w, 10)
	assert.ErrorContains(t, err, "no regular file")
}
