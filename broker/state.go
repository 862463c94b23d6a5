package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
)

// state is what a broker leaves in its runtime directory for a successor. The file
// is replaced whole when there are many more changes than sessions, so that a change
// costs the same however many there are.
type state struct{ statefile.State }

type (
	stateSession = statefile.Session
	stateChange  = statefile.Change
)

// lineOf is what the state file says of a session.
func (s *session) lineOf() stateSession {
	return stateSession{Slot: s.Slot, Serial: s.Serial, PID: s.PID, StartTime: s.start, Version: s.version}
}

// stateFile is the state file, open to be appended to.
type stateFile struct {
	file    *os.File // nil: write all of it
	changes int
	files   int // the bound that it says
}

// maxStateChanges is how many may follow the first line beyond twice the sessions.
const maxStateChanges = 64

func (b *Broker) statePath() string { return filepath.Join(b.cfg.Dir, statefile.Name) }

// noteState adds a change to the state file. One write puts a short line there
// whole: a broker that is killed leaves the file with it or without.
func (b *Broker) noteState(c stateChange) {
	b.noteStateTrouble(b.appendState(c))
	crashpoint.At("broker-state-noted")
}

func (b *Broker) noteStateTrouble(err error) {
	b.stateTrouble.Note(b.log, "cannot write the state file: a new broker will not find this one's clients", err)
}

func (b *Broker) appendState(c stateChange) error {
	f := &b.state
	if f.file == nil || f.changes >= maxStateChanges+2*b.slotTable.Taken() {
		if !b.hasDir() {
			return nil // keepPlace writes it, once the directory is this broker's again
		}
		return b.writeState()
	}
	data, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	f.changes++
	if _, err := f.file.Write(append(data, '\n')); err != nil {
		return b.writeState() // a part of the line may stand there: all is written
	}
	return nil
}

func (f *stateFile) close() {
	if f.file != nil {
		f.file.Close()
		f.file = nil
	}
}

// writeState replaces the state file whole.
func (b *Broker) writeState() error {
	st := statefile.State{Instance: b.id, BootID: sys.BootID(), PID: processID, Version: b.cfg.Version,
		PIDNS: sys.PIDNamespace(processID), Socket: b.cfg.Socket, MemoryDir: b.cfg.MemoryDir,
		Supervised: b.cfg.Supervised, Settings: append([]string{}, b.cfg.Settings...),
		Device: b.store.Broker.Device, BrokerInode: b.store.Broker.Inode, Files: boundOf(b.sharedFiles()), Sessions: []stateSession{}}
	for _, s := range b.used() {
		if s != nil {
			st.Sessions = append(st.Sessions, s.lineOf())
		}
	}
	data, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	b.state.close()
	f, err := statefile.Replace(b.cfg.Dir, append(data, '\n'))
	if err != nil {
		return b.fileError(fmt.Errorf("write state: %w", err))
	}
	b.state = stateFile{file: f, files: st.Files}
	return nil
}

// ownsState tells whether the state file in the runtime directory is this broker's, or that
// of the instance which it has taken over.
func (b *Broker) ownsState() bool {
	if b.state.file == nil {
		st, err := statefile.Read(b.cfg.Dir)
		return err == nil && st.Instance == b.id
	}
	own, err := b.state.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(b.statePath())
	return err == nil && os.SameFile(own, there)
}

func (b *Broker) removeState() {
	if b.ownsState() {
		os.Remove(b.statePath())
	}
	b.state.close()
}

// readState returns what the previous broker left; nil when there is nothing, or
// nothing that can be read.
func (b *Broker) readState() *state {
	st, err := statefile.Read(b.cfg.Dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			b.log.Warn("cannot read what the previous broker left", "error", err)
		}
		return nil
	}
	return &state{*st}
}
