package gpu

import (
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Segment is a segment on a GPU in this process: imported and mapped once,
// for reading and, where that is asked for, for writing.
type Segment struct {
	GPU *GPU
	ID  int32 // by which the broker knows the device

	segment  *shm.Segment // keeps the descriptor
	mu       sync.Mutex   // guards the making of what follows
	memory   DeviceMemory
	readable atomic.Uint64 // addresses
	writable atomic.Uint64
	borrowed *borrowed // nil: it outlives the session that made it
}

// Address returns where the segment begins. A process that has it writable reads
// through that mapping.
func (d *Segment) Address(write bool) (uint64, error) {
	if at := d.writable.Load(); at != 0 {
		return at, nil
	}
	if at := d.readable.Load(); at != 0 && !write {
		return at, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	to := &d.readable
	if write {
		to = &d.writable
	}
	if at := to.Load(); at != 0 {
		return at, nil
	}
	if d.borrowed != nil {
		return 0, protocol.Errorf(protocol.CodeInternal, "report this with the broker's log, see docs/support.md", "borrowed memory was not opened for its use")
	}
	if d.memory == nil {
		m, err := d.GPU.Import(d.segment.FD(), d.segment.Bytes)
		if err != nil {
			return 0, err
		}
		d.memory = m
	}
	at, err := d.memory.Map(write)
	if err == nil {
		to.Store(at)
	}
	return at, err
}

// Is tells whether a description names this device: none is the machine's memory.
func (d *Segment) Is(t *protocol.Tensor) bool {
	if d == nil {
		return t.DeviceType == int32(dlpack.CPU)
	}
	return t.DeviceType == int32(dlpack.CUDA) && t.DeviceID == d.ID
}

// HandleName is what a handle calls the device: by the broker's number.
func (d *Segment) HandleName() string {
	if d == nil {
		return "cpu"
	}
	return protocol.DeviceCUDA + strconv.Itoa(int(d.ID))
}

// End ends the mappings, and this process's hold on the memory.
func (d *Segment) End() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.memory == nil {
		return nil
	}
	if err := d.memory.Close(); err != nil {
		return err
	}
	d.memory = nil
	d.readable.Store(0)
	d.writable.Store(0)
	return nil
}

// NewMade is a segment whose memory was made here.
func NewMade(g *GPU, id int32, seg *shm.Segment, memory DeviceMemory) *Segment {
	return &Segment{GPU: g, ID: id, segment: seg, memory: memory}
}

// NewLent is a segment that this session lends, which lies at an address.
func NewLent(g *GPU, id int32, seg *shm.Segment, at uint64) *Segment {
	d := &Segment{GPU: g, ID: id, segment: seg}
	d.readable.Store(at)
	d.writable.Store(at)
	return d
}

// NewGiven is another session's segment; lent: by the driver's handle.
func NewGiven(g *GPU, id int32, seg *shm.Segment, lent bool) *Segment {
	d := &Segment{GPU: g, ID: id, segment: seg}
	if lent {
		d.borrowed = &borrowed{}
	}
	return d
}
