//go:build race

package dlpack

import "sync/atomic"

// The race detector does not see what the assembly does. These two stand for
// SYNC dlpack-stack, so that Go code that releases in one goroutine and reaps
// in another is not reported. Calls of the deleter from C stay invisible to it.

var raceEdge atomic.Uint32

func raceRelease() { raceEdge.Add(1) }

func raceAcquire() { raceEdge.Load() }
