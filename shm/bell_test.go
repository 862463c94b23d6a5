package shm

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/baton-ipc/baton/protocol"
	"github.com/stretchr/testify/require"
)

// A waiter that relied on looking again would need a second for each message:
// the count of messages would then run into the test's time limit.
func TestRingWakesAParkedWaiterEachTime(t *testing.T) {
	session, bell := memory(protocol.PageBytes), memory(protocol.PageBytes)
	p, b := NewParking(session, bell), NewBell(session, bell)
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
	require.Zero(t, session.Load64(protocol.SessionParked)&1, "awake at the end")
}

func TestRingIsSilentWhenNobodyIsParkedOrWasRung(t *testing.T) {
	session, bell := memory(protocol.PageBytes), memory(protocol.PageBytes)
	p, b := NewParking(session, bell), NewBell(session, bell)
	b.Ring()
	require.Zero(t, bell.Load32(protocol.BellWord), "nobody is parked")
	e := p.Begin()
	b.Ring()
	b.Ring()
	require.EqualValues(t, e+1, bell.Load32(protocol.BellWord), "one ring for one sleep")
	p.Sleep(e, time.Hour) // returns at once: the bell has changed
	p.End()
	p.Begin()
	b.Ring()
	require.EqualValues(t, e+2, bell.Load32(protocol.BellWord), "and one for the next")
	p.End()
}
