package bench

import (
	"context"
	"fmt"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

func init() {
	roles["refcount"] = takeRefcount
	roles["slot"] = takeSlot
	roles["open"] = takeHandle
	roles["message"] = takeMessage
	roles["alloc"] = allocate
}

// block is how many operations are timed together: one alone is shorter than a
// look at the clock.
const block = 256

// timed runs an operation in blocks and reports ns for one, by block. A tenth is
// to warm up.
func timed(s *seat, name string, op func(i int) error) error {
	blocks := max(s.N/block, 10)
	for b := -blocks / 10; b < blocks; b++ {
		from := sys.Monotonic()
		for i := range block {
			if err := op(i); err != nil {
				return err
			}
		}
		if ns := float64(sys.Monotonic()-from) / block; b >= 0 {
			s.report(name, ns)
		}
	}
	return nil
}

// takeRefcount counts a reference up and down in refcounts.
func takeRefcount(_ context.Context, s *seat) error {
	m, err := sys.MapAnonymous(protocol.SessionBytes)
	if err != nil {
		return err
	}
	refcounts := handles.NewRefcounts(shm.NewRegion(m))
	return timed(s, "ns", func(i int) error {
		err := refcounts.Take(uint32(i & 7))
		refcounts.Drop(uint32(i & 7))
		return err
	})
}

// takeSlot takes the reference that a slot names: read the slot, count up, look
// again; then drop.
func takeSlot(_ context.Context, s *seat) error {
	m, err := sys.MapAnonymous(protocol.SessionBytes)
	if err != nil {
		return err
	}
	file := shm.NewRegion(m)
	refcounts := handles.NewRefcounts(file)
	slots := protocol.Slots(protocol.DefaultTopicDepth)
	lane, err := shm.NewLane(file, protocol.SessionLanes, slots, protocol.Stride(protocol.DefaultDescription))
	if err != nil {
		return err
	}
	for i := uint64(1); i <= protocol.DefaultTopicDepth; i++ {
		words := shm.AppendRef(nil, protocol.Ref{Serial: 1, Generation: 1, Index: uint32(i)})
		lane.Write(i, &shm.SlotHead{Stamp: 1, Nref: 1}, words)
		lane.Publish(i)
	}
	var words [24]uint64
	return timed(s, "ns", func(i int) error {
		n := uint64(i&7) + 1
		head, got, ok := lane.Read(n, words[:0])
		if !ok {
			return fmt.Errorf("slot %d is empty", n)
		}
		ref := head.Ref(got, 0) // as a client's take
		if err := refcounts.Take(ref.Index); err != nil {
			return err
		}
		shm.FenceAcquire()
		if !lane.Has(n) {
			return fmt.Errorf("slot %d has changed", n)
		}
		refcounts.Drop(ref.Index)
		return nil
	})
}

// two makes two clients of one process, an owner and another.
func two(ctx context.Context, s *seat) (owner, other *client.Client, err error) {
	if owner, err = connect(ctx, s.Socket, "bench-owner"); err != nil {
		return nil, nil, err
	}
	if other, err = connect(ctx, s.Socket, "bench-other"); err != nil {
		owner.Close()
	}
	return owner, other, err
}

// takeHandle opens a handle of memory that is mapped already, and drops it.
func takeHandle(ctx context.Context, s *seat) error {
	owner, other, err := two(ctx, s)
	if err != nil {
		return err
	}
	defer owner.Close()
	defer other.Close()
	t, err := owner.Alloc(ctx, dlpack.Float32, []int64{1024})
	if err != nil {
		return err
	}
	defer t.Release()
	h, err := t.Handle(ctx, client.LeaseSession())
	if err != nil {
		return err
	}
	h.Lease = nil // not claimed: the owner holds the tensor
	return timed(s, "ns", func(int) error {
		got, err := other.Open(ctx, h)
		if err == nil {
			got.Release()
		}
		return err
	})
}

// takeMessage receives messages that are there, and releases them.
func takeMessage(ctx context.Context, s *seat) error {
	owner, other, err := two(ctx, s)
	if err != nil {
		return err
	}
	defer owner.Close()
	defer other.Close()
	to, err := owner.Topic(ctx, s.Path, client.Depth(block))
	if err != nil {
		return err
	}
	from, err := other.Topic(ctx, s.Path)
	if err != nil {
		return err
	}
	r, err := from.Reader(ctx)
	if err != nil {
		return err
	}
	t, err := owner.Alloc(ctx, dlpack.Float32, []int64{1024})
	if err != nil {
		return err
	}
	defer t.Release()
	blocks := max(s.N/block, 10)
	for b := -blocks / 10; b < blocks; b++ {
		for range block {
			if err := to.Send(ctx, t); err != nil {
				return err
			}
		}
		from := sys.Monotonic()
		for i := range block {
			m, err := r.TryReceive(ctx)
			if err != nil {
				return err
			}
			if m == nil {
				return fmt.Errorf("message %d of %d is missing", i, block)
			}
			m.Release()
		}
		if ns := float64(sys.Monotonic()-from) / block; b >= 0 {
			s.report("ns", ns)
		}
	}
	return nil
}

// allocate takes a storage from a warm pool and gives it back.
func allocate(ctx context.Context, s *seat) error {
	c, err := connect(ctx, s.Socket, "bench-owner")
	if err != nil {
		return err
	}
	defer c.Close()
	shape := []int64{s.Bytes}
	return timed(s, "ns", func(int) error {
		t, err := c.Alloc(ctx, dlpack.Uint8, shape)
		if err == nil {
			t.Release()
		}
		return err
	})
}
