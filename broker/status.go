package broker

import (
	"maps"
	"time"

	"github.com/baton-ipc/baton/broker/leases"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/internal/sys"
)

// Status is the reply of the op `status`.
type Status struct {
	Instance string         `json:"instance"`
	Version  string         `json:"version"`
	PID      int            `json:"pid"`
	Socket   string         `json:"socket"`
	Host     string         `json:"host,omitempty"`
	Uptime   float64        `json:"uptime_seconds"`
	Taking   bool           `json:"recovering,omitempty"` // waits for the previous broker's clients
	Ending   bool           `json:"ending,omitempty"`     // takes no requests any more
	Memory   MemoryStatus   `json:"memory"`
	Devices  []DeviceStatus `json:"devices,omitempty"` // that sessions have memory on, or had
	Counts   Counts         `json:"counts"`
	Files    FilesStatus    `json:"open_files"`
	// Deaths counts sessions whose processes ended without closing them, in this broker's life.
	Deaths uint64 `json:"deaths"`
	// Unread are the handles in pickles that were not read.
	Unread leases.Unread `json:"unread_pickles"`
	// Takeover tells how this broker took over from another one; nil: it did not.
	Takeover *TakeoverStatus `json:"takeover,omitempty"`
	// Extra are parts that others add, by name: "nats".
	Extra map[string]any `json:"extra,omitempty"`
}

// Serves tells whether the broker carries out requests. One that does not, yet or any more, counts nothing: what it has
// besides its limits and what is granted is not in its status.
func (st *Status) Serves() bool { return st.Instance != "" && !st.Taking && !st.Ending }

// MemoryStatus is in bytes.
type MemoryStatus struct {
	Limit        uint64 `json:"limit"`
	SessionLimit uint64 `json:"session_limit,omitempty"`
	Granted      uint64 `json:"granted"` // of all segments
	Orphans      uint64 `json:"orphans"` // of them, those whose owners have ended
	Lanes        uint64 `json:"lanes"`   // of all lanes, which the quotas count as well
	Held         uint64 `json:"held"`    // of storages that any holder counts, each once
	// ForChildren are bytes that sessions hold which keep memory for children made by fork: what these may read,
	// and what the parent has beside. It is in Held.
	ForChildren uint64 `json:"for_children"`
	Free        uint64 `json:"free"` // on the machine, or below the smallest limit
	Left        uint64 `json:"left"` // that could be granted now, within all limits but those of a session
	Dir         string `json:"dir,omitempty"`
	// Largest are those that have most of it, where there is no room.
	Largest []memory.HolderUse `json:"largest,omitempty"`
}

// leastToGrant is less than a program asks for at first.
const leastToGrant = 4 << 20

// Full tells whether there is no room for more: next to nothing is left within --memory, or of the machine.
func (m *MemoryStatus) Full() bool {
	return m.Limit > 0 && (m.Granted+m.Lanes > m.Limit/10*9 || m.Left < leastToGrant)
}

// FilesStatus is how many files the broker has open, of how many that it may; zeros where the system does not tell.
type FilesStatus struct {
	Open  uint64 `json:"open"`
	Limit uint64 `json:"limit"`
	// Short tells that something was refused, and that so few are left that a session may be refused now.
	Short bool `json:"short"`
}

// DeviceStatus is the use of one GPU, in bytes.
type DeviceStatus struct {
	ID      int32  `json:"id"`     // in handles and descriptions of tensors: cuda:ID
	Device  string `json:"device"` // cuda:GPU-…
	Limit   uint64 `json:"limit,omitempty"`
	Granted uint64 `json:"granted"`
	Orphans uint64 `json:"orphans"`
	Held    uint64 `json:"held"`
}

// TakeoverStatus is how a broker began.
type TakeoverStatus struct {
	From     string  `json:"from"` // a living broker, or one that had ended
	Seconds  float64 `json:"seconds"`
	Sessions int     `json:"sessions"`
	Missing  int     `json:"missing"` // of them, those that were not back when their time was over
}

// Counts says how full the tables are.
type Counts struct {
	Sessions     int `json:"sessions"`
	Disconnected int `json:"disconnected"`
	Unknown      int `json:"unknown"`      // of those: not known whether their processes live
	Closed       int `json:"closed"`       // each ends once its process holds nothing of it
	Evicted      int `json:"evicted"`      // so does each of these
	ForChildren  int `json:"for_children"` // and hold what children made by fork could not count
	Segments     int `json:"segments"`
	Chunks       int `json:"chunks"`
	Topics       int `json:"topics"`
	Queues       int `json:"queues"`
	Functions    int `json:"functions"`
	Names        int `json:"names"`
	Leases       int `json:"leases"`
	AdoptedLanes int `json:"adopted_lanes"`
	Storages     int `json:"storages"` // that any holder counts
}

