package memory

import (
	"context"
	"maps"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Files come with answers also while another broker takes the instance over: it asks for what
// this session has, and what is not mapped yet is in no list. It gets such a file after its list.

// Arriving is how many brokers had asked for this session's files before a request was made.
type Arriving uint64

// arriving is called before a request whose answer brings a file.
func (m *Memory) arriving() Arriving { return Arriving(m.restores.Load()) }

// Restoring is called before the files that are here are listed for another broker.
//
// SYNC restores: before anything is listed; pairs with arrived.
func (m *Memory) Restoring() { m.restores.Add(1) }

// arrived hands a file over, once it would be listed, to each broker that has asked since. It
// does so after the deadline of the request, which has been answered. A broker that refuses,
// since it has no descriptor free, say, is asked again by comparisons.
//
// SYNC restores: the file is listed first and the count read second; the list is made after
// the count. So the one or the other has it.
func (m *Memory) arrived(before Arriving, k protocol.RestoreItem, fd *sys.FD) {
	for now := m.arriving(); now != before; now = m.arriving() {
		before = now
		if m.handOver(k, fd) != nil {
			m.owe(k)
		}
	}
}

func (m *Memory) handOver(k protocol.RestoreItem, fd *sys.FD) error {
	items := []protocol.RestoreItem{k}
	_, err := m.broker.Call(context.Background(), protocol.OpRestore, protocol.Restore{Items: items}, nil, fd)
	return err
}

// owe notes a file that the broker may lack.
func (m *Memory) owe(k protocol.RestoreItem) {
	m.owedMu.Lock()
	defer m.owedMu.Unlock()
	if m.owed == nil {
		m.owed = map[protocol.RestoreItem]bool{}
	}
	m.owed[k] = true
}

// HandOverOwed hands over what the broker may lack, as far as it is still here.
func (m *Memory) HandOverOwed() {
	m.owedMu.Lock()
	owed := slices.Collect(maps.Keys(m.owed))
	m.owed = nil
	m.owedMu.Unlock()
	for _, k := range owed {
		fd := m.openFile(k)
		if fd == nil {
			continue
		}
		if m.handOver(k, fd) != nil {
			m.owe(k)
		}
		fd.Close()
	}
}

// openFile gives a descriptor of a file that a list would name, nil where there is none. The
// caller owns it.
func (m *Memory) openFile(k protocol.RestoreItem) *sys.FD {
	listed := m.files.CustodyOf(k)
	m.mu.Lock()
	if e := m.segments[k.Serial]; listed == nil && k.Role == protocol.RestoreSegment && e != nil {
		listed = e.FD()
	}
	m.mu.Unlock()
	if listed == nil {
		return nil
	}
	fd, err := listed.Dup() // of one that was closed meanwhile it fails
	if err != nil {
		return nil
	}
	return fd
}

// keepNew keeps a file that came with the answer to a request, or tells the broker that this process has no
// descriptor for it.
func (m *Memory) keepNew(before Arriving, k protocol.RestoreItem, fd *sys.FD) {
	if m.files.HasNoRoom(k) {
		fd.Close()
		m.declines(k)
		return
	}
	m.files.Keep(k, fd, false)
	if before == m.arriving() {
		return
	}
	if own := m.openFile(k); own != nil { // else it was given back already
		m.arrived(before, k, own)
		own.Close()
	}
}

// keepOrClose ends the use of a descriptor that came with the answer to a request.
func (m *Memory) keepOrClose(before Arriving, k protocol.RestoreItem, fd *sys.FD, custody bool) {
	if custody {
		m.keepNew(before, k, fd)
	} else {
		fd.Close()
	}
}
