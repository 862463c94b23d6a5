package sessionfiles

import (
	"sync"

	"github.com/baton-ipc/baton/internal/ranges"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// LaneSpace hands out ranges of the session's own file for lanes.
type LaneSpace struct {
	fd   *sys.FD
	file shm.Region
	mu   sync.Mutex // guards what follows
	free ranges.Free
	used map[uint64]uint64   // length by offset
	left map[uint64]LeftLane // by offset: lanes that the broker keeps for their readers
}

// LeftLane is where the broker lists a lane that this session has left.
type LeftLane struct {
	topic, number uint32
	incarnation   uint64
}

func newLaneSpace(fd *sys.FD, file shm.Region) *LaneSpace {
	l := &LaneSpace{fd: fd, file: file, used: map[uint64]uint64{}, left: map[uint64]LeftLane{}}
	l.free.Give(protocol.SessionLanes, protocol.SessionBytes-protocol.SessionLanes)
	return l
}

// Take reserves a range of whole pages that read zero.
func (l *LaneSpace) Take(bytes uint64) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.free.Take(bytes)
	if !ok {
		return 0, protocol.Errorf(protocol.CodeTooMany, "close topics and queues that are not used, or use a smaller depth", "this session's space for lanes is full")
	}
	if err := l.fd.Reserve(int64(at), int64(bytes)); err != nil {
		// It reads zero as before. Some pages of a memfd may have been had; a file has
		// holes, where a store would be SIGBUS.
		l.discard(at, bytes)
		l.free.Give(at, bytes)
		return 0, protocol.Errorf(protocol.CodeOutOfMemory, "free memory of this machine, or raise the container's limit", "%w", err)
	}
	l.used[at] = bytes
	return at, nil
}

// Give takes a range back.
func (l *LaneSpace) Give(at uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.giveLocked(at)
}

func (l *LaneSpace) giveLocked(at uint64) {
	bytes, ok := l.used[at]
	if !ok {
		return
	}
	l.clear(at, bytes)
	delete(l.used, at)
	delete(l.left, at)
	l.free.Give(at, bytes)
}

// clear makes a reserved range read zero. The pages of a memfd go back to the machine. Those of a
// file stay: a late reader would end with SIGBUS at a hole in a file system that has
// become full.
func (l *LaneSpace) clear(at, bytes uint64) {
	if l.discard(at, bytes) {
		return
	}
	for i := uint64(0); i < bytes; i += 8 {
		l.file.Store64(at+i, 0)
	}
}

// discard gives the pages of a memfd back, which then read zero. Of a file it does nothing.
func (l *LaneSpace) discard(at, bytes uint64) bool {
	return l.fd.Sealed() && l.fd.Punch(int64(at), int64(bytes)) == nil
}

// leave notes that the broker keeps a lane until its messages have been read to their
// end.
func (l *LaneSpace) leave(at uint64, of LeftLane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left[at] = of
}

// Reconcile takes back the lanes that the broker lists no more.
func (l *LaneSpace) Reconcile(listed func(LeftLane) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, of := range l.left {
		if !listed(of) {
			l.giveLocked(at)
		}
	}
}

// CountLeft returns how many lanes the broker keeps for their readers.
func (l *LaneSpace) CountLeft() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.left)
}
