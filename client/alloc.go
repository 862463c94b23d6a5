package client

import (
	"context"
	"time"

	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
)

// AllocOption configures an allocation.
type AllocOption func(*allocOptions)

type allocOptions struct {
	wait   time.Duration
	device string // "": the machine's memory
	pages  uint64 // bytes of a huge page; 0: the machine's usual ones
}

// WaitForMemory is how long to wait for memory when there is none (default 0: not
// at all): for tensors to be released, here or by others, or for others to end.
func WaitForMemory(d time.Duration) AllocOption {
	return func(o *allocOptions) { o.wait = d }
}

// HugePages puts a tensor into huge pages of so many bytes, 2 << 20 or 1 << 30, of
// those that the machine has reserved (vm.nr_hugepages). If too few are free the
// error is ErrOutOfMemory. A whole number of them is granted at a time.
func HugePages(bytes uint64) AllocOption {
	return func(o *allocOptions) { o.pages = bytes }
}

// allocation is a new tensor with what it holds, made at once.
type allocation struct {
	tensor Tensor
	held   memory.Holding
	dims   [4]int64 // room for the shape
}

// Alloc returns a tensor of the shape, C-contiguous, aligned to 256 bytes, whose
// bytes are undefined. A shape with an extent 0 takes no memory. Errors:
// ErrInvalid (shape, dtype, size beyond 64 bits), ErrOutOfMemory,
// ErrQuotaExceeded, ErrBrokerLost.
func (c *Client) Alloc(ctx context.Context, dtype dlpack.DType, shape []int64, opts ...AllocOption) (*Tensor, error) {
	o := c.opts.alloc
	for _, f := range opts {
		f(&o)
	}
	n, err := dtype.NumBytes(shape)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use a shape whose bytes fit in 64 bits and a known dtype", "allocate %s%v: %w", dtype, shape, err)
	}
	if err := c.s.Life.Ended(); err != nil {
		return nil, err
	}
	a := &allocation{}
	a.held.Renew(c.s.Memory)
	t := &a.tensor
	t.c, t.held, t.storage, t.dtype, t.shape = c, &a.held, -1, dtype, append(a.dims[:0:len(a.dims)], shape...)
	if n == 0 {
		return t, nil
	}
	if err := c.fill(ctx, t.held, uint64(n), o); err != nil {
		return nil, err
	}
	t.storage = 0
	if err = t.place(true); err != nil {
		t.held.Release()
		return nil, err
	}
	return t, nil
}

// Zeros is Alloc with all bytes zero; on a GPU the legacy default stream makes them so. Errors are
// those of Alloc and of the GPU's driver; with one nothing is held.
func (c *Client) Zeros(ctx context.Context, dtype dlpack.DType, shape []int64, opts ...AllocOption) (*Tensor, error) {
	t, err := c.Alloc(ctx, dtype, shape, opts...)
	if err != nil || t.storage < 0 {
		return t, err
	}
	if t.device == nil {
		clear(t.region.Bytes(0, t.region.Len()))
		return t, nil
	}
	at, err := t.Pointer()
	if err == nil {
		err = t.device.GPU.Fill(uint64(LegacyStream), at, 0, uint64(t.NumBytes()))
	}
	if err == nil {
		err = c.s.Devices.WrittenBy(t.part(), gpu.LegacyStream)
	}
	if err != nil {
		t.Release()
		return nil, err
	}
	return t, nil
}

// fill allocates the storage of an empty holding.
func (c *Client) fill(ctx context.Context, h *memory.Holding, n uint64, o allocOptions) error {
	pool, err := c.poolFor(o)
	if err != nil {
		return err
	}
	return c.s.Memory.Fill(ctx, pool, h, n, o.wait)
}

// poolFor returns the pool of what an allocation asks for.
func (c *Client) poolFor(o allocOptions) (*handles.Pool, error) {
	m := c.s.Memory
	if o.device == "" || o.device == "cpu" {
		return m.PoolOf(o.pages), nil
	}
	if o.pages != 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "leave the huge pages out", "memory on %s has no huge pages", o.device)
	}
	if c.s.Devices == nil {
		return nil, gpu.NoDevices(o.device)
	}
	return c.s.Devices.PoolOf(o.device)
}
