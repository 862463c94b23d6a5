package memory

import (
	"math/bits"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

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

// HeldUse is what any session or the broker holds. A storage that several hold counts once.
type HeldUse struct {
	Storages int
	Bytes    uint64           // of the machine's memory
	OnDevice map[int32]uint64 // of a GPU's, by its number
}

// HeldFrom adds to sum what is held of the storages of chunks, from a number on.
// It looks at every holder's refcounts that may count them, so it stops after a chunk when the time is over,
// and returns the chunk to go on with; 0: none. The bytes of memory whose session's file is not there are not
// known, and not in the sum.
func (m *Memory) HeldFrom(from uint32, most time.Duration, sum *HeldUse) (next uint32) {
	began, chunks := time.Now(), m.usedChunks()
	for i := int(from); i < len(chunks); i++ {
		if c := chunks[i]; c != nil {
			m.addHeld(c, sum)
			if time.Since(began) > most && i+1 < len(chunks) {
				return uint32(i + 1)
			}
		}
	}
	return 0
}

func (m *Memory) addHeld(c *chunk, sum *HeldUse) {
	held := m.heldOf(c)
	bytes, known := uint64(0), c.segment.owner.There()
	for w, word := range held {
		sum.Storages += bits.OnesCount64(word)
		for ; known && word != 0; word &= word - 1 {
			index := c.index*protocol.ChunkIndices + uint32(w*64+bits.TrailingZeros64(word))
			// The owner wrote it: at most the segment's size counts.
			bytes += min(c.segment.owner.Entries.Load(index).Bytes, c.segment.bytes)
		}
	}
	if d := c.segment.device; d == nil {
		sum.Bytes += bytes
	} else {
		if sum.OnDevice == nil {
			sum.OnDevice = map[int32]uint64{}
		}
		sum.OnDevice[d.id] += bytes
	}
}

// Lanes sums the bytes of the lanes that a session sends in.
func (s *Account) Lanes() uint64 { return s.lanes }

// Granted sums the bytes of a session's segments, wherever they are.
func (s *Account) Granted() uint64 {
	n := s.granted
	for _, bytes := range s.onDevice {
		n += bytes
	}
	return n
}