func (b *Broker) opStatus(s *session, _ []byte) (any, []*sys.FD, error) {
	b.mu.Lock()
	err := b.running(s) // also while the broker waits for clients: the status says so
	if s != nil {
		err = b.usable(s)
	}
	b.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	st := b.fullStatus()
	if st.Serves() && st.Memory.Full() {
		b.whileServing(func() { st.Memory.Largest = b.memory.Largest() })
	}
	return st, nil, nil
}

// fullStatus is Status with the parts that others add.
func (b *Broker) fullStatus() Status {
	b.mu.Lock()
	parts := maps.Clone(b.extra)
	b.mu.Unlock()
	st := b.Status()
	for name, part := range parts {
		if st.Extra == nil {
			st.Extra = map[string]any{}
		}
		st.Extra[name] = part()
	}
	return st
}

// Status is the state of the broker. Any goroutine.
func (b *Broker) Status() Status {
	st, all := b.statusNow()
	var held memory.HeldUse
	for next, more := uint32(0), true; all && more; more = next != 0 {
		next, all = b.heldFrom(next, &held)
	}
	st.Ending = !st.Taking && !all // it may have begun to end meanwhile
	st.Counts.Storages, st.Memory.Held = held.Storages, held.Bytes
	for i := range st.Devices {
		st.Devices[i].Held = held.OnDevice[st.Devices[i].ID]
	}
	if st.Counts.ForChildren > 0 {
		st.Memory.ForChildren = b.heldForChildren()
	}
	return st
}

// lookTime bounds how long a request that only reads keeps the mutex at a time.
const lookTime = 250 * time.Microsecond

// heldFrom adds what is held from a chunk on, as Memory.HeldFrom; not while the broker ends or
// takes over.
func (b *Broker) heldFrom(chunk uint32, sum *memory.HeldUse) (next uint32, ok bool) {
	ok = b.whileServing(func() { next = b.memory.HeldFrom(chunk, lookTime, sum) })
	return next, ok
}

// heldForChildren sums what sessions hold that keep memory for children made by fork. The mutex is taken for each
// anew: a program can make all its sessions such ones.
func (b *Broker) heldForChildren() (n uint64) {
	for i, more := 0, true; more; i++ {
		ok := b.whileServing(func() {
			if all := b.used(); i >= len(all) {
				more = false
			} else if s := all[i]; s != nil && b.keepsForChildren(s) {
				n += b.memory.Held(s.memory)
			}
		})
		more = more && ok
	}
	return n
}

// statusNow is Status without the storages, which are counted if there is anything to count.
func (b *Broker) statusNow() (st Status, all bool) {
	machine, err := b.cfg.ReadMemory()
	if err != nil {
		machine = sys.Memory{}
	}
	var files FilesStatus
	if open, limit, err := sys.OpenFiles(); err == nil {
		files.Open, files.Limit = open, limit
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	files.Short = b.filesShort()
	st = Status{
		Instance: b.id, Version: b.cfg.Version, PID: processID, Socket: b.cfg.Socket, Host: hostName(),
		Uptime: time.Since(b.started).Seconds(), Taking: b.taking != nil, Files: files,
		Memory: MemoryStatus{Limit: b.cfg.Memory, SessionLimit: b.cfg.SessionMemory, Granted: b.memory.Use().Granted, Free: machine.Free(), Dir: b.cfg.MemoryDir},
	}
	if b.closing || b.taking != nil {
		return st, false
	}
	use := b.memory.Use()
	st.Memory.Left = b.memory.Left(machine)
	st.Memory.Orphans, st.Memory.Lanes = use.Orphans, use.Lanes
	for _, d := range use.Devices {
		st.Devices = append(st.Devices, DeviceStatus{ID: d.ID, Device: d.Device, Limit: b.cfg.DeviceMemory, Granted: d.Granted, Orphans: d.Orphans})
	}
	st.Counts, st.Deaths, st.Unread = b.counts(), b.deaths, b.leases.Unread()
	if b.takeover != nil {
		took := *b.takeover
		st.Takeover = &took
	}
	return st, true
}

func (b *Broker) counts() (n Counts) {
	for _, s := range b.used() {
		if s != nil {
			n.Sessions++
			switch s.shownAs() {
			case stateUnknown:
				n.Disconnected++
				n.Unknown++
			case stateDisconnected:
				n.Disconnected++
			case stateClosed:
				n.Closed++
			case stateEvicted:
				n.Evicted++
			}
			if b.keepsForChildren(s) {
				n.ForChildren++
			}
		}
	}
	t := b.topics.Counts()
	n.Topics, n.Queues, n.Functions, n.Names, n.AdoptedLanes = t.Topics, t.Queues, t.Functions, t.Names, t.AdoptedLanes
	m := b.memory.Counts()
	n.Segments, n.Chunks = m.Segments, m.Chunks
	n.Leases = b.leases.Count()
	return n
}
