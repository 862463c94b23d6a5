package client

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sparse"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// lender is what a client has lent of memory that frameworks allocated on GPUs. Each
// tensor is a storage of its own, counted as all are; each allocation is a segment
// that others open by the driver's handle while they hold a storage of it.
type lender struct {
	c      *Client
	asking sync.Mutex // held by who talks with the broker about blocks

	mu      sync.Mutex // guards what follows
	test    handles.FreeTest
	blocks  []*lentBlock
	waiting []uint32 // for others to let go

	dropMu  sync.Mutex
	dropped []uint32 // own count fell to zero, not yet seen

	chunks sparse.Table[lentBlock] // the lender's, by number
}

// lentBlock is an allocation of which something is lent, or was.
type lentBlock struct {
	*segmentEntry
	handle IPCHandle
	free   []protocol.Ref
	lent   map[uint32]lentStorage // by index
}

type lentStorage struct {
	ref  protocol.Ref
	done func()
}

func (l *lender) init(c *Client) {
	l.c = c
	l.test = c.freeTest()
}

// Lend makes a tensor of elements that a framework has on a GPU, as they lie, to be
// handed to others: memory of cudaMalloc's. They stay where they are, and are the
// tensor's, until done is called, on a goroutine of the client's, when nobody holds
// the tensor any more. Others open the memory while they hold it, and only as long as
// this client lives: then, and if they come late, they get ErrExpired. Of what is held
// when the client is closed done is not called. The Stream, by default the legacy one,
// is that after whose work the elements are written. With an error nothing is lent, and
// done is not called. ErrUnsupported: memory that the driver cannot lend (virtual
// memory, asynchronous pools); ErrInvalid; ErrNotFound for a GPU that is not there.
func (c *Client) Lend(ctx context.Context, v dlpack.View, done func(), opts ...ExportOption) (*Tensor, error) {
	o := exportOptions{stream: LegacyStream}
	for _, f := range opts {
		f.export(&o)
	}
	if err := o.stream.check(); err != nil {
		return nil, err
	}
	if v.Device.Type != dlpack.CUDA || v.Data == 0 {
		return nil, protocol.Errorf(protocol.CodeUnsupported, "give elements on a GPU, or copy them into a tensor of Alloc's",
			"%s%v on %s cannot be lent", v.DType, v.Shape, v.Device)
	}
	span, err := v.DType.SpanBytes(v.Shape, v.Strides)
	if err != nil || span == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "give a shape with elements and a known dtype", "lend %s%v strides %v: %w", v.DType, v.Shape, v.Strides, err)
	}
	g, err := c.named(fmt.Sprintf("cuda:%d", v.Device.ID))
	if err != nil {
		return nil, err
	}
	if err := c.life.ended(); err != nil {
		return nil, err
	}
	t := &Tensor{held: newHolding(c), dtype: v.DType, shape: slices.Clone(v.Shape), readonly: v.ReadOnly()}
	if !dlpack.IsContiguous(v.Shape, v.Strides) {
		t.strides = slices.Clone(v.Strides)
	}
	at := uint64(v.Data) + v.ByteOffset
	if err := c.devices.lend.lend(ctx, g, at, uint64(span), done, t); err != nil {
		return nil, err
	}
	c.devices.lookNow() // whoever takes it from a queue may let go of it without a word
	if o.stream != NoStream {
		if err := t.writtenBy(o.stream); err != nil {
			c.devices.lend.disregard(t.held.storages[0].ref.Index)
			t.Release()
			return nil, err
		}
	}
	return t, nil
}

// lend makes the storage of n bytes at an address, and places the tensor in it.
func (l *lender) lend(ctx context.Context, g *gpu, at, n uint64, done func(), t *Tensor) error {
	a, err := g.Allocation(at)
	if err != nil {
		return err
	}
	if off := at - a.Base; off > a.Bytes || n > a.Bytes-off {
		return protocol.Errorf(protocol.CodeInvalid, "give elements inside one allocation",
			"%d bytes at %d of an allocation of %d", n, off, a.Bytes)
	}
	l.asking.Lock()
	defer l.asking.Unlock()
	b, err := l.block(ctx, g, &a)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ref := b.free[len(b.free)-1]
	attached := l.c.attached.Load(ref.Index / protocol.ChunkIndices)
	if attached == nil { // Close has let go of everything meanwhile
		return errClosed("client")
	}
	if err := l.c.countUp(ref.Index); err != nil {
		return err
	}
	b.free = b.free[:len(b.free)-1]
	b.lent[ref.Index] = lentStorage{ref, done}
	off := at - a.Base
	t.offset = off % protocol.Alignment
	s := storage{ref: ref, at: attached, offset: off - t.offset, bytes: n + t.offset}
	l.c.pages.entries.Describe(ref.Index, s.offset, s.bytes, sys.Monotonic())
	t.held.storages = append(t.held.storages, s)
	return t.held.place(t, true)
}

// disregard calls nobody when a storage's end comes.
func (l *lender) disregard(index uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.blockOf(index)
	b.lent[index] = lentStorage{ref: b.lent[index].ref}
}

// block returns the block of an allocation, with a free index. Callers hold asking.
func (l *lender) block(ctx context.Context, g *gpu, a *Allocation) (*lentBlock, error) {
	l.mu.Lock()
	i := slices.IndexFunc(l.blocks, func(b *lentBlock) bool { return b.handle == a.Handle })
	var b *lentBlock
	free := 0
	if i >= 0 {
		b = l.blocks[i]
		free = len(b.free)
	}
	l.mu.Unlock()
	switch {
	case b == nil:
		return l.newBlock(ctx, g, a)
	case free > 0:
		return b, nil
	}
	chunks, err := source{c: l.c}.MoreChunks(ctx, b.Segment, 1)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(b, chunks)
	return b, nil
}

