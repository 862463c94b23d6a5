package record

import "github.com/baton-ipc/baton/shm"

// Remains, only for brokers: a session that is over and whose files are still
// needed.
const (
	remainsSerial  = 0  // u64; 0: free
	remainsFile    = 8  // u64 inode of the session file
	remainsSlot    = 24 // u32
	remainsPID     = 28 // u32
	remainsName    = 32 // char[64]
	remainsHolder  = 96 // u64 family, u64 user
	remainsSize    = 128
	remainsNameLen = 64
)

// Remains is a copy of a record of remains.
type Remains struct {
	Serial    uint64
	File      uint64 // inode
	Slot, PID uint32
	Name      string
	Holder    Holder
}

// RemainsView stands for one record of remains.
type RemainsView struct {
	f File
	i uint32
	r shm.Region
}

// Remains views a record of the table of remains.
func (f File) Remains(i uint32) RemainsView {
	return RemainsView{f, i, f.r.Sub(remainsAt+uint64(i)*remainsSize, remainsSize)}
}

// Load copies the record.
func (v RemainsView) Load() Remains {
	return Remains{Serial: v.r.Load64(remainsSerial), File: v.r.Load64(remainsFile),
		Slot: v.r.Load32(remainsSlot), PID: v.r.Load32(remainsPID), Name: text(v.r, remainsName, remainsNameLen),
		Holder: loadHolder(v.r, remainsHolder)}
}

// Store writes the record, the serial last.
func (v RemainsView) Store(m Remains) {
	v.f.markUsed(headRemains, v.i)
	v.r.Store64(remainsFile, m.File)
	v.r.Store32(remainsSlot, m.Slot)
	v.r.Store32(remainsPID, m.PID)
	putText(v.r, remainsName, remainsNameLen, m.Name)
	m.Holder.store(v.r, remainsHolder)
	v.r.Store64(remainsSerial, m.Serial)
}

// Free makes the record free.
func (v RemainsView) Free() { v.r.Store64(remainsSerial, 0) }
