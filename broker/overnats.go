package broker

import (
	"context"

	"github.com/baton-ipc/baton/broker/topics"
)

// OverNATS lists the functions whose providers say that they may be called over NATS.
func (b *Broker) OverNATS() []topics.OverNATS {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.topics.OverNATS()
}

// AwaitOverNATS returns when OverNATS may list other functions than it did at the last return, false when ctx ends.
// One goroutine at a time waits.
func (b *Broker) AwaitOverNATS(ctx context.Context) bool {
	select {
	case <-b.provided:
		return true
	case <-ctx.Done():
		return false
	}
}
