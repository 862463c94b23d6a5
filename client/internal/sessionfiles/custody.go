package sessionfiles

import (
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// A file of another session is closed once it is mapped, unless the broker gives this
// session custody of it: then its descriptor stays open, to be handed to the next broker.
// The broker sees to it that of each file enough processes have one.

// SessionFile names the file of a session, as restore does.
func SessionFile(serial uint64) protocol.RestoreItem {
	return protocol.RestoreItem{Role: protocol.RestoreSession, Serial: serial}
}

// SegmentFile names the file of a segment.
func SegmentFile(serial uint64) protocol.RestoreItem {
	return protocol.RestoreItem{Role: protocol.RestoreSegment, Serial: serial}
}

// Kept is a descriptor that is in the custody of this session, for reading.
type Kept struct {
	FD    *sys.FD
	moved bool // from a client that was closed: no broker knows of it, and it goes with its use
}

// Keep takes custody of a descriptor, and owns it.
func (p *Files) Keep(k protocol.RestoreItem, fd *sys.FD, moved bool) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	if had := p.kept[k]; p.over || had.FD != nil {
		fd.Close()
		if had.FD != nil && !moved {
			p.kept[k] = Kept{had.FD, false} // the broker counts on it from now on
		}
		return
	}
	p.kept[k] = Kept{fd, moved}
}

// KeepMoved is keep for what another client had; nil: nothing.
func (p *Files) KeepMoved(k protocol.RestoreItem, fd *sys.FD) {
	if fd != nil {
		p.Keep(k, fd, true)
	}
}

// needed is how many descriptors a process has that custody leaves alone; of the others it takes half.
const needed = 48

// HasNoRoom tells whether this process keeps so many files already that those which it needs might find no descriptor.
func (p *Files) HasNoRoom(k protocol.RestoreItem) bool {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	return p.kept[k].FD == nil && uint64(2*len(p.kept)) >= max(sys.MostOpenFiles(), needed)-needed
}

// LetGo ends the custody of a file.
func (p *Files) LetGo(k protocol.RestoreItem) {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	p.kept[k].FD.Close()
	delete(p.kept, k)
}

// Hand gives the custody of a file away; nil where this session has none.
func (p *Files) Hand(k protocol.RestoreItem) *sys.FD {
	p.peerMu.Lock()
	defer p.peerMu.Unlock()
	fd := p.kept[k].FD
	delete(p.kept, k)
	return fd
}
