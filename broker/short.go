package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/events"
)

// What programs have released stays with them, mapped and touched, and counts in their control
// group as memory that the kernel cannot drop. Where the broker's control group or the machine runs
// short, programs are asked to give back what they do not use, before another process's allocation
// has one of them killed. A program that works keeps the slab in which it allocates.

const (
	// lookAtMemory is how often the broker looks how much memory is left, as long as it has granted any.
	lookAtMemory = time.Second
	// collectAgain is how long after a request programs are asked again, while memory stays short.
	collectAgain = 30 * time.Second
)

// shortage is what the broker knows of the memory that is left.
type shortage struct {
	looking bool
	asked   time.Time // when programs were last asked; zero: memory is not short
}

// watchMemory looks how much memory is left, in a goroutine: the kernel may make it wait. The
// mutex is held.
func (b *Broker) watchMemory() {
	b.clock.After(lookAtMemory, b.watchMemory)
	if b.short.looking || b.memory.Segments() == 0 {
		return
	}
	b.short.looking = true
	go func() {
		left, err := b.cfg.ReadMemory()
		b.mu.Lock()
		defer b.mu.Unlock()
		b.short.looking = false
		switch {
		case b.closing || err != nil:
		case !left.Short():
			b.short.asked = time.Time{}
		case time.Since(b.short.asked) >= collectAgain:
			if b.short.asked.IsZero() { // once for each shortage
				b.log.Info("memory runs short: programs are asked to give back what they do not use", events.Of(events.Memory), "left", left.Free(), "of", left.Bound())
			}
			b.short.asked = time.Now()
			b.memory.AskToCollect()
		}
	}()
}
