package client

import (
	"sync/atomic"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// holding is a set of storages that this process holds together: those of an
// allocation, or of a message. The row counts each once; users of the holding
// are counted here.
type holding struct {
	c        *Client
	others   atomic.Int32 // users beside the first
	storages []storage
	one      [1]storage // room for the common case
	done     func()     // acknowledges a queue item; may be nil
}

func newHolding(c *Client) *holding {
	h := &holding{c: c}
	h.storages = h.one[:0]
	return h
}

func (h *holding) retain() { h.others.Add(1) }

// release ends one use, and with the last one counts every storage down.
func (h *holding) release() {
	n := h.others.Add(-1)
	if n >= 0 {
		return
	}
	if n < -1 {
		panic("baton: released once too often")
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

func errReleased(what string) error {
	return protocol.Errorf(protocol.CodeClosed, "Retain it for longer use", "%s was released", what)
}
