package shm

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// A waiter that relied on looking again would need a second for each message:
// the count of messages would then run into the test's time limit.
func TestRingWakesAParkedWaiterEachTime(t *testing.T) {
	bells := NewBells(memory(protocol.BellBytes))
	p, b := bells.Parking(4095), bells.Bell(4095)
	const messages = 2000
	var published, received atomic.Uint64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for received.Load() < messages {
			if published.Load() > received.Load() {
				received.Add(1)
				continue
			}
			e := p.Begin()
			if published.Load() == received.Load() {
				p.Sleep(e, time.Hour)
			}
			p.End()
		}
	}()
	for i := uint64(1); i <= messages; i++ {
		published.Store(i)
		Fence()
		b.Ring()
		for received.Load() < i { // let it park in between, now and then
			if i%2 == 0 {
				break
			}
		}
	}
	<-done
	require.EqualValues(t, messages, received.Load())
	require.Zero(t, p.r.Load64(protocol.BellParked)&1, "awake at the end")
}

func TestRingIsSilentWhenNobodyIsParkedOrWasRung(t *testing.T) {
	bells := NewBells(memory(protocol.BellBytes))
	p, b := bells.Parking(4095), bells.Bell(4095)
	b.Ring()
	require.Zero(t, p.Bell(), "no session is parked")
	e := p.Begin()
	b.Ring()
	b.Ring()
	require.EqualValues(t, e+1, p.Bell(), "one ring for one sleep")
	p.Sleep(e, time.Hour) // returns at once: the bell has changed
	p.End()
	p.Begin()
	b.Ring()
	require.EqualValues(t, e+2, p.Bell(), "and one for the next")
	p.End()
}

func TestEachMessageWakesOneOfThoseWhoWaitInAGroup(t *testing.T) {
	bells := NewBells(memory(protocol.BellBytes))
	set := bells.Waits(7).Group(63)
	slots := []uint32{1, 63, 64, 4095}
	for _, slot := range slots {
		set.Add(slot)
	}
	rung := func() (all []uint32) {
		for _, slot := range slots {
			for range bells.Parking(slot).Bell() {
				all = append(all, slot)
			}
		}
		return all
	}
	last := uint32(63)
	for k, want := range [][]uint32{{64}, {64, 4095}, {1, 64, 4095}, {1, 63, 64, 4095}} {
		set.RingOne(&last)
		require.Equal(t, want, rung(), "message %d", k+1)
	}
	set.RingOne(&last)
	require.Len(t, rung(), len(slots), "no session waits any more")
	require.Zero(t, set.words.Load64(0), "which one word tells")

	set.Add(63)
	set.RingOne(&last)
	require.Len(t, rung(), len(slots)+1, "the last one again, where it is alone")
	set.Add(64)
	set.Remove(64)
	set.RingOne(&last)
	require.Len(t, rung(), len(slots)+1)
}

func TestEachMessageWakesAllWhoWaitInSetNought(t *testing.T) {
	bells := NewBells(memory(protocol.BellBytes))
	waits := bells.Waits(protocol.MaxTopics - 1)
	for _, slot := range []uint32{0, 5, 64, 4095} {
		waits.All().Add(slot)
	}
	waits.Group(0).Add(9)
	waits.All().Ring()
	waits.All().Ring()
	for slot, n := range map[uint32]uint32{0: 1, 5: 1, 64: 1, 4095: 1, 6: 0, 9: 0} {
		require.Equal(t, n, bells.Parking(slot).Bell(), "session %d", slot)
	}
	require.Zero(t, bells.Waits(protocol.MaxTopics-2).All().words.Load64(0), "the areas lie apart")
}

// One of two waiters is woken for each item, and neither may be forgotten: a test that
// relied on their looking again would take an hour.
func TestNoItemIsSleptOver(t *testing.T) {
	bells := NewBells(memory(protocol.BellBytes))
	set := bells.Waits(0).Group(0)
	const items, takers = 4000, 2
	var left atomic.Int64
	var taken atomic.Uint64
	done := make(chan struct{}, takers)
	for slot := range uint32(takers) {
		go func() {
			p := bells.Parking(slot + 63) // in two words
			take := func() bool {
				for n := left.Load(); n > 0; n = left.Load() {
					if left.CompareAndSwap(n, n-1) {
						return true
					}
				}
				return false
			}
			for taken.Load() < items {
				if take() {
					taken.Add(1)
					continue
				}
				e := p.Begin()
				set.Add(slot + 63)
				Fence()
				if left.Load() == 0 && taken.Load() < items {
					sys.FutexWait(p.r.Word32(protocol.BellWord), e, time.Hour)
				}
				set.Remove(slot + 63)
				p.End()
			}
			bells.Wake(63)
			bells.Wake(64)
			done <- struct{}{}
		}()
	}
	var last uint32
	for i := range items {
		left.Add(1)
		Fence()
		set.RingOne(&last)
		for i%3 == 0 && left.Load() > 0 { // let them fall asleep, now and then
			runtime.Gosched()
		}
	}
	for range takers {
		<-done
	}
	require.EqualValues(t, items, taken.Load())
}

func TestProcessorIsCrowdedWhileTwoSessionsWaitThere(t *testing.T) {
	bells := NewBells(memory(protocol.BellBytes))
	const us = 1000
	require.False(t, bells.Crowds(1, 7, 1000*us), "no session has waited")
	require.False(t, bells.Crowds(1, 7, 1010*us), "itself")
	require.True(t, bells.Crowds(1, 8, 1020*us))
	require.False(t, bells.Crowds(2, 7, 1025*us), "another processor")
	require.True(t, bells.Crowds(1, 7, 1030*us))
	require.False(t, bells.Crowds(1, 8, 2000*us), "that is long ago")
}
