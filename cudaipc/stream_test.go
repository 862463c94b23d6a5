package cudaipc_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func page(t *testing.T, writable bool) ([]byte, shm.Region) {
	t.Helper()
	fd, err := sys.CreateMemfd("page", protocol.PageBytes)
	require.NoError(t, err)
	defer fd.Close()
	b, err := sys.Map(fd, protocol.PageBytes, writable)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sys.Unmap(b)) })
	return b, shm.NewRegion(b)
}

func TestStreamWaitsForAValueOfAnother(t *testing.T) {
	d := device(t)
	require.True(t, d.Values())
	b, words := page(t, true)
	at, err := d.Register(b, true)
	require.NoError(t, err)
	one, err := d.NewStream()
	require.NoError(t, err)
	two, err := d.NewStream()
	require.NoError(t, err)
	mem, err := d.Malloc(64)
	require.NoError(t, err)
	for i := uint64(1); i <= 50; i++ {
		require.NoError(t, d.WaitValue(two, at+8, i))
		require.NoError(t, d.CopyIn(mem+8, []byte{byte(i)}, two))
		require.NoError(t, d.WriteValue(two, at+16, i))
		require.NoError(t, d.Fill(mem+8, 0, 1, one))
		require.NoError(t, d.WriteValue(one, at+8, i))
		require.NoError(t, d.WaitValue(one, at+16, i))
	}
	require.NoError(t, d.SynchronizeStream(one))
	assert.EqualValues(t, 50, words.Load64(8))
	assert.EqualValues(t, 50, words.Load64(16))
	got := make([]byte, 1)
	require.NoError(t, d.CopyOut(got, mem+8, one))
	assert.Equal(t, []byte{50}, got)

	// The processor releases a stream as well.
	require.NoError(t, d.WaitValue(two, at, 1<<62))
	words.Store64(0, 1<<62|3)
	require.NoError(t, d.SynchronizeStream(two))
	require.NoError(t, d.Free(mem))
	require.NoError(t, d.Unregister(b))
	assert.ErrorIs(t, d.Unregister(b), cudaipc.ErrNotRegistered)
}

func TestMemoryThatMayNotBeWrittenIsRegisteredReadOnly(t *testing.T) {
	d := device(t)
	b, _ := page(t, false)
	_, err := d.Register(b, true)
	assert.ErrorIs(t, err, protocol.ErrInvalid)
	at, err := d.Register(b, false)
	require.NoError(t, err)
	require.NoError(t, d.WaitValue(cudaipc.LegacyStream, at, 0))
	assert.Error(t, d.WriteValue(cudaipc.LegacyStream, at, 1))
	require.NoError(t, d.Unregister(b))
}
