package client

import (
	"github.com/baton-ipc/baton/internal/sys"
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
