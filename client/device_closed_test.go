package client_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// plainGPU stands for a GPU: its memory is a file of the machine's, and its streams do
// everything at once.
type plainGPU struct{ accelerator }

type accelerator = client.Accelerator

func (g plainGPU) Accelerator(string) (client.Accelerator, error)   { return g, nil }
func (g plainGPU) AcceleratorOf(string) (client.Accelerator, error) { return g, nil }
func (plainGPU) UUID() string                                       { return "GPU-5b8d1c1e-0f3a-4d52-9c6e-3a7f1e2d4c5b" }
func (plainGPU) Device() dlpack.Device                              { return dlpack.Device{Type: dlpack.CUDA} }
func (plainGPU) Granularity() (uint64, error)                       { return 2 << 20, nil }
func (plainGPU) Values() bool                                       { return false }
func (plainGPU) SynchronizeStream(uint64) error                     { return nil }
func (plainGPU) Synchronize() error                                 { return nil }
func (plainGPU) Import(*sys.FD, uint64) (client.DeviceMemory, error) {
	return plainMemory{}, nil
}
func (plainGPU) Create(uint64) (client.DeviceMemory, error) { return plainMemory{}, nil }

type plainMemory struct{}

func (plainMemory) Export() (*sys.FD, error) { return sys.OpenAlive() }
func (plainMemory) Map(bool) (uint64, error) { return 1 << 40, nil }
func (plainMemory) Close() error             { return nil }

// What C code has of a tensor on a GPU is let go when it deletes that, though the client
// was closed and another closed client of the process counts for it.
func TestExportOnAGPUIsLetGoBehindTheCloseOfItsClient(t *testing.T) {
	address, ctx := newBroker(t), limited(t)
	observer, keeper := connect(t, address), connect(t, address)
	held := tensor(t, keeper, 1)
	require.NoError(t, keeper.Close())
	c, err := client.Connect(ctx, client.WithAddress(address), client.WithDevices(plainGPU{}))
	require.NoError(t, err)
	x, err := c.Alloc(ctx, dlpack.Float32, []int64{4}, client.Device("cuda:0"))
	require.NoError(t, err)
	managed, err := x.ToDLPack()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	_, err = x.ToDLPack()
	require.ErrorIs(t, err, protocol.ErrClosed)
	x.Release()
	require.Equal(t, 2, counts(t, observer).Storages)
	require.NoError(t, dlpack.Release(managed))
	held.Release()
	onlyOne(t, observer)
}
