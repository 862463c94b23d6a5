package handles

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Source is where a Pool gets memory and gives it back: the session's broker.
// One call is made at a time, without the pool's lock: while a broker is away,
// callers that find what they need in the pool are not held up.
type Source interface {
	// Grant asks for a segment of at least bytes, with chunks index chunks whose
	// entries it has reserved. With fallback a smaller one, or another attempt, follows a
	// refusal for want of room.
	Grant(ctx context.Context, bytes uint64, chunks int, fallback bool) (Grant, error)
	// MoreChunks asks for more indices over a segment.
	MoreChunks(ctx context.Context, segment *shm.Segment, count int) ([]protocol.ChunkGrant, error)
	// Return gives an empty segment back; false keeps it here.
	Return(ctx context.Context, segment *shm.Segment) bool
}

// growLocked gets indices for a slab that has memory, or a slab. Others may use
// the pool meanwhile, so what was got may be gone again: look anew.
func (p *Pool) growLocked(ctx context.Context, class uint64, fallback bool) error {
	had := p.grown
	if err := p.beginAsking(ctx); err != nil {
		return err
	}
	defer p.endAsking()
	if p.over != nil {
		return p.over
	}
	if p.grown != had {
		return nil // another goroutine has asked meanwhile
	}
	for _, sl := range p.slabs {
		if len(sl.indices) == 0 && sl.free.Has(class) {
			if p.moreIndicesLocked(ctx, sl) {
				return nil
			}
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return p.moreMemoryLocked(ctx, class, fallback)
}

// beginAsking gives up p.mu for the turn to talk with the source, and takes both.
func (p *Pool) beginAsking(ctx context.Context) error {
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case p.asking <- struct{}{}:
		return nil
	default:
	}
	select {
	case p.asking <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	const what = "waiting for another goroutine that asks the broker for memory"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return protocol.Errorf(protocol.CodeTimeout, "give the call a longer timeout", "time ran out %s: %w", what, ctx.Err())
	}
	return fmt.Errorf("baton: given up %s: %w", what, ctx.Err())
}

func (p *Pool) endAsking() { <-p.asking }

// unlocked runs a call to the source without p.mu.
func (p *Pool) unlocked(call func()) {
	p.mu.Unlock()
	defer p.mu.Lock()
	call()
}

// moreIndicesLocked asks for index chunks over a slab that has memory and no
// index left. The caller has the turn.
func (p *Pool) moreIndicesLocked(ctx context.Context, sl *slab) (ok bool) {
	var chunks []protocol.ChunkGrant
	var err error
	count := min(maxChunkAsk, max(1, sl.chunks))
	p.unlocked(func() { chunks, err = p.source.MoreChunks(ctx, sl.segment, count) })
	if err != nil {
		return false
	}
	p.addChunksLocked(sl, chunks)
	return len(chunks) > 0
}

// moreMemoryLocked asks for a slab: of the usual size, then, since a quota may
// have room for what is needed if not for that, smaller. The caller has the turn. With fallback it tries again after the smallest, too.
func (p *Pool) moreMemoryLocked(ctx context.Context, class uint64, fallback bool) error {
	least := (class + protocol.PageBytes - 1) &^ (protocol.PageBytes - 1)
	usual := max(min(max(p.granted, p.first), maxSlab), least)
	g, err := p.askLocked(ctx, usual, true)
	if small := max(least, p.first); full(err) && small < usual {
		g, err = p.askLocked(ctx, small, true)
	}
	if full(err) {
		p.trimLocked(ctx, nil)
		g, err = p.askLocked(ctx, least, fallback)
	}
	if err != nil {
		return err
	}
	sl := &slab{segment: g.Segment, region: g.Region}
	sl.free.Give(0, g.Segment.Bytes)
	p.granted += g.Segment.Bytes
	p.slabs = append(p.slabs, sl)
	p.addChunksLocked(sl, g.Chunks)
	return nil
}

func (p *Pool) askLocked(ctx context.Context, bytes uint64, fallback bool) (g Grant, err error) {
	p.unlocked(func() { g, err = p.source.Grant(ctx, bytes, 1, fallback) })
	return g, err
}

// full tells whether a smaller grant may succeed where one was refused.
func full(err error) bool {
	return errors.Is(err, protocol.ErrQuotaExceeded) || errors.Is(err, protocol.ErrOutOfMemory)
}

// Reclaim tests every storage that may be free and gives empty segments back to
// the broker. It returns the bytes given back.
func (p *Pool) Reclaim(ctx context.Context) uint64 { return p.reclaim(ctx, reclaimAll) }

// ReclaimIdle is Reclaim for the sake of others. It keeps the slab in which a session
// allocated a moment ago: a sender may hold nothing between two messages.
func (p *Pool) ReclaimIdle(ctx context.Context) uint64 { return p.reclaim(ctx, reclaimIdle) }

// ReclaimAtOnce is Reclaim that does not wait for a goroutine which asks the broker for memory: that one gives
// back itself what is empty before it is refused.
func (p *Pool) ReclaimAtOnce(ctx context.Context) uint64 { return p.reclaim(ctx, reclaimAtOnce) }

type reclaiming int

const (
	reclaimAll reclaiming = iota
	reclaimIdle
	reclaimAtOnce
)

// workingTime is how long after an allocation its slab is kept for the next one.
const workingTime = uint64(time.Second)

func (p *Pool) reclaim(ctx context.Context, how reclaiming) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over != nil || p.paused != nil {
		return 0
	}
	p.drainLocked()
	p.recycleLocked(p.waiting.len())
	if how == reclaimAtOnce {
		select {
		case p.asking <- struct{}{}:
		default:
			return 0
		}
	} else if p.beginAsking(ctx) != nil {
		return 0
	}
	defer p.endAsking()
	if p.over != nil || p.paused != nil {
		return 0
	}
	var working *slab
	if how == reclaimIdle && p.latest != nil && sys.Monotonic() < p.at+workingTime {
		working = p.latest
	}
	return p.trimLocked(ctx, working)
}

// trimLocked gives empty slabs back but for one. The caller has the turn. No caller
// allocates in a slab that is on its way.
func (p *Pool) trimLocked(ctx context.Context, but *slab) (given uint64) {
	p.unbinLocked()
	var empty, kept []*slab
	for _, sl := range p.slabs {
		if sl.used > 0 || sl == but {
			kept = append(kept, sl)
		} else {
			empty = append(empty, sl)
		}
	}
	if len(empty) == 0 {
		return 0
	}
	p.slabs = kept
	for _, sl := range empty {
		var gone bool
		p.unlocked(func() { gone = p.source.Return(ctx, sl.segment) })
		if !gone {
			p.slabs = append(p.slabs, sl)
			continue
		}
		for _, s := range sl.indices {
			p.own.Store(s.Index/protocol.ChunkIndices, nil)
		}
		given += sl.segment.Bytes
		p.granted -= sl.segment.Bytes
	}
	return given
}
