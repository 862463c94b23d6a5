package broker

import (
	"time"

	"github.com/baton-ipc/baton/broker/leases"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/broker/topics"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Rows of the listings that the components make.
type (
	TopicRow     = topics.TopicRow
	NameRow      = topics.NameRow
	PlaceRow     = topics.PlaceRow
	PlaceMessage = topics.PlaceMessage
	FlowRow      = topics.FlowRow
	FlowEnd      = topics.FlowEnd
	LeaseRow     = leases.Row
	SegmentRow   = memory.SegmentRow
	StorageRow   = memory.StorageRow
	HolderRow    = memory.HolderRow
	HolderUse    = memory.HolderUse
	Traffic      = topics.Traffic
	Taker        = topics.Taker
	Lingering    = topics.Lingering
	FunctionRow  = topics.FunctionRow
	ProviderRow  = topics.ProviderRow
	CallTotals   = topics.CallTotals
	CallsRow     = topics.CallsRow
	CallRow      = topics.CallRow
	CallEnd      = topics.CallEnd
)

// SessionRow is a row of the listing `sessions`.
type SessionRow struct {
	Slot        uint32    `json:"slot"`
	Serial      uint64    `json:"serial"`
	Name        string    `json:"name"`
	PID         int       `json:"pid"`
	UID         uint32    `json:"uid"`
	Language    string    `json:"language"`
	Version     string    `json:"version,omitempty"`
	Namespace   string    `json:"namespace"`
	State       string    `json:"state"`                  // live, disconnected, closed, ended, unknown, evicted
	Stopped     bool      `json:"stopped,omitempty"`      // its process is suspended, by a signal or a debugger
	ForChildren bool      `json:"for_children,omitempty"` // its refcounts count for children made by fork
	ConnectedAt time.Time `json:"connected_at"`
	Held        uint64    `json:"held_bytes"`    // of storages that its refcounts count
	Granted     uint64    `json:"granted_bytes"` // of its segments
	Lanes       uint64    `json:"lane_bytes"`    // of its lanes: places for what it sends in topics, queues and functions
	// ProcessEnded: its process has ended, and only what children of that have mapped keeps it.
	ProcessEnded bool `json:"process_ended,omitempty"`
	// ProgramFile is there while its refcounts count for children made by fork, or may: they have it mapped for writing, as
	// its own process has.
	ProgramFile *ProgramFile `json:"program_file,omitempty"`
	topics.Traffic
	// Command and Container say how the process was started, and where, if that was asked for.
	Command   string `json:"command,omitempty"`
	Container string `json:"container,omitempty"`

	start uint64 // time of the process; 0: its number is of another pid namespace
}

// ProgramFile is a memory file, as /proc/PID/maps names it.
type ProgramFile struct {
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
}

// lookAtProcesses adds to rows which processes are suspended, and to sessions their programs. It asks the
// kernel about each, so the mutex is not held.
func lookAtProcesses(rows []any, programs bool) {
	for i, row := range rows {
		if f, is := row.(FunctionRow); is {
			for k := range f.Providers {
				p := &f.Providers[k]
				p.Stopped = p.Start != 0 && sys.Stopped(p.PID, p.Start)
			}
		}
		if r, is := row.(SessionRow); is && r.start != 0 {
			r.Stopped = sys.Stopped(r.PID, r.start)
			if programs {
				r.Command = sessionfiles.Printable(sys.CommandLine(r.PID), 512)
				r.Container = sys.Container(r.PID)
				if start, err := sys.StartTime(r.PID); err != nil || start != r.start {
					r.Command, r.Container = "", "" // the number is another process's by now
				}
			}
			rows[i] = r
		}
	}
}

// shownAs is the state of a session as listings, counts and metrics have it.
func (s *session) shownAs() string {
	switch {
	case s.unknown:
		return stateUnknown
	case s.evicted && !s.left:
		return stateEvicted
	case s.state == protocol.SessionDisconnected:
		return stateDisconnected
	case s.state == protocol.SessionClosed:
		return stateClosed
	case s.state == protocol.SessionDead:
		return stateEnded
	}
	return stateLive
}

const (
	stateLive         = "live"
	stateUnknown      = "unknown"
	stateEvicted      = "evicted"
	stateDisconnected = "disconnected"
	stateClosed       = "closed"
	stateEnded        = "ended"
)

func (b *Broker) sessionRow(_ string, i int, match func(string) bool) (any, int) {
	s := b.slots[i]
	if s == nil || !match(s.Name) {
		return nil, 0
	}
	return SessionRow{Slot: s.Slot, Serial: s.Serial, Name: s.Name, PID: s.PID, UID: s.uid,
		Language: languageName(s.language), Version: s.version, Namespace: s.namespace, State: s.shownAs(), ForChildren: b.keepsForChildren(s), ProcessEnded: b.isForked(s), ProgramFile: b.programFile(s),
		ConnectedAt: s.connectedAt, Held: b.memory.Held(s.memory), Granted: s.memory.Granted(), Lanes: s.memory.Lanes(), Traffic: b.topics.TrafficOf(s.party), start: s.start}, 64
}
