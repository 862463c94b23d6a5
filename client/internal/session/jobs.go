package session

import (
	"sync"

	"github.com/baton-ipc/baton/protocol"
)

// jobs is what a client has to do off the hot path: what is asked for twice is done once,
// and nothing is dropped.
type jobs struct {
	mu   sync.Mutex
	due  due
	wake chan struct{} // has a token while the goroutine may not have seen what is due
	stop chan struct{}
	once sync.Once
}

// due is what is to be done.
type due struct {
	reconcile, reclaim, forgetPeers bool
	custody                         bool
	giveBack                        bool                          // and the broker is told
	peers                           map[protocol.PeerSession]bool // sessions to be mapped
}

func newJobs() *jobs { return &jobs{wake: make(chan struct{}, 1), stop: make(chan struct{})} }

// end has nothing done any more.
func (b *jobs) end() { b.once.Do(func() { close(b.stop) }) }

// post adds to what is to be done; nil: the claims only.
func (b *jobs) post(more func(*due)) {
	if more != nil {
		b.mu.Lock()
		more(&b.due)
		b.mu.Unlock()
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns what is due, which the caller does.
func (b *jobs) take() due {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.due
	b.due = due{}
	return now
}

// MapPeer has a session's file mapped.
func (b *jobs) MapPeer(slot uint32, serial uint64) {
	b.post(func(d *due) {
		if d.peers == nil {
			d.peers = map[protocol.PeerSession]bool{}
		}
		d.peers[protocol.PeerSession{Slot: slot, Serial: serial}] = true
	})
}

// ForgetPeers has the files of sessions unmapped of which nothing is used here.
func (b *jobs) ForgetPeers() { b.post(func(d *due) { d.forgetPeers = true }) }
