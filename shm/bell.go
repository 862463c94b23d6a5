package shm

import (
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// LookAgain is how long a parked session sleeps at most. False data, or a ringer that is
// suspended between publishing and ringing, costs a delay and never a hang.
const LookAgain = time.Second

// Bells views the bell file of an instance: the bells of its sessions, and which sessions wait in
// which topic.
type Bells struct{ r Region }

// NewBells views a mapping of the whole file.
func NewBells(file Region) Bells { return Bells{file} }

// aMoment is for how many microseconds a session is taken to be still about on a processor
// where it began to wait.
const aMoment = 100

// Crowds notes that a session waits on a processor, and tells whether another one began to
// wait there a moment ago: then each looks for what the other has to do first. now is in ns. A
// hint, which any session may have written.
func (b Bells) Crowds(processor int, slot uint32, now uint64) bool {
	const times = 1<<48 - 1 // of microseconds, above the slot
	at := protocol.BellWaiters + 8*(uint64(processor)%protocol.MostWaiters)
	last, time := b.r.Load64(at), now/1000&times
	b.r.Store64(at, time<<16|uint64(slot))
	return uint16(last) != uint16(slot) && (time-last>>16)&times < aMoment
}

// record views what belongs to a session slot.
func (b Bells) record(slot uint32) Region {
	return b.r.Sub(protocol.BellRecords+uint64(slot)*protocol.BellRecordSize, protocol.BellRecordSize)
}

// Parking returns the waiting side of the session of a slot.
func (b Bells) Parking(slot uint32) Parking { return Parking{b.record(slot)} }

// Bell returns the session of a slot as seen by a session that rings it.
func (b Bells) Bell(slot uint32) *Bell { return &Bell{r: b.record(slot)} }

// Wake makes the session of a slot look again, whatever its parked word says.
func (b Bells) Wake(slot uint32) { wake(b.record(slot)) }

// Parking is the waiting side of one session: its parked word, which it alone
// writes, and its bell, which its counterparts write.
type Parking struct{ r Region }

// Begin announces that the session is going to sleep and returns the bell's
// value: after it the caller looks once more at everything it waits for, then
// calls Sleep or End. Begin and End are for one goroutine at a time.
//
// SYNC parked: the store, then a fence, then the second look; pairs with Ring,
// which publishes, fences, then looks at parked. One of the two sees the other.
func (p Parking) Begin() uint32 {
	e := p.Bell() // MODEL wake:read-bell waits:read-bell
	// Another odd number each time, also after a session that died in the slot.
	p.r.Store64(protocol.BellParked, (p.r.Load64(protocol.BellParked)+1)|1)
	crashpoint.At("park-begin")
	Fence() // MODEL wake:fence-waiter
	return e
}

// Bell returns the bell's value, which changes with each ring.
func (p Parking) Bell() uint32 { return p.r.Load32(protocol.BellWord) }

// Sleep waits until the bell differs from e, at most d and at most LookAgain.
func (p Parking) Sleep(e uint32, d time.Duration) { p.SleepFor(e, min(d, LookAgain)) }

// SleepFor is as Sleep, for a thread that need not look again so soon.
func (p Parking) SleepFor(e uint32, d time.Duration) {
	if d > 0 {
		sys.FutexWait(p.r.Word32(protocol.BellWord), e, d)
	}
}

// End announces that the session is awake. The word grows by one each time, so
// that a ringer rings once for each sleep.
func (p Parking) End() {
	p.r.Store64(protocol.BellParked, (p.r.Load64(protocol.BellParked)|1)+1)
}

// Bell is a session as seen by a session that rings it.
type Bell struct {
	r    Region
	rung atomic.Uint64 // parked value last rung
}

// Ring wakes the session if it is parked and was not rung for this sleep. The
// caller has published and then called Fence. Any goroutine: two at once may ring twice
// for one sleep.
//
// SYNC parked: pairs with Begin.
func (b *Bell) Ring() {
	p := b.r.Load64(protocol.BellParked)
	if p&1 == 0 || p == b.rung.Load() {
		return
	}
	b.Wake() // MODEL wake:ring
	b.rung.Store(p)
}

// Wake makes the session look again whatever its parked word says.
func (b *Bell) Wake() { wake(b.r) }

// wake rings.
//
// SYNC bell: the increment makes a FutexWait with the former value return.
func wake(r Region) {
	r.Add32(protocol.BellWord, 1)
	crashpoint.At("bell-added")
	sys.FutexWake(r.Word32(protocol.BellWord))
}
