package cudaipc_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/cudaipc"
	"github.com/baton-ipc/baton/integration/cuda/standin"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

func library(t *testing.T) string { return standin.Library(t) }

func init() {
	roles["open"] = func(c *testkit.Child) error {
		var lib string
		if err := c.Config(&lib); err != nil {
			return err
		}
		_, err := cudaipc.Open(cudaipc.WithLibrary(lib))
		return err
	}
	roles["lend"] = playLend
	roles["borrow"] = playBorrow
	roles["write a read-only mapping"] = playWriteReadOnly
}

func first() (*cudaipc.Device, error) {
	d, err := cudaipc.Open() // as the loader finds it
	if err != nil {
		return nil, err
	}
	return d.Devices()[0], nil
}

// playLend lends memory with 5 in every byte until it is told to stop.
func playLend(c *testkit.Child) error {
	d, err := first()
	if err != nil {
		return err
	}
	at, err := d.Malloc(1000)
	if err != nil {
		return err
	}
	if err := d.Fill(at, 5, 1000, cudaipc.LegacyStream); err != nil {
		return err
	}
	if err := d.Synchronize(); err != nil {
		return err
	}
	lent, err := d.Lend(at + 100)
	if err != nil {
		return err
	}
	if err := c.Say(lent); err != nil {
		return err
	}
	<-c.Context().Done()
	return d.Free(at)
}

// playBorrow reads another process's memory whenever it is told to.
func playBorrow(c *testkit.Child) error {
	var lent cudaipc.Borrowed
	if err := c.Config(&lent); err != nil {
		return err
	}
	d, err := first()
	if err != nil {
		return err
	}
	at, err := d.OpenBorrowed(lent.Handle)
	if err != nil {
		return err
	}
	again, err := d.OpenBorrowed(lent.Handle)
	if err != nil || again != at {
		return fmt.Errorf("opened again at %#x, not %#x: %w", again, at, err)
	}
	for range 2 {
		got := make([]byte, 1)
		err := d.CopyOut(got, at+lent.Offset, cudaipc.LegacyStream)
		if err := c.Say(fmt.Sprint(got, err)); err != nil {
			return err
		}
		if err := c.Hear(new(string)); err != nil {
			return err
		}
	}
	return nil
}

func TestBorrowedMemoryEndsWithItsOwner(t *testing.T) {
	m := standin.New(t, 1)
	b := testkit.StartBroker(t)
	lender := b.Start("lend", nil, m.On())
	var lent cudaipc.Borrowed
	lender.Next(&lent)
	assert.EqualValues(t, 100, lent.Offset)
	borrower := b.Start("borrow", lent, m.On())
	var got string
	borrower.Next(&got)
	assert.Equal(t, "[5] <nil>", got)
	lender.Kill()
	borrower.Tell("again")
	borrower.Next(&got)
	assert.Contains(t, got, "CUDA_ERROR_ILLEGAL_ADDRESS", "the stand-in tells what is undefined on a GPU")
	borrower.Kill()
	used, err := m.Used(0)
	require.NoError(t, err)
	assert.Zero(t, used)
	late := b.Start("borrow", lent, m.On())
	assert.Contains(t, late.Fails(), "cuIpcOpenMemHandle_v2")
}

func TestWhatCannotBeLentIsRefused(t *testing.T) {
	d := device(t)
	s, err := d.NewSlab(1)
	require.NoError(t, err)
	m, err := s.Map(true)
	require.NoError(t, err)
	_, err = d.Lend(m.Address)
	assert.ErrorIs(t, err, protocol.ErrUnsupported)
	assert.ErrorContains(t, err, "expandable_segments:False")
	require.NoError(t, m.Close())
	require.NoError(t, s.Close())
	_, err = d.Lend(12345)
	assert.ErrorIs(t, err, cudaipc.ErrInvalidValue)

	at, err := d.Malloc(64)
	require.NoError(t, err)
	lent, err := d.Lend(at)
	require.NoError(t, err)
	_, err = d.OpenBorrowed(lent.Handle)
	assert.ErrorIs(t, err, cudaipc.ErrInvalidContext, "one's own handle")
	_, err = d.OpenBorrowed(cudaipc.IPCHandle{})
	assert.ErrorIs(t, err, protocol.ErrInvalidHandle)
	require.NoError(t, d.Free(at))
}

func playWriteReadOnly(c *testkit.Child) error {
	d, err := first()
	if err != nil {
		return err
	}
	s, err := d.NewSlab(1)
	if err != nil {
		return err
	}
	m, err := s.Map(false)
	if err != nil {
		return err
	}
	if err := d.Fill(m.Address, 1, 1, cudaipc.LegacyStream); err != nil {
		return err
	}
	return d.Synchronize()
}

func TestReadOnlyMappingIsNotWritten(t *testing.T) {
	m := standin.New(t, 1)
	p := testkit.StartBroker(t).Start("write a read-only mapping", nil, m.On())
	assert.Contains(t, p.Fails(), "a read-only tensor was perhaps written")
}

func TestOldDriverIsTold(t *testing.T) {
	m := standin.New(t, 1)
	p := testkit.StartBroker(t).Start("write a read-only mapping", nil, m.On(), testkit.Env("BATON_STANDIN_LACKS", "vmm"))
	assert.Contains(t, p.Fails(), "cannot share memory by descriptors")
}
