package cudaipc_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/integration/cuda/standin"
	"github.com/baton-ipc/baton/internal/testkit"
)

var roles = map[string]testkit.Role{}

func TestMain(m *testing.M) { testkit.Main(m, roles) }

const gpuBytes = 256 << 20

// open loads the stand-in into this process, which finds its two GPUs once.
func open(t *testing.T) *cudaipc.Driver {
	t.Helper()
	lib := standin.Library(t)
	dir := testkit.Once(t, "gpus", func(path string) error { return os.Mkdir(path, 0o700) })
	m := &standin.Machine{Dir: dir, Library: lib, GPUs: 2, Memory: gpuBytes}
	for name, value := range m.Settings() {
		require.NoError(t, os.Setenv(name, value))
	}
	d, err := cudaipc.Open(cudaipc.WithLibrary(lib))
	require.NoError(t, err)
	return d
}

// device is the first GPU, which must be empty again when the test ends.
func device(t *testing.T) *cudaipc.Device {
	t.Helper()
	d := open(t).Devices()[0]
	t.Cleanup(func() {
		free, total, err := d.Memory()
		require.NoError(t, err)
		require.Equal(t, total, free, "memory of the GPU is left behind")
	})
	return d
}
