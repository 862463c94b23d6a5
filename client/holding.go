package client

import (
	"sync/atomic"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/shm"
)

// holding is a set of storages that this process holds together: those of an
// allocation, or of a message. The row counts each once; users of the holding
// are counted here.
type holding struct {
	c        *Client
	others   atomic.Int32 // users beside the first
	storages []storage
	one      [1]storage                // room for the common case
	done     func()                    // acknowledges a queue item; may be nil
	device   atomic.Pointer[deviceUse] // nil: no stream of a GPU has to do with it
}

func newHolding(c *Client) *holding {
	h := &holding{c: c}
	h.storages = h.one[:0]
	return h
}

func (h *holding) retain() { h.others.Add(1) }

// release ends one use, and with the last one counts every storage down, where
// streams use them when those have passed.
func (h *holding) release() {
	n := h.others.Add(-1)
	if n >= 0 {
		return
	}
	if n < -1 {
		panic("baton: released once too often")
	}
	if u := h.device.Load(); u != nil {
		h.c.devices.retire(h, u)
		return
	}
	h.letGo()
}

// letGo counts every storage down and acknowledges.
func (h *holding) letGo() {
	if u := h.device.Load(); u != nil {
		u.closeBorrowed()
	}
	crashpoint.At("drop-before")
	for i := range h.storages {
		h.c.drop(h.storages[i].ref.Index)
		crashpoint.At("drop-between")
	}
	if h.done != nil {
		h.done()
	}
}

// region returns the bytes of storage i.
func (h *holding) region(i int, write bool) (shm.Region, error) {
	s := &h.storages[i]
	r, err := s.region(write)
	if err != nil {
		return shm.Region{}, err
	}
	return r.Sub(s.offset, (s.bytes+7)&^7), nil
}

// place finds the bytes of a tensor's storage: on its device, or in this process.
func (h *holding) place(t *Tensor, write bool) (err error) {
	if t.device = h.storages[t.storage].at.segment.device; t.device != nil {
		return nil // mapped when its pointer is asked for
	}
	t.region, err = h.region(t.storage, write)
	return err
}
