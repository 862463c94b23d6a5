package demo

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// interpreter makes a program that does, as a Python would, what a shell script says.
func interpreter(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "python3")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700))
	return path
}

func TestPythonIsTheFirstAtHandWithThePackage(t *testing.T) {
	has := interpreter(t, "echo "+client.Version+"\n")
	without := interpreter(t, "echo ModuleNotFoundError >&2\nexit 1\n")
	other := interpreter(t, "echo 0.0.0-other\n")
	for name, c := range map[string]struct{ beside, path, want string }{
		"beside the program":       {has, without, has},
		"on PATH":                  {without, has, has},
		"none has the package":     {without, without, ""},
		"none has this version":    {other, other, ""},
		"there is no Python":       {"", "", ""},
		"the first has no package": {other, has, has},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("VIRTUAL_ENV", "")
			t.Setenv("PATH", filepath.Dir(c.path))
			if c.path != "" {
				t.Setenv("PATH", filepath.Dir(c.path)+":/usr/bin:/bin")
			}
			o := Options{Binary: filepath.Join(filepath.Dir(c.beside), "baton")}
			found, err := o.findPython(t.Context())
			require.NoError(t, err)
			assert.Equal(t, c.want, found)
		})
	}
	t.Run("in the virtual environment", func(t *testing.T) {
		env := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(env, "bin"), 0o700))
		require.NoError(t, os.Rename(interpreter(t, "echo "+client.Version+"\n"), filepath.Join(env, "bin", "python3")))
		t.Setenv("VIRTUAL_ENV", env)
		found, err := Options{Binary: "/nowhere/baton"}.findPython(t.Context())
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(env, "bin", "python3"), found)
	})
}

func TestPythonThatIsNamedMustHaveThePackage(t *testing.T) {
	_, err := Options{Python: interpreter(t, "echo ModuleNotFoundError: baton >&2\nexit 1\n")}.findPython(t.Context())
	require.ErrorIs(t, err, protocol.ErrInvalid)
	assert.ErrorContains(t, err, "ModuleNotFoundError: baton")
	assert.ErrorContains(t, err, "pip install")
	found, err := Options{Python: NoPython, Binary: interpreter(t, "echo "+client.Version)}.findPython(t.Context())
	require.NoError(t, err)
	assert.Empty(t, found)
}
