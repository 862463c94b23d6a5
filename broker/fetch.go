package broker

import (
	"os"

	"github.com/baton-ipc/baton/broker/pages"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// needed lists the files, beside the broker file, without which nothing can be taken over:
// the bells, and the broker's own row.
func (b *Broker) needed() []pages.Key {
	return []pages.Key{{Role: protocol.RestoreBell},
		{Role: protocol.RestoreSession, Serial: b.store.Record.Session(protocol.BrokerSlot).Serial()}}
}

// fetch takes the files without which all sessions are lost from
// the processes of the former broker's clients, where no client has handed them over: one
// that stands still hands over nothing, and all may do so. The kernel lets a process of the
// same user open what another one has open. A file is known by its inode and its head, so it
// does not matter should a process have ended meanwhile, and another one have its number.
// What else is missing is handed over later.
func (b *Broker) fetch(t *gathering) {
	if t.state.PIDNS != sys.PIDNamespace(os.Getpid()) {
		return
	}
	if !b.store.Record.Valid() {
		b.fetchOne(t, pages.Key{Role: protocol.RestoreBroker}, sys.FileID{Dev: t.state.Device, Ino: t.state.BrokerInode})
	}
	if b.taking != t || !b.store.Record.Valid() {
		return
	}
	for _, k := range b.needed() {
		if b.taking == t && t.files[k] == nil {
			b.fetchOne(t, k, sys.FileID{Dev: b.inodes, Ino: b.store.Missing[k]})
		}
	}
}

func (b *Broker) fetchOne(t *gathering, k pages.Key, id sys.FileID) {
	for _, s := range t.state.Survivors() {
		fd, err := sys.OpenFileOf(s.PID, id)
		if fd != nil {
			err = b.offer(k, fd)
		}
		if err == nil && fd != nil {
			b.log.Info("a file of the former broker comes from a process that stands still", "role", k.Role, "pid", s.PID)
			return
		}
		if sys.IsNoDescriptors(err) {
			// This broker's lack, not theirs: all stays for the next one, or for a next try.
			t.err = protocol.Errorf(protocol.CodeTooMany, "raise this broker's limit of open files (ulimit -n, LimitNOFILE= of a unit), or keep programs from connecting while it begins",
				"too many files are open to take the former broker's from process %d; what it left is as it was: %w", s.PID, err)
			b.endTakeover(t)
			return
		}
		b.log.Info("a process that stands still gives no file", "role", k.Role, "pid", s.PID, "error", err)
	}
}
