package devices

import (
	"context"
	"slices"
	"sync"

	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sparse"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// lender is what a client has lent of memory that frameworks allocated on GPUs. Each
// tensor is a storage of its own, counted as all are; each allocation is a segment
// that others open by the driver's handle while they hold a storage of it.
type lender struct {
	d      *Set
	asking sync.Mutex // held while the broker is asked about blocks

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
	here   *memory.Segment
	handle gpu.IPCHandle
	free   []protocol.Ref
	lent   map[uint32]lentStorage // by index
}

type lentStorage struct {
	ref  protocol.Ref
	done func()
}

func (l *lender) init(d *Set) {
	l.d = d
	l.test = d.m.FreeTest()
}

// Lend makes the storage of n bytes at an address of a GPU, by the name that a user gives it,
// and has a holding count it. It returns where in the storage they begin. done is called when
// nothing holds it any more.
func (d *Set) Lend(ctx context.Context, name string, at, n uint64, done func(), into *memory.Holding) (offset uint64, err error) {
	g, err := d.named(name)
	if err != nil {
		return 0, err
	}
	if err := d.life.Ended(); err != nil {
		return 0, err
	}
	if offset, err = d.lend.lend(ctx, g.GPU, at, n, done, into); err != nil {
		return 0, err
	}
	d.lookNow() // a taker of it from a queue may let go of it without a word
	return offset, nil
}

func (l *lender) lend(ctx context.Context, g *gpu.GPU, at, n uint64, done func(), into *memory.Holding) (offset uint64, err error) {
	a, err := g.Allocation(at)
	if err != nil {
		return 0, err
	}
	if off := at - a.Base; off > a.Bytes || n > a.Bytes-off {
		return 0, protocol.Errorf(protocol.CodeInvalid, "give elements inside one allocation",
			"%d bytes at %d of an allocation of %d", n, off, a.Bytes)
	}
	l.asking.Lock()
	defer l.asking.Unlock()
	b, err := l.block(ctx, g, &a)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	ref := b.free[len(b.free)-1]
	off := at - a.Base
	offset = off % protocol.Alignment
	if err := l.d.m.HoldNew(ref, off-offset, n+offset, into); err != nil {
		return 0, err
	}
	b.free = b.free[:len(b.free)-1]
	b.lent[ref.Index] = lentStorage{ref, done}
	return offset, nil
}

// disregard has nothing called when a storage's end comes.
func (l *lender) disregard(index uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.blockOf(index)
	b.lent[index] = lentStorage{ref: b.lent[index].ref}
}

// block returns the block of an allocation, with a free index. Callers hold asking.
func (l *lender) block(ctx context.Context, g *gpu.GPU, a *gpu.Allocation) (*lentBlock, error) {
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
	chunks, err := memory.NewSource(l.d.m).MoreChunks(ctx, b.here.Segment, 1)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(b, chunks)
	return b, nil
}

// newBlock makes an allocation known to the broker.
func (l *lender) newBlock(ctx context.Context, g *gpu.GPU, a *gpu.Allocation) (*lentBlock, error) {
	fd, err := gpu.HandleFile(a.Handle)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeOutOfMemory, "raise the limit of open files", "%w", err)
	}
	from := memory.NewSource(l.d.m)
	before, end := from.Begin()
	defer end()
	var ok protocol.GrantReply
	fds, err := l.d.broker.Call(ctx, protocol.OpGrant, protocol.Grant{Bytes: a.Bytes, Chunks: 1, Device: g.Name, Borrowed: true}, &ok)
	wire.CloseAll(fds)
	if err != nil {
		fd.Close()
		return nil, err
	}
	seg := shm.NewDeviceSegment(ok.Segment, ok.SegmentSerial, ok.Bytes, fd)
	b := &lentBlock{handle: a.Handle, lent: map[uint32]lentStorage{},
		here: &memory.Segment{Segment: seg, Device: gpu.NewLent(g, ok.DeviceID, seg, a.Base)}}
	_, err = l.d.broker.Call(ctx, protocol.OpOffer, protocol.Offer{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil, fd)
	if err == nil {
		err = from.PrepareNew(before, b.here, ok.Chunks)
	}
	if err != nil {
		l.d.broker.Call(ctx, protocol.OpReturn, protocol.Return{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil)
		seg.Close()
		return nil, err
	}
	gpu.AddLent(a)
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
			l.d.files.Entries.SetGeneration(index, 1)
			b.free = append(b.free, protocol.Ref{Serial: k.Serial, Generation: 1, Index: index})
		}
	}
}

// Dropped is called when this session's count of an index fell to zero.
func (d *Set) Dropped(index uint32) {
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
func (d *Set) lookNow() {
	d.deferredReleases.mu.Lock()
	d.look(d)
	d.deferredReleases.mu.Unlock()
}

// any tells whether anything is lent.
func (l *lender) any() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.blocks) > 0
}

// sweepLent is sweep where anything is lent.
func (d *Set) sweepLent() {
	if d.lend.any() {
		d.m.WithdrawDone() // queues still name what was taken from them
		d.lend.sweep(context.Background())
	}
}

// sweep lets go of what nothing holds any more, and gives empty blocks back.
func (l *lender) sweep(ctx context.Context) {
	l.free()
	if l.d.broker.IsAway() || !l.asking.TryLock() {
		return // or another goroutine is about to lend
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
		if memory.NewSource(l.d.m).Return(ctx, b.here.Segment) {
			l.remove(b)
		}
	}
}

// free ends the storages that nothing holds any more.
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
		if l.d.files.Refcounts.Count(index) != 0 {
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
	gpu.RemoveLent(b.handle)
	for _, r := range b.free {
		l.chunks.Store(r.Index/protocol.ChunkIndices, nil)
	}
	l.blocks = slices.DeleteFunc(l.blocks, func(o *lentBlock) bool { return o == b })
}

// Sweep ends what is lent and that nothing holds any more.
func (d *Set) Sweep(ctx context.Context) { d.lend.sweep(ctx) }

// Disregard has nothing called when the end of a lent storage comes.
func (d *Set) Disregard(index uint32) { d.lend.disregard(index) }

// Between runs f while nothing lent is tested.
func (d *Set) Between(f func()) { d.lend.between(f) }

// between runs f while no free test runs, which has refcounts in hand.
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
