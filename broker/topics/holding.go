package topics

import (
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// holder finds the item that keeps the sender of a lane from sending the next one, though fewer of its items wait than the
// topic's depth; 0: none does. A slot is used anew only when its item is done with, so one item holds up the places of all
// that are done with behind it: a taker has it, or it was given back and no taker has taken it again. A sender whose items
// all wait has no room because its queue is full, which is not this; nor is a caller whose calls run.
func (l *Lane) holder() uint64 {
	depth, next := uint64(l.Topic.depth), l.nextNumber()
	if !l.Topic.lossless || l.Topic.function != nil || l.state != protocol.LaneLive || next <= depth || !l.File.There() {
		return 0
	}
	i := next - depth
	if _, done := l.openOrDone(i); done || !l.View.Has(i) {
		return 0
	}
	for k := i; k < next; k++ {
		if open, _ := l.openOrDone(k); !open {
			return i
		}
	}
	return 0
}

// noteHolding notes which item keeps the sender of a lane from sending the next one, 0: none does. It tells for how long
// it has been the same one.
func (l *Lane) noteHolding(i uint64) time.Duration {
	if l.holding != i {
		l.holding, l.holdingSince = i, time.Now()
	}
	return time.Since(l.holdingSince)
}
