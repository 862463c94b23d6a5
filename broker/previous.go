package broker

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// findPrevious looks for an instance to take over; nil when there is none.
func (b *Broker) findPrevious() (*previous, error) {
	st := b.readState()
	if b.cfg.MemoryDir != "" && !b.lostFile(st) {
		return b.findInstance(st)
	}
	if st == nil {
		return nil, nil
	}
	if st.BootID == sys.BootID() && st.PIDNS == sys.PIDNamespace(processID) && st.PID != processID {
		file := sys.FileID{Dev: st.Device, Ino: st.BrokerInode}
		err := b.awaitEnd(st, func() bool {
			writes, err := sys.WritesFile(st.PID, file) // clients have it for reading
			return err == nil && writes
		})
		if err != nil {
			return nil, err
		}
		// It may have opened sessions until it ended.
		if st = b.readState(); st == nil {
			return nil, nil
		}
	}
	if st.BootID != sys.BootID() || st.MemoryDir != b.cfg.MemoryDir || st.BrokerInode == 0 || len(st.Survivors()) == 0 && !b.hasKept(st) {
		if st.MemoryDir != "" && st.MemoryDir != b.cfg.MemoryDir {
			b.log.Warn("a previous broker had its memory in a directory that this one does not use: its names and what waits in its queues are there for a broker with that --memory-dir, and its sessions are lost here",
				events.Of(events.Takeover), "instance", st.Instance, "memory_dir", st.MemoryDir)
			return nil, nil
		}
		b.log.Info("a previous broker has ended and nothing of it is left", events.Of(events.Takeover), "instance", st.Instance)
		return nil, nil
	}
	return &previous{instance: st.Instance, state: st}, nil
}

// lostFile tells whether the file of a previous broker of this memory directory was removed while
// clients of it live: the clients still have it.
func (b *Broker) lostFile(st *state) bool {
	return st != nil && st.BootID == sys.BootID() && st.MemoryDir == b.cfg.MemoryDir && st.BrokerInode != 0 &&
		!b.folderOf(st.Instance).Has(protocol.RestoreBroker, 0, sys.FileID{Dev: st.Device, Ino: st.BrokerInode}) &&
		len(st.Survivors()) > 0
}

// endTime is how long the kernel may take to close all files of a broker that was killed.
const endTime = 5 * time.Second

// awaitEnd waits for a previous broker that has lost the lock of the runtime directory and still
// has its memory. If it keeps the memory it lives: its lock was removed, and it will make that
// again.
func (b *Broker) awaitEnd(st *state, has func() bool) error {
	for began := time.Now(); has(); time.Sleep(takeoverTick) {
		if time.Since(began) < endTime {
			continue
		}
		return protocol.Errorf(protocol.CodeConflict,
			fmt.Sprintf("use that broker: it makes its lock and its socket again within seconds, or when it goes on (kill -CONT %d); or end it (kill -TERM %d)", st.PID, st.PID),
			"the broker of %s lives (pid %d), though its lock was removed", b.cfg.Dir, st.PID).With("pid", st.PID)
	}
	return nil
}

// findInstance looks in the memory directory for an instance that belonged to
// this runtime directory and that no broker has: the one that the state file names, else
// the one that was used last.
func (b *Broker) findInstance(st *state) (*previous, error) {
	folders, err := os.ReadDir(b.cfg.MemoryDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "name a --memory-dir that this user can make and write to",
			"cannot look for previous brokers' memory: %w", err)
	}
	named := ""
	if st != nil {
		named = st.Instance
	}
	used := map[string]time.Time{} // by instance: when files last came and went
	for _, e := range folders {
		instance, ok := strings.CutPrefix(e.Name(), sessionfiles.InstancePrefix)
		info, err := e.Info()
		if ok && len(instance) == 32 && err == nil {
			used[instance] = info.ModTime()
		}
	}
	instances := slices.SortedFunc(maps.Keys(used), func(x, y string) int {
		if x == named || y != named && used[x].After(used[y]) {
			return -1
		}
		return 1
	})
	for _, instance := range instances {
		p, err := b.openInstance(instance)
		if sys.IsLocked(err) && instance == named {
			err = b.awaitEnd(st, func() bool {
				p, err = b.openInstance(instance)
				return sys.IsLocked(err)
			})
			if err != nil {
				return nil, err
			}
		}
		if p != nil {
			if instance == named {
				p.state = st
			}
			return p, nil
		}
	}
	return nil, nil
}

// openInstance opens and locks an instance of the memory directory; nil where it belongs to
// another runtime directory, with an error that IsLocked tells where a broker has it.
func (b *Broker) openInstance(instance string) (*previous, error) {
	dir := b.folderOf(instance)
	fd, err := dir.Open(protocol.RestoreBroker, 0)
	if err != nil {
		return nil, err
	}
	owner, err := readOwner(fd)
	if err == nil && owner == b.cfg.Dir {
		if err = fd.Lock(false); err == nil {
			return &previous{instance: instance, dir: &dir, file: fd}, nil
		}
	}
	fd.Close()
	return nil, err
}

// readOwner reads which runtime directory a broker file belongs to.
func readOwner(fd *sys.FD) (string, error) {
	if size, _, err := fd.Stat(); err != nil || size < protocol.PageBytes {
		return "", fmt.Errorf("not a broker file: %w", err)
	}
	m, err := sys.Map(fd, protocol.PageBytes, false)
	if err != nil {
		return "", err
	}
	defer sys.Unmap(m)
	return record.Of(shm.NewRegion(m)).Dir(), nil
}
