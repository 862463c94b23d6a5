package dlpack_test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProgramThatImportsThePackageIsStatic(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "static")
	build := exec.Command("go", "build", "-o", binary, "./testdata/static")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	f, err := elf.Open(binary)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		assert.NotEqual(t, elf.PT_INTERP, p.Type, "it asks for a dynamic loader")
		assert.NotEqual(t, elf.PT_DYNAMIC, p.Type)
	}
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	assert.Empty(t, libs)

	out, err = exec.Command(binary).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Equal(t, "float32 [2 3] reaped 1 count 0\n", string(out))
}
