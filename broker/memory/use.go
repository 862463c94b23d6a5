package memory

import "time"

// Use is how much is granted, in bytes.
type Use struct {
	Granted, Orphans uint64 // of the machine's memory: all segments, and those of ended sessions
	Lanes            uint64
	Devices          []DeviceUse
}

// DeviceUse is the use of one GPU, in bytes.
type DeviceUse struct {
	ID               int32
	Device           string
	Granted, Orphans uint64
}

// Use sums what is granted.
func (m *Memory) Use() Use {
	u := Use{Granted: m.used, Lanes: m.lanes}
	for _, d := range m.devices {
		u.Devices = append(u.Devices, DeviceUse{ID: d.id, Device: d.name, Granted: d.used})
	}
	for g := range m.orphans {
		if g.device == nil {
			u.Orphans += g.cost()
		} else if int(g.device.id) < len(u.Devices) {
			u.Devices[g.device.id].Orphans += g.cost()
		}
	}
	return u
}

// Counts is how full the tables are.
type Counts struct {
	Segments, Chunks int
}

// Counts counts.
func (m *Memory) Counts() (n Counts) {
	for _, g := range m.usedSegments() {
		if g != nil {
			n.Segments++
		}
	}
	for _, c := range m.usedChunks() {
		if c != nil {
			n.Chunks++
		}
	}
	return n
}

// HeldFrom counts the storages of chunks, from a number on, that any session or the broker holds.
// It looks at every row that may count them, so it stops after a chunk when the time is over,
// and returns the chunk to go on with; 0: none.
func (m *Memory) HeldFrom(from uint32, most time.Duration) (n int, next uint32) {
	began, chunks := time.Now(), m.usedChunks()
	for i := int(from); i < len(chunks); i++ {
		if c := chunks[i]; c != nil {
			n += m.heldStorages(c)
			if time.Since(began) > most && i+1 < len(chunks) {
				return n, uint32(i + 1)
			}
		}
	}
	return n, 0
}

// Granted sums the bytes of a session's segments, wherever they are.
func (s *Account) Granted() uint64 {
	n := s.granted
	for _, bytes := range s.onDevice {
		n += bytes
	}
	return n
}
