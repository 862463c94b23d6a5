package memory

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
)

// Fill allocates the storage of an empty holding from a pool; wait is for how long it waits for
// memory.
func (m *Memory) Fill(ctx context.Context, pool *handles.Pool, h *Holding, n uint64, wait time.Duration) error {
	m.Reap()
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
		m.Drop(s.Index)
		return m.life.Refused(fault.Closed("client"))
	}
	h.Storages = append(h.Storages, storage{Ref: s.Ref(), At: a, Offset: s.Offset, Bytes: s.Bytes})
	return nil
}

// writeTrace notes the first line outside of the client that asked for a storage, for `baton ls storages`.
func (m *Memory) writeTrace(index uint32) {
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
	copy(m.files.Session.Bytes(protocol.SessionTraces+uint64(index)*protocol.TraceSize, protocol.TraceSize), raw[:])
}
