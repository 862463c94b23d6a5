//go:build race

package handles

import (
	"sync/atomic"

	"github.com/baton-ipc/baton/protocol"
)

// The race detector does not see atomics on shared pages. These stand for SYNC refcount
// within a process, so that an owner that recycles what another goroutine has dropped
// is not reported.

var refcountEdges [protocol.ChunkIndices]atomic.Uint32

func raceRelease(index uint32) { refcountEdges[index%protocol.ChunkIndices].Add(1) }

func raceAcquire(index uint32) { refcountEdges[index%protocol.ChunkIndices].Load() }
