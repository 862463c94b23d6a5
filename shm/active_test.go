package shm

import (
	"math/rand"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// A place is how far a reader of lanes that are mere counters has come in each.
type place struct {
	sent  []atomic.Uint64
	taken []uint64
	scan  Scan
}

func newPlace(sent []atomic.Uint64, a Active) *place {
	p := &place{sent: sent, taken: make([]uint64, len(sent))}
	numbers := make([]uint32, len(sent))
	for k := range numbers {
		numbers[k] = uint32(3 * k) // with gaps, over several words
	}
	p.scan.Begin(a, numbers)
	return p
}

func (p *place) pending(k int) bool   { return p.taken[k] < p.sent[k].Load() }
func (p *place) head(k int) uint64    { return p.sent[k].Load() }
func (p *place) fullLook(now uint64)  { p.scan.FullLook(now, p.head, p.pending) }
func (p *place) chosen() (all []int)  { return slices.Clone(p.scan.Look(p.pending)) }
func (p *place) ready() bool          { return p.scan.Ready(p.pending) }
func activeLanes() Active             { return NewBells(memory(protocol.BellBytes)).Waits(7).Active() }
func mark(a Active, k int)            { Fence(); a.Mark(uint32(3 * k)) }
func always(now uint64) func() uint64 { return func() uint64 { return now } }

func TestFewLanesAreAllLookedAt(t *testing.T) {
	a := activeLanes()
	p := newPlace(make([]atomic.Uint64, fewLanes), a)
	require.False(t, p.scan.Due(always(1<<62)))
	require.Len(t, p.chosen(), fewLanes)
	require.False(t, p.ready())
	p.sent[5].Add(1) // and says nothing
	require.True(t, p.ready())
	require.Len(t, p.chosen(), fewLanes)
}

func TestSilentLanesArePassedOver(t *testing.T) {
	a, sent := activeLanes(), make([]atomic.Uint64, 40)
	p, other := newPlace(sent, a), newPlace(sent, a)
	send := func(k int) { sent[k].Add(1); mark(a, k) }
	require.Empty(t, p.chosen(), "no lane has sent")
	send(3)
	send(30)
	require.True(t, p.ready())
	require.Equal(t, []int{3, 30}, p.chosen())
	p.taken[3], p.taken[30], other.taken[3] = 1, 1, 1
	require.Equal(t, []int{3, 30}, p.chosen(), "they are active")
	require.False(t, p.ready())

	require.True(t, p.scan.Due(always(0)))
	p.fullLook(1)
	require.False(t, p.scan.Due(always(fullLookLeast)))
	require.True(t, p.scan.Due(always(fullLookLeast+1)))
	require.Equal(t, []int{3, 30}, p.chosen(), "they may have sent just now")
	send(30)
	p.taken[30]++
	p.fullLook(2)
	require.Equal(t, []int{30}, p.chosen(), "one is silent")
	require.True(t, other.ready(), "another one's clear is noticed")
	require.Equal(t, []int{30}, other.chosen(), "it has nothing left of the silent one")
	p.fullLook(3)
	require.Empty(t, p.chosen())
	require.Equal(t, []int{30}, other.chosen(), "though no reader looks there any more")
	other.taken[30] = 2
	require.Empty(t, other.chosen())
	send(3)
	require.Equal(t, []int{3}, p.chosen())
	require.Equal(t, []int{3}, other.chosen())
}

// What was published by one that said nothing is found by a full look.
func TestFullLookFindsWhatWasNotMarked(t *testing.T) {
	sent := make([]atomic.Uint64, 20)
	p := newPlace(sent, activeLanes())
	require.Empty(t, p.chosen())
	sent[11].Add(1)
	require.Empty(t, p.chosen())
	p.fullLook(1)
	require.Equal(t, []int{11}, p.chosen())
}

// Senders fall silent and send again while some readers clear what is silent and others
// never look at all: each gets everything, without a full look of its own.
func TestNoMessageIsPassedOver(t *testing.T) {
	const messages, senders = 3000, 4
	a, sent := activeLanes(), make([]atomic.Uint64, 60)
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			rnd := rand.New(rand.NewSource(int64(s)))
			for range messages {
				k := s + senders*rnd.Intn(len(sent)/senders)
				sent[k].Add(1)
				mark(a, k)
				runtime.Gosched() // it is silent now and then
			}
		})
	}
	for r := range 4 {
		all.Go(func() {
			p := newPlace(sent, a)
			for n := 0; n < senders*messages; {
				if r%2 == 0 {
					p.fullLook(1) // each time: all that has nothing is cleared
				} else {
					for range 100 { // often enough something is marked and cleared between two looks
						runtime.Gosched()
					}
				}
				for _, k := range p.scan.Look(p.pending) {
					for p.pending(k) {
						p.taken[k]++
						n++
					}
				}
			}
		})
	}
	all.Wait()
}
