package client

import (
	"context"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// A file of another session is closed once it is mapped, unless the broker gives this
// session custody of it: then its descriptor stays open, to be handed to the next broker.
// The broker sees to it that of each file enough processes have one.

// fileKey names a file as restore does.
type fileKey struct {
	role   string
	serial uint64
}

// kept is a descriptor that is in the custody of this session, for reading.
type kept struct {
	fd    *sys.FD
	moved bool // from a client that was closed: no broker knows of it, and it goes with its use
}

// keep takes custody of a descriptor, and owns it.
func (p *pages) keep(k fileKey, fd *sys.FD, moved bool) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	if had := p.kept[k]; p.over || had.fd != nil {
		fd.Close()
		if had.fd != nil && !moved {
			p.kept[k] = kept{had.fd, false} // the broker counts on it from now on
		}
		return
	}
	p.kept[k] = kept{fd, moved}
}

// keepMoved is keep for what another client had; nil: nothing.
func (p *pages) keepMoved(k fileKey, fd *sys.FD) {
	if fd != nil {
		p.keep(k, fd, true)
	}
}

// letGo ends the custody of a file.
func (p *pages) letGo(k fileKey) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	p.kept[k].fd.Close()
	delete(p.kept, k)
}

// hand gives the custody of a file away; nil where this session has none.
func (p *pages) hand(k fileKey) *sys.FD {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	fd := p.kept[k].fd
	delete(p.kept, k)
	return fd
}

// lacks tells the broker of a file that could not be had for want of descriptors: it counts on
// this session to keep it, perhaps.
func (c *Client) lacks(err error, k fileKey) {
	if protocolCode(err) != protocol.CodeTooMany || c.pages.custodyOf(k) != nil {
		return
	}
	go func() {
		asked := protocol.Custody{Closed: []protocol.RestoreItem{{Role: k.role, Serial: k.serial}}}
		fds, _ := c.link.callUntil(context.Background(), protocol.OpCustody, asked, nil)
		wire.CloseAll(fds) // what is offered with the answer is offered again
	}()
}

// takeCustody asks the broker what this session is to keep, and what not any more.
func (c *Client) takeCustody() {
	for ask := (protocol.Custody{}); ; {
		var ok protocol.CustodyReply
		before := c.arriving()
		fds, err := c.link.call(context.Background(), protocol.OpCustody, ask, &ok)
		if err != nil {
			return // what this session does not say that it keeps, others are asked to keep
		}
		if len(fds) != len(ok.Given) {
			wire.CloseAll(fds)
			return
		}
		for i, f := range ok.Given {
			c.keepNew(before, fileKey{f.Role, f.Serial}, fds[i])
		}
		for _, f := range ok.Ended {
			c.pages.letGo(fileKey{f.Role, f.Serial})
		}
		if len(ok.Given)+len(ok.Ended) == 0 {
			return
		}
		ask = protocol.Custody{Kept: ok.Given, Closed: ok.Ended}
	}
}
