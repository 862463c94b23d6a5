package broker

import (
	"iter"
	"maps"
	"os"
	"slices"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// needed lists the files, beside the broker file, without which nothing can be taken over:
// the bells, and the broker's own refcounts.
func (b *Broker) needed() []sessionfiles.Key {
	return []sessionfiles.Key{{Role: protocol.RestoreBell},
		{Role: protocol.RestoreSession, Serial: b.store.Record.Session(protocol.BrokerSlot).Serial()}}
}

// fetch opens files of the previous broker in the processes of its clients, where no client has
// handed them over: a suspended process hands over nothing, and all may be suspended. The kernel
// lets a process of the same user open what another process has open. A file is recognized by
// its inode and its head, so it does no harm if a process has ended meanwhile and another one
// has its number.
//
// From processes that are not back it takes all that they have: they may end before they go on,
// and nothing waits for files that they do not have. The same is so for a process that has an
// evicted session, for which no client comes back. From processes that are back it takes only
// files that they did not list and without which all sessions are lost.
func (b *Broker) fetch(t *gathering) {
	if t.state.PIDNS != sys.PIDNamespace(os.Getpid()) {
		return
	}
	var done map[int]bool // processes that were looked at, each time
	each := func(all []stateSession, lacking func() map[sys.FileID]sessionfiles.Key) {
		for _, s := range all {
			if wanted := lacking(); !done[s.PID] && len(wanted) > 0 && b.taking == t {
				done[s.PID] = b.fetchFrom(t, s.PID, wanted)
			}
		}
	}
	done = map[int]bool{}
	each(t.state.Survivors(), func() map[sys.FileID]sessionfiles.Key {
		if b.store.Record.Valid() {
			return nil
		}
		return t.brokerFile()
	})
	if b.taking != t || !b.store.Record.Valid() {
		return
	}
	done = t.read
	each(slices.Concat(t.awaited, b.returnless(t)), func() map[sys.FileID]sessionfiles.Key { return b.lacking(t, maps.Keys(b.store.Missing)) })
	done = map[int]bool{}
	each(t.state.Survivors(), func() map[sys.FileID]sessionfiles.Key { return b.lacking(t, slices.Values(b.needed())) })
}

// brokerFile is the previous broker's own file, which may be in a client's hands.
func (t *gathering) brokerFile() map[sys.FileID]sessionfiles.Key {
	return map[sys.FileID]sessionfiles.Key{{Dev: t.state.Device, Ino: t.state.BrokerInode}: {Role: protocol.RestoreBroker}}
}

// returnless are the evicted sessions whose own files were not handed over. (What else their
// processes have may be handed over by sessions that were given it.)
func (b *Broker) returnless(t *gathering) (list []stateSession) {
	for _, s := range t.state.Sessions {
		if b.isReturnless(s) && t.files[sessionfiles.Key{Role: protocol.RestoreSession, Serial: s.Serial}] == nil {
			list = append(list, s)
		}
	}
	return t.state.Living(list)
}

// lacking are those of some files that were not handed over. Memory in huge pages lies in a file
// system of its own, whose number is not known.
func (b *Broker) lacking(t *gathering, of iter.Seq[sessionfiles.Key]) map[sys.FileID]sessionfiles.Key {
	lack := map[sys.FileID]sessionfiles.Key{}
	for k := range of {
		inode := b.store.Missing[k]
		if inode == 0 || t.files[k] != nil {
			continue
		}
		lack[sys.FileID{Dev: b.inodes, Ino: inode}] = k
		if k.Role == protocol.RestoreSegment {
			lack[sys.FileID{Ino: inode}] = k
		}
	}
	return lack
}

// fetchFrom takes those files that a process has open, and tells whether it has looked at all.
func (b *Broker) fetchFrom(t *gathering, pid int, wanted map[sys.FileID]sessionfiles.Key) bool {
	n := 0
	key := func(id sys.FileID) (sessionfiles.Key, bool) {
		k, is := wanted[id]
		if !is {
			k, is = wanted[sys.FileID{Ino: id.Ino}]
			is = is && memory.InHugePages(id)
		}
		return k, is && t.files[k] == nil
	}
	err := sys.OpenFilesOf(pid, func(id sys.FileID) bool { _, is := key(id); return is }, func(id sys.FileID, fd *sys.FD) error {
		k, _ := key(id)
		err := b.acceptRestored(k, fd) // which checks that it is the file
		if err == nil {
			n++
		}
		if sys.IsNoDescriptors(err) || b.taking != t {
			return err
		}
		return nil // of another kind: the next may be right
	})
	switch {
	case sys.IsNoDescriptors(err):
		// This broker lacks descriptors or memory: all stays for the next broker, or a next try.
		t.err = protocol.Errorf(protocol.CodeTooMany, "raise this broker's limit of open files (ulimit -n, LimitNOFILE= of a unit), or keep programs from connecting while it begins",
			"too many files are open to take the previous broker's from process %d; what it left is as it was: %w", pid, err)
		b.endTakeover(t)
	case err != nil:
		b.log.Info("a process gives no files", events.Of(events.Takeover), "pid", pid, "error", err)
	}
	if n > 0 {
		b.log.Info("files of the previous broker were taken from a process that did not hand them over", events.Of(events.Takeover), "pid", pid, "files", n)
	}
	return err == nil
}
