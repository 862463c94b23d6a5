package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/baton-ipc/baton/internal/sys"
)

// state is what a broker leaves in its runtime directory for a successor: which
// instance it was, and which processes have its memory.
type state struct {
	Instance string `json:"instance"`
	BootID   string `json:"boot_id"`
	PID      int    `json:"pid"`
	Version  string `json:"version,omitempty"`
	PIDNS    uint64 `json:"pid_namespace"`
	Socket   string `json:"socket"`
	// MemoryDir is where the shared files are; "": they are memfds.
	MemoryDir string `json:"memory_dir,omitempty"`
	// Device and BrokerInode tell the broker file from any other.
	Device      uint64         `json:"device"`
	BrokerInode uint64         `json:"broker_inode"`
	Sessions    []stateSession `json:"sessions"`
}

type stateSession struct {
	Slot      uint32 `json:"slot"`
	Serial    uint64 `json:"serial"`
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"`
}

func (b *Broker) statePath() string { return filepath.Join(b.cfg.Dir, stateName) }

// writeState replaces the state file whole.
func (b *Broker) writeState() error {
	st := state{Instance: b.id, BootID: sys.BootID(), PID: processID, Version: b.cfg.Version,
		PIDNS: sys.PIDNamespace(processID), Socket: b.cfg.Socket, MemoryDir: b.cfg.MemoryDir,
		Device: b.broker.device, BrokerInode: b.broker.inode, Sessions: []stateSession{}}
	for _, s := range b.slots {
		if s != nil {
			st.Sessions = append(st.Sessions, stateSession{s.slot, s.serial, s.pid, s.start})
		}
	}
	data, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	temp := b.statePath() + ".new"
	if err := os.WriteFile(temp, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	if err := os.Rename(temp, b.statePath()); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

func (b *Broker) removeState() { os.Remove(b.statePath()) }

// readState returns what a predecessor left; nil when there is nothing, or
// nothing that can be read.
func (b *Broker) readState() *state {
	data, err := os.ReadFile(b.statePath())
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			b.log.Warn("cannot read what a former broker left", "error", err)
		}
		return nil
	}
	var st state
	if err := json.Unmarshal(data, &st); err != nil {
		b.log.Warn("the state file of a former broker is damaged", "error", err)
		return nil
	}
	return &st
}
