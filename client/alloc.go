package client

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/baton-ipc/baton/dlpack"
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
// those that the machine has reserved (vm.nr_hugepages). Where too few are free the
// error is ErrOutOfMemory. A whole number of them is granted at a time.
func HugePages(bytes uint64) AllocOption {
	return func(o *allocOptions) { o.pages = bytes }
}

// allocation is a new tensor with what it holds, made at once.
type allocation struct {
	tensor Tensor
	held   holding
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
	if err := c.life.ended(); err != nil {
		return nil, err
	}
	a := &allocation{}
	a.held.c, a.held.storages = c, a.held.one[:0]
	t := &a.tensor
	t.held, t.storage, t.dtype, t.shape = &a.held, -1, dtype, append(a.dims[:0:len(a.dims)], shape...)
	if n == 0 {
		return t, nil
	}
	if err := c.fill(ctx, t.held, uint64(n), o); err != nil {
		return nil, err
	}
	t.storage = 0
	if err = t.held.place(t, true); err != nil {
		t.held.release()
		return nil, err
	}
	return t, nil
}

// Zeros is Alloc with all bytes zero; on a GPU the legacy default stream makes them so.
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
		err = t.device.gpu.Fill(uint64(LegacyStream), at, 0, uint64(t.NumBytes()))
	}
	if err == nil {
		err = t.writtenBy(LegacyStream)
	}
	if err != nil {
		t.Release()
		return nil, err
	}
	return t, nil
}

// fill allocates the storage of an empty holding.
func (c *Client) fill(ctx context.Context, h *holding, n uint64, o allocOptions) error {
	pool, err := c.poolFor(o)
	if err != nil {
		return err
	}
	c.reap()
	s, err := pool.AllocFirst(ctx, n)
	if full(err) {
		s, err = c.allocWhenFull(ctx, pool, n, o.wait)
	}
	if err != nil {
		return err
	}
	if c.trace {
		c.writeTrace(s.Index)
	}
	a := c.attached.Load(s.Index / protocol.ChunkIndices)
	if a == nil { // Close has let go of everything meanwhile
		c.drop(s.Index)
		return c.life.refused(errClosed("client"))
	}
	h.storages = append(h.storages, storage{ref: s.Ref(), at: a, offset: s.Offset, bytes: s.Bytes})
	return nil
}

// writeTrace notes the first line outside of this package that asked for the
// storage, for `baton ls storages`.
func (c *Client) writeTrace(index uint32) {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	text := ""
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "baton/client.") {
			short := f.File
			if i := strings.LastIndexByte(short, '/'); i >= 0 {
				if j := strings.LastIndexByte(short[:i], '/'); j >= 0 {
					short = short[j+1:]
				}
			}
			text = fmt.Sprintf("%s:%d", short, f.Line)
			break
		}
		if !more {
			break
		}
	}
	var raw [protocol.TraceSize]byte
	copy(raw[:], text)
	copy(c.pages.session.Bytes(protocol.SessionTraces+uint64(index)*protocol.TraceSize, protocol.TraceSize), raw[:])
}
