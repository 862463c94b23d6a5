package client

import (
	"context"
	"maps"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Files come with answers also while another broker takes the instance over: it asks for what
// this session has, and what is not mapped yet is in no list. It gets such a file behind its list.

// arriving is how many brokers had asked for this session's files before a request was made.
type arriving uint64

// arriving is called before a request whose answer brings a file.
func (c *Client) arriving() arriving { return arriving(c.restores.Load()) }

// arrived hands a file over, once it would be listed, to each broker that has asked since. It
// does so behind the deadline of the request, which has been answered. A broker that refuses,
// since it has no descriptor free, say, is asked again by comparisons.
//
// SYNC restores: the file is listed first and the count read second; the list is made behind
// the count. So the one or the other has it.
func (c *Client) arrived(before arriving, k fileKey, fd *sys.FD) {
	for now := c.arriving(); now != before; now = c.arriving() {
		before = now
		if c.handOver(k, fd) != nil {
			c.owe(k)
		}
	}
}

func (c *Client) handOver(k fileKey, fd *sys.FD) error {
	items := []protocol.RestoreItem{{Role: k.role, Serial: k.serial}}
	_, err := c.link.call(context.Background(), protocol.OpRestore, protocol.Restore{Items: items}, nil, fd)
	return err
}

// owe notes a file that the broker may lack.
func (c *Client) owe(k fileKey) {
	c.pages.peerMu.Lock()
	defer c.pages.peerMu.Unlock()
	if c.owed == nil {
		c.owed = map[fileKey]bool{}
	}
	c.owed[k] = true
}

// handOverOwed hands over what the broker may lack, as far as it is still here.
func (c *Client) handOverOwed() {
	c.pages.peerMu.Lock()
	owed := slices.Collect(maps.Keys(c.owed))
	c.owed = nil
	c.pages.peerMu.Unlock()
	for _, k := range owed {
		fd := c.openFile(k)
		if fd == nil {
			continue
		}
		if c.handOver(k, fd) != nil {
			c.owe(k)
		}
		fd.Close()
	}
}

// openFile gives a descriptor of a file that a list would name, nil where there is none. The
// caller owns it.
func (c *Client) openFile(k fileKey) *sys.FD {
	listed := c.pages.custodyOf(k)
	c.mu.Lock()
	if e := c.segments[k.serial]; listed == nil && k.role == protocol.RestoreSegment && e != nil {
		listed = e.FD()
	}
	c.mu.Unlock()
	if listed == nil {
		return nil
	}
	fd, err := listed.Dup() // of one that was closed meanwhile it fails
	if err != nil {
		return nil
	}
	return fd
}

// keepNew keeps a file that came with the answer to a request.
func (c *Client) keepNew(before arriving, k fileKey, fd *sys.FD) {
	c.pages.keep(k, fd, false)
	if before == c.arriving() {
		return
	}
	if own := c.openFile(k); own != nil { // else it was given back already
		c.arrived(before, k, own)
		own.Close()
	}
}

// keepOrClose ends the use of a descriptor that came with the answer to a request.
func (c *Client) keepOrClose(before arriving, k fileKey, fd *sys.FD, custody bool) {
	if custody {
		c.keepNew(before, k, fd)
	} else {
		fd.Close()
	}
}
