package client

import (
	"context"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Files come with answers also while another broker takes the instance over: it asks for what
// this session has, and what is not mapped yet is in no list. It gets such a file behind its list.

// arriving is how many brokers had asked for this session's files before a request was made.
type arriving uint64

// arriving is called before a request whose answer brings a file.
func (c *Client) arriving() arriving { return arriving(c.restores.Load()) }

// arrived hands a file over, once it would be listed, to each broker that has asked since. One
// that goes away before it has the file is followed by one that gets the list.
//
// SYNC restores: the file is listed first and the count read second; the list is made behind
// the count. So the one or the other has it.
func (c *Client) arrived(ctx context.Context, before arriving, k fileKey, fd *sys.FD) {
	for now := c.arriving(); now != before; now = c.arriving() {
		before = now
		item := protocol.RestoreItem{Role: k.role, Serial: k.serial}
		c.call(ctx, protocol.OpRestore, protocol.Restore{Items: []protocol.RestoreItem{item}}, nil, fd)
	}
}

// keepNew keeps a file that came with the answer to a request.
func (c *Client) keepNew(before arriving, k fileKey, fd *sys.FD) {
	c.pages.keep(k, fd, false)
	if before == c.arriving() {
		return
	}
	c.pages.peerMu.Lock()
	own, err := c.pages.kept[k].fd.Dup()
	c.pages.peerMu.Unlock()
	if err == nil { // else it was given back already
		c.arrived(context.Background(), before, k, own)
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
