package gpu

import (
	"slices"
	"sync"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// IPCHandle names an allocation of cudaMalloc's to other processes: what the driver
// calls its legacy handle.
type IPCHandle [64]byte

// Allocation is memory of cudaMalloc's as other processes can open it.
type Allocation struct {
	Base, Bytes uint64
	Handle      IPCHandle
}

// lentHere is what the clients of this process lend. The driver does not open a
// handle of its own process: they find here what the others lend. A handle that
// another process forges finds no more than the memory that it names.
var lentHere struct {
	sync.Mutex
	all map[IPCHandle]lentAllocation
}

type lentAllocation struct {
	base, bytes uint64
	lenders     int
}

// AddLent notes that a client lends an allocation.
func AddLent(a *Allocation) {
	lentHere.Lock()
	defer lentHere.Unlock()
	if lentHere.all == nil {
		lentHere.all = map[IPCHandle]lentAllocation{}
	}
	lentHere.all[a.Handle] = lentAllocation{a.Base, a.Bytes, lentHere.all[a.Handle].lenders + 1}
}

// RemoveLent notes that a client lends an allocation no more.
func RemoveLent(h IPCHandle) {
	lentHere.Lock()
	defer lentHere.Unlock()
	if l := lentHere.all[h]; l.lenders > 1 {
		l.lenders--
		lentHere.all[h] = l
	} else {
		delete(lentHere.all, h)
	}
}

func findLent(h IPCHandle) (lentAllocation, bool) {
	lentHere.Lock()
	defer lentHere.Unlock()
	l, ok := lentHere.all[h]
	return l, ok
}

// borrowed is memory that another session lends by the driver's handle. It is open
// while something here uses it.
type borrowed struct {
	mu      sync.Mutex // guards what follows
	users   int
	foreign bool // another process's, and open
}

// open opens borrowed memory for one more user.
func (d *Segment) open() error {
	b := d.borrowed
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users == 0 {
		at, foreign, err := d.find()
		if err != nil {
			return err
		}
		b.foreign = foreign
		d.readable.Store(at)
		d.writable.Store(at)
	}
	b.users++
	return nil
}

// find returns where the memory lies, and whether it was opened for that.
func (d *Segment) find() (at uint64, foreign bool, err error) {
	var h IPCHandle
	if fd := d.segment.FD(); !fd.Sealed() || !fd.ReadStart(h[:]) {
		return 0, false, errLender("borrowed memory came without its handle")
	}
	own, here := findLent(h)
	real := own.bytes
	if at = own.base; !here {
		if at, real, err = d.GPU.OpenLent(h); err != nil {
			return 0, false, err
		}
	}
	// The broker rounds what is lent up to whole pages.
	if d.segment.Bytes >= real+protocol.PageBytes {
		if !here {
			_ = d.GPU.CloseLent(at)
		}
		return 0, false, errLender("%d bytes are lent of an allocation of %d", d.segment.Bytes, real)
	}
	return at, !here, nil
}

func errLender(what string, args ...any) error {
	return protocol.Errorf(protocol.CodeHandle, "restart the process that owns it", what, args...)
}

// close ends one open; the last closes the memory, so that its owner may free it
// once nothing counts it.
func (d *Segment) close() {
	b := d.borrowed
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users--; b.users > 0 {
		return
	}
	at := d.readable.Swap(0)
	d.writable.Store(0)
	if b.foreign {
		// What cannot be closed ends with the process.
		_ = d.GPU.CloseLent(at)
	}
}

// OpenFor opens borrowed memory unless the holding has it open.
func (u *Use) OpenFor(d *Segment) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if slices.Contains(u.opened, d) {
		return nil
	}
	if err := d.open(); err != nil {
		return err
	}
	u.opened = append(u.opened, d)
	return nil
}

// CloseBorrowed closes what the holding has opened.
func (u *Use) CloseBorrowed() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, d := range u.opened {
		d.close()
	}
	u.opened = nil
}

// HandleFile makes a descriptor that carries a handle to other processes.
func HandleFile(h IPCHandle) (*sys.FD, error) {
	return sys.CreateFilled("baton-ipc-handle", h[:])
}

// IsLent tells whether the segment is another session's, which lends it by the driver's handle.
func (d *Segment) IsLent() bool { return d != nil && d.borrowed != nil }
