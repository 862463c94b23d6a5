package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Where a program was replaced by exec while no broker had its memory file
// (program.go), its process lives and no client comes back. The sign is that the process has
// its session's file neither mapped nor open for writing. A client that has said something
// has the one or the other for as long as it counts anything: descriptors may be closed under
// it, and the mapping goes last. A process that has the file for reading only, as all other
// sessions may, those of the same process too, is no sign. A client that has said nothing yet
// may have its files in a socket, where no look finds them, as long as it has any. Where a
// look does not succeed, as at a process of another user, nothing is known and the session
// stays.

// goneAgain is how long after a look at the programs of absent sessions another one is
// due, goneSoon while a takeover waits for them.
const (
	goneAgain = 5 * time.Second
	goneSoon  = 250 * time.Millisecond
)

// program is where to look for an absent session's program.
type program struct {
	serial uint64
	pid    int
	start  uint64
	file   sys.FileID
	heard  bool
}

// lookForGone looks for programs of absent sessions, in a goroutine: the kernel may make it
// wait, for example for a process that is stuck in a page fault.
func (b *Broker) lookForGone() {
	absent := b.absentPrograms()
	if b.looking || len(absent) == 0 {
		return
	}
	b.looking = true
	own := sys.FileID{Dev: b.store.Broker.Device, Ino: b.store.Broker.Inode}
	go func() {
		var gone []program
		// If the kernel names files otherwise than Stat does, no mapping is found.
		if mapped, err := sys.MapsForWriting(processID, own); err == nil && mapped {
			for _, p := range absent {
				if p.isGone() {
					gone = append(gone, p)
				}
			}
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.looking = false
		if b.closing {
			return
		}
		b.endGone(gone)
		wait := goneAgain
		if b.taking != nil {
			wait = goneSoon
		}
		b.look.Cancel()
		b.look = b.clock.After(wait, b.lookForGone)
	}()
}

// isGone reports whether the process lives and has nothing of the session.
func (p program) isGone() bool {
	if !p.heard {
		if it, err := sys.HasSocket(p.pid); err != nil || it {
			return false
		}
	}
	// The order matters: a file that is open may be mapped and closed meanwhile, not the other
	// way round.
	for _, has := range []func(int, sys.FileID) (bool, error){sys.WritesFile, sys.MapsForWriting} {
		if it, err := has(p.pid, p.file); err != nil || it {
			return false
		}
	}
	start, err := sys.StartTime(p.pid) // /proc may be that of another pid namespace
	return err == nil && start == p.start
}

// absentPrograms lists the programs that may be gone.
func (b *Broker) absentPrograms() (list []program) {
	if !b.store.Record.Valid() || b.foreign || b.store.Record.PIDNamespace() != sys.PIDNamespace(processID) {
		return nil
	}
	for slot := uint32(1); slot < b.store.Record.UsedSessions(); slot++ {
		v := b.store.Record.Session(slot)
		serial := v.Serial()
		if serial == 0 || v.State() == protocol.SessionDead || !b.isAwaited(slot, serial) {
			continue
		}
		if r := v.Load(); r.StartTime != 0 && r.File != 0 {
			list = append(list, program{serial, int(r.PID), r.StartTime, sys.FileID{Dev: b.store.Broker.Device, Ino: r.File}, r.Heard})
		}
	}
	return list
}

// isAwaited tells whether a session of a previous broker's is not back yet.
func (b *Broker) isAwaited(slot uint32, serial uint64) bool {
	if t := b.taking; t != nil {
		return !t.back[serial] && !t.gone[serial]
	}
	s := b.slots[slot]
	return s != nil && s.Serial == serial && s.absent && !s.ended
}

// endGone ends sessions whose programs are gone, unless they came back meanwhile. A
// takeover under way goes on without them.
func (b *Broker) endGone(gone []program) {
	if t := b.taking; t != nil {
		for _, p := range gone {
			if !t.back[p.serial] {
				t.gone[p.serial] = true
			}
		}
		b.tryComplete()
		return
	}
	for _, p := range gone {
		for _, s := range b.used() {
			if s != nil && s.Serial == p.serial && b.isAwaited(s.Slot, s.Serial) {
				b.log.Info("program ended, or was replaced by exec, while no broker ran", events.Of(events.Session), "slot", s.Slot, "serial", s.Serial, "name", s.Name, "pid", s.PID)
				b.processEnded(s)
			}
		}
	}
}
