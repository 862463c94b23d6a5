package client

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
)

// fill allocates the storage of an empty holding from a pool; wait is for how long it waits for
// memory.
func (m *memory) fill(ctx context.Context, pool *handles.Pool, h *holding, n uint64, wait time.Duration) error {
	m.reap()
	s, err := pool.AllocFirst(ctx, n)
	if full(err) {
		s, err = m.allocWhenFull(ctx, pool, n, wait)
	}
	if err != nil {
		return err
	}
	if m.trace {
		m.writeTrace(s.Index)
	}
	a := m.attached.Load(s.Index / protocol.ChunkIndices)
	if a == nil { // Close has let go of everything meanwhile
		m.drop(s.Index)
		return m.life.refused(errClosed("client"))
	}
	h.storages = append(h.storages, storage{ref: s.Ref(), at: a, offset: s.Offset, bytes: s.Bytes})
	return nil
}

// writeTrace notes the first line outside of the client that asked for a storage, for `baton ls storages`.
func (m *memory) writeTrace(index uint32) {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	text := ""
	for {
		f, more := frames.Next()
		if !strings.Contains(f.Function, "baton/client.") && !strings.Contains(f.Function, "baton/client/") {
			short := f.File
			if i := strings.LastIndexByte(short, '/'); i >= 0 {
				if j := strings.LastIndexByte(short[:i], '/'); j >= 0 {
					short = short[j+1:]
				}
			}
			text = fmt.Sprintf("%s:%d", short, f.Line)
			break
		}
		if !more {
			break
		}
	}
	var raw [protocol.TraceSize]byte
	copy(raw[:], text)
	copy(m.pages.session.Bytes(protocol.SessionTraces+uint64(index)*protocol.TraceSize, protocol.TraceSize), raw[:])
}
