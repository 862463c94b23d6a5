package broker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// DescriptorStore is a place outside of this process that keeps descriptors for the next
// broker, under names. One goroutine at a time calls it.
type DescriptorStore interface {
	// Keep takes a descriptor; an error says that it takes no more.
	Keep(name string, fd *sys.FD) error
	// Flush waits until all is kept.
	Flush() error
	// Forget drops what has a name.
	Forget(name string) error
}

// sharedFile is a file of the instance that this broker has open.
type sharedFile struct {
	key sessionfiles.Key
	fd  *sys.FD
	// alone are the bytes of a segment that only this broker holds and has.
	alone uint64
	// needed: no living process is known to have it.
	needed bool
}

// allFiles lists the files, the broker's first, then those that only it may have.
func (b *Broker) allFiles() (all []sharedFile) {
	add := func(k sessionfiles.Key, fd *sys.FD, needed bool) {
		all = append(all, sharedFile{key: k, fd: fd, needed: needed})
	}
	b.store.EachFile(add)
	b.memory.EachFile(func(k sessionfiles.Key, fd *sys.FD, alone uint64) {
		all = append(all, sharedFile{k, fd, alone, alone > 0})
	})
	b.topics.EachFile(func(k sessionfiles.Key, fd *sys.FD) { add(k, fd, false) })
	slices.SortStableFunc(all, func(x, y sharedFile) int {
		switch {
		case x.needed == y.needed:
			return 0
		case x.needed:
			return -1
		}
		return 1
	})
	return all
}

// leaveFiles gives the files that have no names to the descriptor store when the broker leaves, and
// counts what is lost. The mutex is held.
func (b *Broker) leaveFiles() {
	if b.store.Files == nil || b.store.Files.Kind() != protocol.KindMemfd || !b.store.Record.Valid() {
		return
	}
	var kept, segments, bytes uint64
	store, refused := b.cfg.Descriptors, error(nil)
	for _, f := range b.allFiles() {
		if store != nil && refused == nil {
			if refused = store.Keep(keptName(f.key), f.fd); refused == nil {
				kept++
				continue
			}
		}
		if f.alone > 0 {
			segments, bytes = segments+1, bytes+f.alone
		}
	}
	if store != nil {
		if err := store.Flush(); err != nil {
			b.log.Error("what was given to the descriptor store may be lost", events.Of(events.Memory), "error", err)
		}
		b.log.Info("memory was given to the descriptor store", events.Of(events.Memory), "files", kept, "refused", refused)
	}
	if segments > 0 {
		b.log.Warn("memory that only this broker had is lost: of names, messages and leases whose makers have ended; --memory-dir, or a descriptor store of the service manager, would keep it", events.Of(events.Memory),
			"segments", segments, "bytes", bytes)
	}
}

const keptPrefix = "baton-"

func keptName(k sessionfiles.Key) string { return fmt.Sprintf("%s%s-%d", keptPrefix, k.Role, k.Serial) }

// takeKept gives the files that a descriptor store passed on to the takeover that has begun. It
// takes ownership of them.
func (b *Broker) takeKept() {
	broker := sessionfiles.Key{Role: protocol.RestoreBroker}
	accept := func(name string, k sessionfiles.Key) {
		fd := b.cfg.Kept[name]
		delete(b.cfg.Kept, name)
		b.kept = append(b.kept, name)
		if err := b.acceptRestored(k, fd); err != nil {
			b.log.Warn("a file of the descriptor store cannot be used", "name", name, "error", err)
		}
	}
	if b.cfg.Kept[keptName(broker)] != nil {
		accept(keptName(broker), broker)
	}
	for name := range b.cfg.Kept {
		rest, ok := strings.CutPrefix(name, keptPrefix)
		role, number, _ := strings.Cut(rest, "-")
		serial, err := strconv.ParseUint(number, 10, 64)
		if ok && err == nil {
			accept(name, sessionfiles.Key{Role: role, Serial: serial})
		}
	}
}

// hasKept tells whether a descriptor store passed on the broker file of an instance.
func (b *Broker) hasKept(st *state) bool {
	fd := b.cfg.Kept[keptName(sessionfiles.Key{Role: protocol.RestoreBroker})]
	if fd == nil {
		return false
	}
	_, id, err := fd.Stat()
	return err == nil && id.Ino == st.BrokerInode && id.Dev == st.Device
}

// forgetKept makes the descriptor store drop what it passed on, once the broker serves.
func (b *Broker) forgetKept() {
	for name, fd := range b.cfg.Kept {
		fd.Close()
		if strings.HasPrefix(name, keptPrefix) {
			b.kept = append(b.kept, name)
		}
	}
	b.cfg.Kept = nil
	for _, name := range b.kept {
		if b.cfg.Descriptors == nil {
			break
		}
		if err := b.cfg.Descriptors.Forget(name); err != nil {
			b.log.Warn("cannot notify the descriptor store of those that are no longer needed", "error", err)
			break
		}
	}
	b.kept = nil
}
