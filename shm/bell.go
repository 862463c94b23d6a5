package shm

import (
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// LookAgain is how long a parked session sleeps at most. A lie, or a ringer
// stopped between publishing and ringing, costs a delay and never a hang.
const LookAgain = time.Second

// Parking is the waiting side of one session: its parked word, which it alone
// writes, and its bell, which its counterparts write.
type Parking struct {
	session Region
	bell    Region
}

// NewParking views a session's own file and bell.
func NewParking(session, bell Region) Parking { return Parking{session, bell} }

// Begin announces that the session is going to sleep and returns the bell's
// value: after it the caller looks once more at everything it waits for, then
// calls Sleep or End. Begin and End are for one goroutine at a time.
//
// SYNC parked: the store, then a fence, then the second look; pairs with Ring,
// which publishes, fences, then looks at parked. One of the two sees the other.
func (p Parking) Begin() uint32 {
	e := p.bell.Load32(protocol.BellWord) // MODEL wake:read-bell
	p.session.Store64(protocol.SessionParked, p.session.Load64(protocol.SessionParked)|1)
	crashpoint.At("park-begin")
	Fence() // MODEL wake:fence-waiter
	return e
}

// Sleep waits until the bell differs from e, at most d and at most LookAgain.
func (p Parking) Sleep(e uint32, d time.Duration) {
	if d > LookAgain {
		d = LookAgain
	}
	if d > 0 {
		sys.FutexWait(p.bell.Word32(protocol.BellWord), e, d)
	}
}

// End announces that the session is awake. The word grows by one each time, so
// that a ringer rings once for each sleep.
func (p Parking) End() {
	p.session.Store64(protocol.SessionParked, (p.session.Load64(protocol.SessionParked)|1)+1)
}

// Bell is a session as seen by one who rings it.
type Bell struct {
	session Region // read only
	bell    Region
	rung    atomic.Uint64 // parked value last rung
}

// NewBell views another session's file and bell.
func NewBell(session, bell Region) *Bell { return &Bell{session: session, bell: bell} }

// Ring wakes the session if it is parked and was not rung for this sleep. The
// caller has published and then called Fence. Any goroutine: two at once may ring twice
// for one sleep.
//
// SYNC parked: pairs with Begin.
func (b *Bell) Ring() {
	p := b.session.Load64(protocol.SessionParked)
	if p&1 == 0 || p == b.rung.Load() {
		return
	}
	b.Wake() // MODEL wake:ring
	b.rung.Store(p)
}

// Wake makes the session look again whatever its parked word says.
//
// SYNC bell: the increment makes a FutexWait with the former value return.
func (b *Bell) Wake() { WakeBell(b.bell) }

// WakeBell rings a bell file unconditionally.
func WakeBell(bell Region) {
	bell.Add32(protocol.BellWord, 1)
	crashpoint.At("bell-added")
	sys.FutexWake(bell.Word32(protocol.BellWord))
}
