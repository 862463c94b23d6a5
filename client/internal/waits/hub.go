package waits

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/life"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/shm"
)

// Hub is where goroutines of one session wait. A session has one bell, so one of
// them, the leader, sleeps in the futex itself (passing on by a channel would
// cost another wake) and looks for the others when it is woken.
type Hub struct {
	files *sessionfiles.Files
	life  *life.Life

	mu      sync.Mutex
	waiters map[*waiter]struct{}
	sets    map[shm.WaitSet]int // how many wait in each
	leading bool
	several Spinner      // of the waits for several objects
	crowded atomic.Bool  // the last wait was on one processor with another session
	shy     atomic.Int32 // waits that let no other run, since that took long
}

// waiter is one goroutine. look is cheap, makes no call and takes no lock that
// is held across one; it tells whether its goroutine should try again.
type waiter struct {
	look  func() bool
	ready chan struct{} // look said so, or leadership is free
}

// New makes the hub of a session.
func New(p *sessionfiles.Files, l *life.Life) *Hub {
	return &Hub{files: p, life: l, waiters: map[*waiter]struct{}{}, sets: map[shm.WaitSet]int{}}
}

// WakeAll makes all goroutines look again.
func (h *Hub) WakeAll() {
	h.files.Bells.Wake(h.files.Slot)
	runtime.KeepAlive(h)
}

// Wait returns when look says so or the client was closed, or with the context's
// error. It spins for at most spin, then sleeps; a sleeper looks again at least
// once a second. A wait for messages names the sets in which senders look for it.
func (h *Hub) Wait(ctx context.Context, spin time.Duration, look func() bool, in ...shm.WaitSet) error {
	return h.WaitBeside(ctx, spin, look, look, in...)
}

// WaitBeside is Wait with less to look at while it spins: what another processor is about to change
// is left alone there, and looked at before each sleep.
func (h *Hub) WaitBeside(ctx context.Context, spin time.Duration, soon, until func() bool, in ...shm.WaitSet) error {
	if h.spinUntil(spin, soon) {
		return nil
	}
	look := func() bool { return until() || h.life.IsOver() }
	if look() {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if ctx.Done() != nil {
		// A cancelled context must wake the futex.
		defer context.AfterFunc(ctx, h.WakeAll)()
	}
	w := &waiter{look: look, ready: make(chan struct{}, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.enter(in)
	defer h.leave(in)
	for {
		if !h.leading {
			h.leading = true
			delete(h.waiters, w)
			h.mu.Unlock()
			h.lead(ctx, w)
			h.mu.Lock()
			h.leading = false
			h.passOn()
			return ctx.Err()
		}
		h.waiters[w] = struct{}{}
		h.mu.Unlock()
		// The leader may have looked before this waiter was listed, and a sender before it
		// stood in its sets.
		shm.Fence()
		found := look()
		if !found && ctx.Err() == nil {
			select {
			case <-w.ready:
				found = look()
			case <-ctx.Done():
			}
		}
		h.mu.Lock()
		if found || ctx.Err() != nil {
			delete(h.waiters, w)
			h.passOn()
			if found {
				return nil
			}
			return ctx.Err()
		}
	}
}

// enter has senders find this session in the sets from here on: the caller fences and looks
// afterwards. The leader sees to it that they do until leave. Callers hold h.mu.
func (h *Hub) enter(in []shm.WaitSet) {
	for _, s := range in {
		h.sets[s]++
		s.Add(h.files.Slot)
	}
}

// leave undoes enter. Callers hold h.mu.
func (h *Hub) leave(in []shm.WaitSet) {
	for _, s := range in {
		if h.sets[s]--; h.sets[s] == 0 {
			delete(h.sets, s)
			s.Remove(h.files.Slot)
		}
	}
}

// passOn wakes one waiter to lead, if none does.
func (h *Hub) passOn() {
	if h.leading {
		return
	}
	for w := range h.waiters {
		select {
		case w.ready <- struct{}{}:
		default:
		}
		return
	}
}

// lead sleeps in the futex until its own look says so or ctx ends, and wakes the
// others whose look does. When its own comes true it leaves them to the next
// leader, which looks for all before it sleeps: what woke it is to be taken first.
func (h *Hub) lead(ctx context.Context, own *waiter) {
	for {
		e := h.files.Parking.Begin() // MODEL wake:park
		h.mu.Lock()
		for s := range h.sets { // a session that was rung was taken out
			s.Add(h.files.Slot)
		}
		// SYNC waiting: the sets, then this fence, then the looks.
		shm.Fence()
		found := own.look()
		for w := range h.waiters { // MODEL wake:second-look
			if w.look() {
				delete(h.waiters, w) // it lists itself again if it has to
				select {
				case w.ready <- struct{}{}:
				default:
				}
			}
		}
		h.mu.Unlock()
		if !found && ctx.Err() == nil {
			crashpoint.At("park-sleep")
			h.files.Parking.Sleep(e, remaining(ctx)) // MODEL wake:sleep
			crashpoint.At("park-woken")
			found = own.look()
		}
		h.files.Parking.End()
		if found || ctx.Err() != nil {
			return
		}
	}
}

func remaining(ctx context.Context) time.Duration {
	d := shm.LookAgain
	if until, ok := ctx.Deadline(); ok {
		d = min(d, max(time.Until(until), time.Microsecond))
	}
	return d
}

// shyWaits is how many waits let no other run after one for which that took long.
const shyWaits = 32

// spins: another process may run while this process looks.
var spins = sys.SeveralProcessors()

// spinUntil looks until it succeeds or the budget is spent. Where both processes of a pair run
// on one processor, a spin keeps the other one from what it is waited for: there it lets the
// other one run, and sleeps no more than that one, so that the kernel sees two that want to run
// and moves one of them to a processor that is idle.
func (h *Hub) spinUntil(budget time.Duration, look func() bool) bool {
	if look() || h.life.IsOver() {
		return true
	}
	if budget <= 0 || !spins {
		return false
	}
	crowded, known := h.crowded.Load(), false // from the last wait: a hint
	for until := sys.Monotonic() + uint64(budget); ; {
		looks := 16
		if crowded {
			looks = 1
		}
		for range looks {
			if look() || h.life.IsOver() {
				return true
			}
			shm.Pause()
		}
		now := sys.Monotonic()
		if now >= until {
			return false
		}
		if !known {
			known = true
			is := h.files.Bells.Crowds(max(0, sys.CPU()), h.files.Slot, now)
			if shy := h.shy.Load(); shy > 0 {
				h.shy.Store(shy - 1)
				is = false
			}
			if is != crowded {
				crowded = is
				h.crowded.Store(is)
			}
		}
		if !crowded {
			continue
		}
		sys.LetOthersRun()
		if sys.Monotonic()-now > uint64(maxSpin) { // to a thread that computes: a sleeper is let run sooner
			h.shy.Store(shyWaits)
			h.crowded.Store(false)
			return look() || h.life.IsOver()
		}
	}
}

// CountIn returns how many goroutines wait in a set.
func (h *Hub) CountIn(s shm.WaitSet) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sets[s]
}

// Budget is that of the waits for several objects, which have no Spinner of their own. begins: a
// wait that begins anew.
func (h *Hub) Budget(begins bool) time.Duration {
	if !begins {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.several.Budget()
}

// Happened notes when one of several objects was ready.
func (h *Hub) Happened(at uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.several.Happened(at)
}

// GaveUp notes that none of several objects was ready in time.
func (h *Hub) GaveUp() { h.Happened(^uint64(0)) }
