package session

import (
	"sync"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/protocol"
)

// claims are leases that were opened here, of which the broker is not told yet.
type claims struct {
	mu     sync.Mutex
	leases []uint64
}

// add notes a lease. No Open waits for the broker to know of it, and none is forgotten.
func (c *claims) add(lease uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leases = append(c.leases, lease)
}

// tell sends every lease that is waiting; ask makes a request.
func (c *claims) tell(ask func(op string, body any) error) {
	for {
		c.mu.Lock()
		if len(c.leases) == 0 {
			c.mu.Unlock()
			return
		}
		lease := c.leases[0]
		c.mu.Unlock()
		err := ask(protocol.OpLeaseClaim, protocol.LeaseRef{Lease: lease})
		if fault.Uncertain(err) || fault.Code(err) == protocol.CodeClosed {
			return
		}
		c.mu.Lock()
		if len(c.leases) > 0 && c.leases[0] == lease {
			c.leases = c.leases[1:]
		}
		c.mu.Unlock()
	}
}
