package demo

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/sys"
)

const pageBytes = 64 << 10

// shared maps a new piece of shared memory twice.
func shared(t *testing.T) (one, other []byte) {
	t.Helper()
	fd, err := sys.CreateMemfd("demo-test", pageBytes)
	require.NoError(t, err)
	defer fd.Close()
	one, err = sys.Map(fd, pageBytes, true)
	require.NoError(t, err)
	other, err = sys.Map(fd, pageBytes, false)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, sys.Unmap(one))
		assert.NoError(t, sys.Unmap(other))
	})
	return one, other
}

func placeOf(t *testing.T, b []byte) string {
	t.Helper()
	var p places
	require.NoError(t, p.read())
	at, err := p.of(b)
	require.NoError(t, err)
	return at
}

func TestPlaceIsTheSameInEveryMappingOfOneFile(t *testing.T) {
	one, other := shared(t)
	assert.Equal(t, placeOf(t, one[4096:]), placeOf(t, other[4096:]))
	assert.Equal(t, placeOf(t, one[5000:]), placeOf(t, other[5000:5001]))
}

func TestPlaceDiffersWhereBytesAreOthers(t *testing.T) {
	one, _ := shared(t)
	copied, _ := shared(t)
	copy(copied, one)
	assert.NotEqual(t, placeOf(t, one), placeOf(t, copied), "equal bytes in other memory")
	assert.NotEqual(t, placeOf(t, one), placeOf(t, one[1:]))
}

func TestPlaceOfMemoryWithoutFileIsRefused(t *testing.T) {
	var p places
	require.NoError(t, p.read())
	_, err := p.of(make([]byte, 1<<20))
	assert.ErrorContains(t, err, "is of no file")
	at, err := p.of(nil)
	assert.NoError(t, err, "no bytes, no place")
	assert.Empty(t, at)
}

func TestMappingsAreParsed(t *testing.T) {
	for line, want := range map[string]mapping{
		"7f00-8f00 rw-s 00001000 00:01 12345      /memfd:baton (deleted)\n": {0x7f00, 0x8f00, 0x1000, "00:01:12345"},
		"1000-2000 r--p 00000000 fe:00 7 /a\n":                              {0x1000, 0x2000, 0, "fe:00:7"},
		"1000-2000 r--p 00000000 fe:00 7":                                   {0x1000, 0x2000, 0, "fe:00:7"},
	} {
		m, ok, err := parseMapping([]byte(line))
		require.NoError(t, err)
		assert.True(t, ok)
		assert.Equal(t, want, m)
	}
	for _, line := range []string{"7f00-8f00 rw-p 00000000 00:00 0\n", "7f00-8f00 rw-p 00000000 00:00 0      [heap]\n", "\n", ""} {
		_, ok, err := parseMapping([]byte(line))
		assert.NoError(t, err)
		assert.False(t, ok)
	}
	_, _, err := parseMapping([]byte("x-8f00 rw-s 00001000 00:01 12345 /a\n"))
	assert.Error(t, err)
}

func TestMakeDirRemovesWhatKilledRunsHaveLeft(t *testing.T) {
	parent := t.TempDir()
	living, lock, err := makeDir(parent)
	require.NoError(t, err)
	defer lock.Close()
	dead, its, err := makeDir(parent)
	require.NoError(t, err)
	require.NoError(t, its.Close()) // as the kernel does at a kill
	foreign := parent + "/else"
	require.NoError(t, os.Mkdir(foreign, 0o700))

	fresh, another, err := makeDir(parent)
	require.NoError(t, err)
	defer another.Close()
	assert.NoDirExists(t, dead)
	assert.DirExists(t, living)
	assert.DirExists(t, foreign)
	info, err := os.Stat(fresh)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}