// newBlock makes an allocation known to the broker.
func (l *lender) newBlock(ctx context.Context, g *gpu, a *Allocation) (*lentBlock, error) {
	fd, err := handleFile(a.Handle)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeOutOfMemory, "raise the limit of open files", "%w", err)
	}
	l.c.granting.RLock()
	defer l.c.granting.RUnlock()
	before := l.c.arriving()
	var ok protocol.GrantReply
	fds, err := l.c.link.call(ctx, protocol.OpGrant, protocol.Grant{Bytes: a.Bytes, Chunks: 1, Device: g.name, Borrowed: true}, &ok)
	wire.CloseAll(fds)
	if err != nil {
		fd.Close()
		return nil, err
	}
	seg := shm.NewDeviceSegment(ok.Segment, ok.SegmentSerial, ok.Bytes, fd)
	b := &lentBlock{handle: a.Handle, lent: map[uint32]lentStorage{},
		segmentEntry: &segmentEntry{Segment: seg, device: &deviceSegment{gpu: g, id: ok.DeviceID, segment: seg}}}
	b.device.readable.Store(a.Base)
	b.device.writable.Store(a.Base)
	_, err = l.c.link.call(ctx, protocol.OpOffer, protocol.Offer{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil, fd)
	if err == nil {
		err = source{c: l.c}.prepareNew(before, b.segmentEntry, ok.Chunks)
	}
	if err != nil {
		l.c.link.call(ctx, protocol.OpReturn, protocol.Return{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil)
		seg.Close()
		return nil, err
	}
	addLent(a)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = append(l.blocks, b)
	l.add(b, ok.Chunks)
	return b, nil
}

// add adds indices over a block. Callers hold mu.
func (l *lender) add(b *lentBlock, chunks []protocol.ChunkGrant) {
	for _, k := range chunks {
		l.chunks.Store(k.Chunk, b)
		first := k.Chunk * protocol.ChunkIndices
		for index := first; index < first+protocol.ChunkIndices; index++ {
			l.c.pages.entries.SetGeneration(index, 1)
			b.free = append(b.free, protocol.Ref{Serial: k.Serial, Generation: 1, Index: index})
		}
	}
}

// lentDropped hears that this session's count of an index fell to zero.
func (d *deviceSet) lentDropped(index uint32) {
	l := &d.lend
	if l.chunks.Load(index/protocol.ChunkIndices) == nil {
		return
	}
	l.dropMu.Lock()
	l.dropped = append(l.dropped, index)
	l.dropMu.Unlock()
	d.lookNow()
}

// lookNow has the goroutine look after what is lent.
func (d *deviceSet) lookNow() {
	d.retired.mu.Lock()
	d.look(d)
	d.retired.mu.Unlock()
}

// any tells whether anything is lent.
func (l *lender) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.blocks) > 0
}

// sweepLent is sweep where anything is lent.
func (d *deviceSet) sweepLent() {
	if d.lend.any() {
		d.c.settle() // queues still name what was taken from them
		d.lend.sweep(context.Background())
	}
}

// sweep lets go of what nobody holds any more, and gives empty blocks back.
func (l *lender) sweep(ctx context.Context) {
	l.free()
	if l.c.link.isAway() || !l.asking.TryLock() {
		return // or somebody is about to lend
	}
	defer l.asking.Unlock()
	l.mu.Lock()
	var empty []*lentBlock
	for _, b := range l.blocks {
		if len(b.lent) == 0 {
			empty = append(empty, b)
		}
	}
	l.mu.Unlock()
	for _, b := range empty {
		if (source{c: l.c}).Return(ctx, b.Segment) {
			l.remove(b)
		}
	}
}

// free ends the storages that nobody holds any more.
func (l *lender) free() {
	l.dropMu.Lock()
	news := l.dropped
	l.dropped = nil
	l.dropMu.Unlock()
	var over []func()
	l.mu.Lock()
	for _, index := range news {
		if !slices.Contains(l.waiting, index) && l.blockOf(index) != nil {
			l.waiting = append(l.waiting, index)
		}
	}
	left := l.waiting[:0]
	for _, index := range l.waiting {
		if l.c.pages.row.Count(index) != 0 {
			continue // taken back from a message: its next drop tells
		}
		next, free := l.test.Recycle(index)
		if !free {
			left = append(left, index)
			continue
		}
		b := l.blockOf(index)
		s := b.lent[index]
		delete(b.lent, index)
		s.ref.Generation = next
		b.free = append(b.free, s.ref)
		if s.done != nil {
			over = append(over, s.done)
		}
	}
	l.waiting = left
	l.mu.Unlock()
	for _, done := range over {
		done()
	}
}

// blockOf finds the block of a lent storage. Callers hold mu.
func (l *lender) blockOf(index uint32) *lentBlock {
	b := l.chunks.Load(index / protocol.ChunkIndices)
	if b == nil {
		return nil
	}
	if _, ok := b.lent[index]; !ok {
		return nil
	}
	return b
}

// remove forgets a block that the broker has back.
func (l *lender) remove(b *lentBlock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	removeLent(b.handle)
	for _, r := range b.free {
		l.chunks.Store(r.Index/protocol.ChunkIndices, nil)
	}
	l.blocks = slices.DeleteFunc(l.blocks, func(o *lentBlock) bool { return o == b })
}

// between runs f while no free test runs, which has rows in hand.
func (l *lender) between(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// end is called before the session ends. What others hold still stays as it is to the
// end of the process.
func (l *lender) end() {
	l.free()
}
