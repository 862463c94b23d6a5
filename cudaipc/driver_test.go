package cudaipc_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func TestOpenWithoutADriverSaysWhatToDo(t *testing.T) {
	_, err := cudaipc.Open(cudaipc.WithLibrary("libnothing-of-the-kind.so.1"))
	require.ErrorIs(t, err, protocol.ErrUnsupported)
	assert.ErrorContains(t, err, "no CUDA driver on this machine")
	assert.ErrorContains(t, err, "--gpus")
}

func TestOpenWithoutAGPUSaysWhatToCheck(t *testing.T) {
	b := testkit.StartBroker(t)
	p := b.Start("open", library(t), testkit.Env("BATON_STANDIN_DIR", ""))
	assert.Contains(t, p.Fails(), "CUDA_VISIBLE_DEVICES")
}

func TestGPUsAreNamedByNumberAndUUID(t *testing.T) {
	d := open(t)
	require.Len(t, d.Devices(), 2)
	assert.Positive(t, d.Version())
	for i, name := range []string{"cuda:0", "cuda:1"} {
		device, err := d.Device(name)
		require.NoError(t, err)
		assert.Equal(t, i, device.Index)
		again, err := d.Device("cuda:" + device.UUID.String())
		require.NoError(t, err)
		assert.Same(t, device, again)
		again, err = d.Device("cuda:MIG-" + strings.TrimPrefix(device.UUID.String(), "GPU-"))
		require.NoError(t, err)
		assert.Same(t, device, again, "a part of a GPU is told by its UUID alone")
	}
	first, err := d.Device("cuda")
	require.NoError(t, err)
	assert.Zero(t, first.Index)
	for _, name := range []string{"cuda:2", "cuda:GPU-00000000-0000-0000-0000-000000000000"} {
		_, err := d.Device(name)
		assert.ErrorIs(t, err, protocol.ErrNotFound, name)
	}
	for _, name := range []string{"", "cpu", "cudax", "cuda:x", "cuda:-1", "GPU-1"} {
		_, err := d.Device(name)
		assert.ErrorIs(t, err, protocol.ErrInvalid, name)
	}
}

// Contexts belong to threads, and goroutines change theirs.
func TestDeviceIsUsedFromManyGoroutines(t *testing.T) {
	d := device(t)
	var all sync.WaitGroup
	for range 32 {
		all.Add(1)
		go func() {
			defer all.Done()
			at, err := d.Malloc(1 << 10)
			if assert.NoError(t, err) {
				assert.NoError(t, d.Fill(at, 3, 1<<10, cudaipc.LegacyStream))
				assert.NoError(t, d.Free(at))
			}
		}()
	}
	all.Wait()
}

// What a GPU had no room for once may fit later.
func TestContextThatWasRefusedIsAskedForAgain(t *testing.T) {
	d := open(t).Devices()[1]
	lib, err := purego.Dlopen(library(t), purego.RTLD_NOW|purego.RTLD_LOCAL)
	require.NoError(t, err)
	var fault func(name string, code int32, nth int)
	purego.RegisterLibFunc(&fault, lib, "standin_fault")
	fault("cuDevicePrimaryCtxRetain", 2, 1)
	_, _, err = d.Memory()
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	_, _, err = d.Memory()
	require.NoError(t, err)
}

func TestStatusIsTheCauseOfAnError(t *testing.T) {
	d := device(t)
	_, err := d.Malloc(gpuBytes + 1)
	require.ErrorIs(t, err, protocol.ErrOutOfMemory)
	require.ErrorIs(t, err, cudaipc.ErrOutOfMemory)
	assert.ErrorContains(t, err, "cuMemAlloc_v2: out of memory (CUDA_ERROR_OUT_OF_MEMORY)")
	assert.ErrorContains(t, err, "nvidia-smi")
	assert.Equal(t, "CUDA error 12345", cudaipc.Result(12345).Error())
}
