package client

import (
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// laneSpace hands out ranges of the own session file for lanes.
type laneSpace struct {
	fd   *sys.FD
	file shm.Region
	next uint64
	free map[uint64][]uint64 // by length
	used map[uint64]uint64   // length by offset
}

func newLaneSpace(fd *sys.FD, file shm.Region) laneSpace {
	return laneSpace{fd: fd, file: file, next: protocol.SessionLanes, free: map[uint64][]uint64{}, used: map[uint64]uint64{}}
}

// take reserves a range of whole pages that read zero. Callers hold Client.mu.
func (l *laneSpace) take(bytes uint64) (uint64, error) {
	at := l.next
	if f := l.free[bytes]; len(f) > 0 {
		at = f[0]
		l.free[bytes] = f[1:]
	} else if l.next+bytes > protocol.SessionBytes {
		return 0, protocol.Errorf(protocol.CodeTooMany, "close topics or use a smaller depth", "this session's space for lanes is full")
	} else {
		l.next += bytes
	}
	if err := l.fd.Reserve(int64(at), int64(bytes)); err != nil {
		l.free[bytes] = append(l.free[bytes], at)
		return 0, protocol.Errorf(protocol.CodeOutOfMemory, "free memory", "%w", err)
	}
	l.used[at] = bytes
	return at, nil
}

// give takes a range back, which reads zero again. The oldest range is used first,
// so that a late reader of a lane that has gone finds it empty rather than somebody
// else's. The pages of a memfd go back to the machine. Those of a file stay: a late
// reader would end with SIGBUS at a hole in a file system that has become full.
func (l *laneSpace) give(at uint64) {
	bytes, ok := l.used[at]
	if !ok {
		return
	}
	if !l.fd.Sealed() {
		for i := uint64(0); i < bytes; i += 8 {
			l.file.Store64(at+i, 0)
		}
	} else if l.fd.Punch(int64(at), int64(bytes)) != nil {
		return
	}
	delete(l.used, at)
	l.free[bytes] = append(l.free[bytes], at)
}
