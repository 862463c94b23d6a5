package leases

import (
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
)

// claimed are the last leases that were redeemed (lease.claim) and are not there: either over, or not made yet because
// the handle was faster than its maker's request. Numbers are random, so the two cannot be
// confused.
//
// A client does not repeat a claim that was answered. It does repeat a request for a lease that was
// not answered, also at the next broker. So the broker file has the claims, and a lease may be
// asked for any number of times.
type claimed struct {
	store *sessionfiles.Store
	known map[uint64]struct{}
	ring  []uint64 // in the order in which they came
	next  int
}

func newClaimed(store *sessionfiles.Store) claimed {
	return claimed{store: store, known: map[uint64]struct{}{}}
}

func (c *claimed) add(id uint64) {
	if !c.keep(id) {
		return
	}
	if c.store.Reserve(c.store.Record.ClaimPlace()) == nil {
		c.store.Record.AddClaim(id)
	}
}

// keep tells whether the claim is new.
func (c *claimed) keep(id uint64) bool {
	if id == 0 || c.has(id) {
		return false
	}
	if len(c.ring) < record.MaxClaims {
		c.ring = append(c.ring, id)
	} else {
		delete(c.known, c.ring[c.next])
		c.ring[c.next] = id
		c.next = (c.next + 1) % len(c.ring)
	}
	c.known[id] = struct{}{}
	return true
}

// has tells whether a lease was claimed.
func (c *claimed) has(id uint64) bool {
	_, has := c.known[id]
	return has
}

// restore reads the claims that previous brokers noted. After a restart of the machine no handle is
// on its way.
func (c *claimed) restore(sameBoot bool) {
	if !sameBoot {
		c.store.Record.ForgetClaims()
	}
	for _, id := range c.store.Record.Claims() {
		c.keep(id)
	}
}
