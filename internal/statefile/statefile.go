// Package statefile is the file in a broker's runtime directory that outlives it:
// which instance it was, which processes have its memory, and whether a client may
// start the next broker. Brokers write it, the next broker and clients that find none read it.
//
// The file is a line of JSON, with a line for each change after it. A
// last line without an end was being written when its broker died: nothing depends on
// it yet. It belongs to the broker's user and is read by no other.
package statefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/baton-ipc/baton/internal/sys"
)

// Name is the file's in the runtime directory.
const Name = "state.json"

// State is what the file says.
type State struct {
	Instance string `json:"instance"`
	BootID   string `json:"boot_id"`
	PID      int    `json:"pid"`
	Version  string `json:"version,omitempty"`
	PIDNS    uint64 `json:"pid_namespace"`
	Socket   string `json:"socket"`
	// Supervised: an operator runs the broker, or a service manager, and will run the
	// next one.
	Supervised bool `json:"supervised"`
	// Settings are the flags of `baton serve` with which another broker is as this one.
	Settings []string `json:"settings"`
	// MemoryDir is where the shared files are; "": they are memfds.
	MemoryDir string `json:"memory_dir,omitempty"`
	// Device and BrokerInode tell the broker file from any other.
	Device      uint64 `json:"device"`
	BrokerInode uint64 `json:"broker_inode"`
	// Files bounds how many shared files the next broker has to open.
	Files    int       `json:"files"`
	Sessions []Session `json:"sessions"`
}

// Session is a session and its process.
type Session struct {
	Slot      uint32 `json:"slot"`
	Serial    uint64 `json:"serial"`
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"`
	Version   string `json:"version,omitempty"` // its client's
}

// Change is a line after the first: a session that came, one that went, or more files.
type Change struct {
	Opened *Session `json:"opened,omitempty"`
	Ended  uint64   `json:"ended,omitempty"` // serial
	Files  int      `json:"files,omitempty"`
}

// Read reads the file of a runtime directory. Without one the error is of the kind
// fs.ErrNotExist.
func Read(dir string) (*State, error) {
	data, err := sys.ReadFile(filepath.Join(dir, Name))
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// Parse reads what the file holds.
func Parse(data []byte) (*State, error) {
	first, changes, _ := bytes.Cut(data, []byte("\n"))
	var st State
	if err := json.Unmarshal(first, &st); err != nil {
		return nil, fmt.Errorf("its first line: %w", err)
	}
	for line := range bytes.Lines(changes) {
		if line[len(line)-1] != '\n' {
			break
		}
		var c Change
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("a change of its sessions: %w", err)
		}
		is := func(serial uint64) func(Session) bool { return func(s Session) bool { return s.Serial == serial } }
		switch {
		case c.Opened != nil: // perhaps once more, with what is known of its process now
			st.Sessions = append(slices.DeleteFunc(st.Sessions, is(c.Opened.Serial)), *c.Opened)
		case c.Files != 0:
			st.Files = c.Files
		default:
			st.Sessions = slices.DeleteFunc(st.Sessions, is(c.Ended))
		}
	}
	return &st, nil
}

// Forget removes the settings from the file of a runtime directory, and leaves the next broker to
// programs. Its sessions stay. The caller has the lock of the directory.
func Forget(dir string) error {
	path := filepath.Join(dir, Name)
	data, err := sys.ReadFile(path)
	if err != nil {
		return err
	}
	first, changes, _ := bytes.Cut(data, []byte("\n"))
	fields := map[string]json.RawMessage{} // a version that knows more keeps it
	if err := json.Unmarshal(first, &fields); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	fields["settings"], fields["supervised"] = json.RawMessage("null"), json.RawMessage("false")
	if first, err = json.Marshal(fields); err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	f, err := Replace(dir, append(append(first, '\n'), changes...))
	if err != nil {
		return err
	}
	return f.Close()
}

// Replace writes the file of a runtime directory whole: a reader sees the old one or the new. The new one is
// returned, open to be appended to. The caller has the lock of the directory.
func Replace(dir string, data []byte) (*os.File, error) {
	path := filepath.Join(dir, Name)
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return nil, &os.PathError{Op: "replace", Path: path, Err: sys.ErrInTheWay}
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(data)
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Awaits tells whether a client must leave the next broker to the operator: the last
// one was the operator's, and sessions of it may live.
func (st *State) Awaits() bool {
	return st.Supervised && st.BootID == sys.BootID() && len(st.Survivors()) > 0
}

// Survivors are the sessions whose processes have not ended for certain, as long as the
// machine runs.
func (st *State) Survivors() []Session { return st.Living(st.Sessions) }

// Living is Survivors for some of them. It costs several system calls for each.
func (st *State) Living(some []Session) (alive []Session) {
	sameView := st.PIDNS == sys.PIDNamespace(os.Getpid())
	for _, s := range some {
		if !sameView || s.StartTime == 0 || !sys.HasEnded(s.PID, s.StartTime) {
			alive = append(alive, s)
		}
	}
	return alive
}
