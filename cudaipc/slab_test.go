package cudaipc_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/protocol"
)

const slabBytes = 2 << 20

func TestSlabIsReadThroughItsDescriptor(t *testing.T) {
	d := device(t)
	s, err := d.NewSlab(1000)
	require.NoError(t, err)
	assert.EqualValues(t, slabBytes, s.Bytes, "the granularity")
	fd, err := s.Export()
	require.NoError(t, err)
	m, err := s.Map(true)
	require.NoError(t, err)
	require.NoError(t, d.CopyIn(m.Address+16, []byte("what was written"), cudaipc.LegacyStream))

	other, err := d.Import(fd.Int(), s.Bytes)
	require.NoError(t, err)
	require.NoError(t, fd.Close())
	reading, err := other.Map(false)
	require.NoError(t, err)
	require.NotEqual(t, m.Address, reading.Address)
	got := make([]byte, 16)
	require.NoError(t, d.CopyOut(got, reading.Address+16, cudaipc.LegacyStream))
	assert.Equal(t, "what was written", string(got))

	require.NoError(t, s.Close())
	require.NoError(t, m.Close())
	require.NoError(t, other.Close())
	require.NoError(t, d.CopyOut(got, reading.Address+16, cudaipc.LegacyStream), "a mapping keeps the memory")
	require.NoError(t, reading.Close())
}

func TestSlabsBeyondTheGPUAreRefused(t *testing.T) {
	d := device(t)
	_, err := d.NewSlab(gpuBytes + 1)
	assert.ErrorIs(t, err, protocol.ErrOutOfMemory)
	for _, n := range []uint64{0, 1 << 53} {
		_, err = d.NewSlab(n)
		assert.ErrorIs(t, err, protocol.ErrInvalid)
	}
}

func TestImportOfOtherFilesIsRefused(t *testing.T) {
	d := device(t)
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer f.Close()
	_, err = d.Import(int(f.Fd()), slabBytes)
	require.ErrorIs(t, err, protocol.ErrInvalidHandle)
	require.ErrorIs(t, err, cudaipc.ErrInvalidValue)
	assert.ErrorContains(t, err, "CUDA_VISIBLE_DEVICES")
}

func TestMappingBeyondTheSlabIsRefusedAndLeavesNothing(t *testing.T) {
	d := device(t)
	s, err := d.NewSlab(slabBytes)
	require.NoError(t, err)
	fd, err := s.Export()
	require.NoError(t, err)
	require.NoError(t, s.Close())
	other, err := d.Import(fd.Int(), 2*slabBytes) // as a liar announces it
	require.NoError(t, err)
	require.NoError(t, fd.Close())
	_, err = other.Map(false)
	assert.ErrorIs(t, err, protocol.ErrInvalid)
	require.NoError(t, other.Close())
}

func TestCopiesAreInTheOrderOfTheirStream(t *testing.T) {
	d := device(t)
	at, err := d.Malloc(4096)
	require.NoError(t, err)
	s, err := d.NewStream()
	require.NoError(t, err)
	for i := range 100 {
		require.NoError(t, d.Fill(at, byte(i), 2048, s))
	}
	require.NoError(t, d.CopyWithin(at+2048, at, 2048, s))
	require.NoError(t, d.SynchronizeStream(s))
	got := make([]byte, 4096)
	require.NoError(t, d.CopyOut(got, at, s))
	assert.Equal(t, bytes.Repeat([]byte{99}, 4096), got)
	require.NoError(t, d.DestroyStream(s))
	require.NoError(t, d.Free(at))
}
