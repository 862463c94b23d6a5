package client

import (
	"context"
	"slices"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// LeaseOption configures Tensor.Handle.
type LeaseOption func(*protocol.LeaseRequest)

// LeaseFor sets how long the handle protects the tensor, a time above 0 (default 30 s).
func LeaseFor(d time.Duration) LeaseOption {
	return func(r *protocol.LeaseRequest) { s := d.Seconds(); r.Seconds = &s }
}

// LeaseSession protects it until this session ends.
func LeaseSession() LeaseOption { return func(r *protocol.LeaseRequest) { r.Seconds = nil } }

// LeaseOnce protects it until it has been opened, or 30 s after this session
// ended: what a pickled tensor needs.
func LeaseOnce() LeaseOption {
	return func(r *protocol.LeaseRequest) { r.Seconds, r.Once = nil, true }
}

// Handle makes a handle that can be carried by any means (it is plain JSON) and opened by any
// process of this broker. The broker holds the tensor for the lease's time, whatever becomes of
// this process. Errors: ErrClosed once the tensor was released, ErrInvalid for a lease that does
// not last, ErrTooMany, and ErrExpired if the sender of a tensor on a GPU ended before it had
// written. With an error no lease is left.
func (t *Tensor) Handle(ctx context.Context, opts ...LeaseOption) (protocol.Handle, error) {
	if err := t.usable(); err != nil {
		return protocol.Handle{}, err
	}
	h := protocol.Handle{Host: t.c.s.Files.Instance, DType: t.dtype.String(), Shape: t.shape, Strides: handleStrides(t.strides), Device: "cpu", ReadOnly: t.readonly}
	if t.storage < 0 {
		return h, nil
	}
	if t.device != nil {
		h.Device = t.device.HandleName()
		if err := t.c.s.Devices.AwaitWritten(ctx, t.part()); err != nil {
			return protocol.Handle{}, err
		}
	}
	s := &t.held.Storages[t.storage]
	s.Share(t.c.s.Memory)
	h.Segment, h.Serial, h.Index, h.Generation = s.At.SegmentSerial, s.Ref.Serial, s.Ref.Index, s.Ref.Generation
	h.Offset, h.Bytes, h.ByteOffset = s.Offset, s.Bytes, t.offset
	seconds := float64(protocol.DefaultLease)
	// The number is the client's, so that one lease is made where the request is made again.
	req := protocol.LeaseRequest{Lease: protocol.RandomNumber(), Refs: []protocol.StorageRef{storageRef(s.Ref)}, Seconds: &seconds}
	for _, f := range opts {
		f(&req)
	}
	if req.Seconds != nil && *req.Seconds <= 0 {
		return protocol.Handle{}, protocol.Errorf(protocol.CodeInvalid, "use a time above 0, or LeaseSession, which lasts until the session ends", "a lease of %v seconds", *req.Seconds)
	}
	var ok protocol.LeaseReply
	link := t.c.s.Link
	if _, err := link.Call(ctx, protocol.OpLease, &req, &ok); err != nil {
		if fault.Uncertain(err) {
			link.Undo(protocol.OpLeaseRelease, protocol.LeaseRef{Lease: req.Lease})
		}
		return protocol.Handle{}, err
	}
	crashpoint.At("lease-made")
	h.Lease = &ok.Lease
	return h, nil
}

// handleStrides are strides as JSON can carry them. One beyond that leads to no
// element of a storage: it is of a dimension with one at most, or of a tensor without
// any, and may be any number.
func handleStrides(strides []int64) []int64 {
	strides = slices.Clone(strides)
	for i, s := range strides {
		if s < -protocol.MaxSafeInt || s > protocol.MaxSafeInt {
			strides[i] = 1
		}
	}
	return strides
}

// ReleaseHandle ends a handle's lease before its time; without a lease it does nothing. Errors:
// ErrExpired if the lease is over, ErrPermissionDenied if another session has made it.
func (c *Client) ReleaseHandle(ctx context.Context, h protocol.Handle) error {
	if h.Lease == nil {
		return nil
	}
	_, err := c.s.Link.Call(ctx, protocol.OpLeaseRelease, protocol.LeaseRef{Lease: *h.Lease}, nil)
	return err
}

// OpenOption configures Open.
type OpenOption func(*openOptions)

type openOptions struct{ readonly bool }

// OpenReadOnly opens a handle for reading even if it could be written.
func OpenReadOnly() OpenOption { return func(o *openOptions) { o.readonly = true } }

// Open returns the tensor of a handle, writable if the handle is. With a
// lease it redeems it; a handle out of a tuple is opened while its topic keeps
// the message. No round trip is made if the memory is mapped already.
//
// The bytes of a handle of another host are brought here first, where both brokers
// run with --span, and opened for reading; that takes 30 s at most, or what ctx says.
// Errors: ErrExpired, ErrInvalidHandle (malformed, outside its segment, or of another host that is
// not reached from here); of other hosts also ErrUnreachable, ErrHostLost, ErrUnsupported,
// ErrOutOfMemory. The caller releases the tensor.
func (c *Client) Open(ctx context.Context, h protocol.Handle, opts ...OpenOption) (*Tensor, error) {
	var o openOptions
	for _, f := range opts {
		f(&o)
	}
	if err := h.Check(); err != nil {
		return nil, err
	}
	if err := c.s.Life.Ended(); err != nil {
		return nil, err
	}
	if h.Host != c.s.Files.Instance {
		near, err := c.fetch(ctx, &h)
		if err != nil {
			return nil, err
		}
		h = near
	}
	if h.Device != "cpu" && c.s.Devices == nil {
		return nil, gpu.NoDevices(h.Device)
	}
	dtype, err := dlpack.ParseDType(h.DType)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "%w", err)
	}
	t := &Tensor{c: c, held: memory.NewHolding(c.s.Memory), storage: -1, dtype: dtype, shape: h.Shape, strides: h.Strides, readonly: h.ReadOnly || o.readonly}
	if !h.Empty() {
		if err := c.s.Memory.Open(ctx, &h, !t.readonly, t.held); err != nil {
			return nil, c.s.Life.Refused(err)
		}
		t.storage, t.offset = 0, h.ByteOffset
		if err := t.place(!t.readonly); err != nil {
			t.held.Release()
			return nil, c.s.Life.Refused(err)
		}
	}
	if err := t.check(); err != nil {
		t.held.Release()
		return nil, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "%w", err)
	}
	crashpoint.At("open-held")
	if h.Lease != nil {
		c.s.Claimed(*h.Lease)
	}
	return t, nil
}

// fetch has the broker bring here what a handle of another host names, and returns the handle of this host for it.
func (c *Client) fetch(ctx context.Context, far *protocol.Handle) (protocol.Handle, error) {
	r := protocol.HandleFetch{Handle: *far, Seconds: waits.SecondsForHosts(ctx)}
	if r.Seconds == 0 {
		r.Seconds = protocol.DefaultFetch
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, protocol.DefaultFetch*time.Second+waits.AfterHosts)
		defer cancel()
	}
	var ok protocol.HandleFetched
	if _, err := c.s.Link.Call(ctx, protocol.OpHandleFetch, &r, &ok); err != nil {
		return protocol.Handle{}, c.s.Life.Refused(err)
	}
	if ok.Handle.Host != c.s.Files.Instance {
		return protocol.Handle{}, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "the broker fetched a handle and gave one of host %s", ok.Handle.Host)
	}
	return ok.Handle, nil
}
