package memory

import (
	"context"
	"errors"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Source is a pool's way to the broker.
type Source struct {
	m         *Memory
	pageBytes uint64 // of huge pages; 0: the machine's usual ones
}

// Begin is called before a grant is asked for, end once it is ready or given up.
func (s Source) Begin() (before Arriving, end func()) {
	s.m.granting.RLock()
	return s.m.arriving(), s.m.granting.RUnlock
}

// NewSource is a session's way to get memory.
func NewSource(m *Memory) Source { return Source{m: m} }

// Grant asks the broker for a segment and reserves its pages here, so that this
// process's container pays and a full memory is an error now, not a SIGBUS later.
func (s Source) Grant(ctx context.Context, bytes uint64, chunks int, fallback bool) (handles.Grant, error) {
	before, end := s.Begin()
	defer end()
	request := protocol.Grant{Bytes: bytes, Chunks: chunks, PageBytes: s.pageBytes, Fallback: fallback}
	if m, err := sys.ReadMemory(); err == nil && s.pageBytes == 0 {
		free := m.Free()
		request.Free = &free
	}
	var ok protocol.GrantReply
	fds, err := s.m.broker.Call(ctx, protocol.OpGrant, request, &ok)
	if err != nil {
		return handles.Grant{}, err
	}
	if len(fds) != 1 {
		wire.CloseAll(fds)
		return handles.Grant{}, protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version", "grant came with %d descriptors, not 1", len(fds))
	}
	crashpoint.At("grant-received")
	if err := fds[0].Reserve(0, int64(ok.Bytes)); err != nil {
		fds[0].Close()
		s.m.broker.Call(ctx, protocol.OpReturn, protocol.Return{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil)
		code, remedy := protocol.CodeInternal, "free memory, raise the container's limit, or make room in the broker's --memory-dir if it has one"
		if sys.IsNoSpace(err) {
			code = protocol.CodeOutOfMemory
		}
		if s.pageBytes != 0 {
			remedy = "reserve more huge pages (sysctl vm.nr_hugepages), raise the container's limit of them, or leave them out"
		}
		return handles.Grant{}, protocol.Errorf(code, remedy, "%w", err)
	}
	crashpoint.At("grant-reserved")
	seg, err := shm.NewSegment(ok.Segment, ok.SegmentSerial, ok.Bytes, fds[0], true)
	if err != nil {
		return handles.Grant{}, err
	}
	region, err := seg.Writable()
	if err == nil {
		err = sys.Populate(region.Bytes(0, region.Len()))
	}
	if err == nil {
		err = s.PrepareNew(before, &Segment{Segment: seg}, ok.Chunks)
	}
	if err != nil {
		seg.Close()
		s.m.broker.Call(ctx, protocol.OpReturn, protocol.Return{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil)
		return handles.Grant{}, err
	}
	crashpoint.At("grant-prepared")
	return handles.Grant{Segment: seg, Region: region, Chunks: ok.Chunks}, nil
}

// reserve has pages of the session's own file, so that a touch cannot fail. Of a client
// that is closed meanwhile the file is closed too: that is ErrClosed.
func (m *Memory) reserve(at, bytes int64) error {
	err := m.files.SessionFD.Reserve(at, bytes)
	if err == nil {
		return nil
	}
	if over := m.life.Ended(); over != nil {
		return over
	}
	return protocol.Errorf(protocol.CodeOutOfMemory, "free memory of this machine, or raise the container's limit", "%w", err)
}

// prepare reserves the entries of new chunks and attaches this session to them;
// the broker has set its bit already.
func (s Source) prepare(e *Segment, chunks []protocol.ChunkGrant) error {
	seg := e.Segment
	for _, k := range chunks {
		record := s.m.files.Chunks.Load(k.Chunk % protocol.MaxChunks)
		if k.Chunk >= protocol.MaxChunks || record.Serial != k.Serial || record.SegmentSerial != seg.Serial ||
			record.Bytes > seg.Bytes || record.Offset > seg.Bytes-record.Bytes {
			if err := s.m.life.Ended(); err != nil {
				return err // the session is over, and its chunks with it
			}
			return protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md: broker and client disagree", "chunk %d was granted and is not listed", k.Chunk)
		}
		first := int64(k.Chunk) * protocol.ChunkIndices
		err := s.m.reserve(protocol.SessionEntries+first*protocol.EntrySize, protocol.ChunkIndices*protocol.EntrySize)
		if err == nil && s.m.trace {
			err = s.m.reserve(protocol.SessionTraces+first*protocol.TraceSize, protocol.ChunkIndices*protocol.TraceSize)
		}
		if err != nil {
			return err
		}
		own := s.m.files.Peers.Load(s.m.files.Slot)
		s.m.attached.Store(k.Chunk, &Attachment{Chunk: record, owner: own, Segment: e})
	}
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.m.closed { // nothing would unmap it
		for _, k := range chunks {
			s.m.attached.Store(k.Chunk, nil)
		}
		return fault.Closed("client")
	}
	e.own = true
	s.m.segments[seg.Serial] = e
	return nil
}

// PrepareNew is prepare for a segment that was granted in answer to a request.
func (s Source) PrepareNew(before Arriving, e *Segment, chunks []protocol.ChunkGrant) error {
	err := s.prepare(e, chunks)
	if err != nil {
		return err
	}
	s.m.arrived(before, sessionfiles.SegmentFile(e.Serial), e.FD())
	return nil
}

// MoreChunks asks for more storage indices over a segment.
func (s Source) MoreChunks(ctx context.Context, seg *shm.Segment, count int) ([]protocol.ChunkGrant, error) {
	var ok protocol.ChunksReply
	if _, err := s.m.broker.Call(ctx, protocol.OpChunks, protocol.Chunks{Segment: seg.Index, Count: count}, &ok); err != nil {
		return nil, err
	}
	crashpoint.At("chunks-received")
	s.m.mu.Lock()
	e := s.m.segments[seg.Serial]
	s.m.mu.Unlock()
	if e == nil { // the client was closed while it waited for the answer, and has let the segment go
		return nil, fault.Closed("client")
	}
	return ok.Chunks, s.prepare(e, ok.Chunks)
}

// Return gives an empty segment back and forgets it. It stays where a broker says that it
// is held, and only then: an answer may be lost with its broker, and where the next one is
// asked the segment is not found.
func (s Source) Return(ctx context.Context, seg *shm.Segment) bool {
	crashpoint.At("return-before")
	_, err := s.m.broker.Call(ctx, protocol.OpReturn, protocol.Return{Segment: seg.Index, Serial: seg.Serial}, nil)
	crashpoint.At("return-done")
	switch {
	case err == nil || errors.Is(err, protocol.ErrNotFound):
		s.m.returned(seg.Serial)
	case errors.Is(err, protocol.ErrBusy):
		return false
	default: // it may be gone: nothing is to be allocated in it
		go s.returnLater(seg)
	}
	return true
}

// returnLater gives a segment back when it is not known whether the broker has it.
func (s Source) returnLater(seg *shm.Segment) {
	_, err := s.m.broker.CallUntil(context.Background(), protocol.OpReturn, protocol.Return{Segment: seg.Index, Serial: seg.Serial}, nil)
	if err == nil || errors.Is(err, protocol.ErrNotFound) {
		s.m.returned(seg.Serial)
	} // else it is held, or the client is closed: it stays until the session ends
}

// ReturnStray gives back the segments that the broker has granted to this session and
// that are not known here: the answer was lost with a connection or a broker. Only the
// client can know this; a broker does not conclude it from what was handed to it.
func (m *Memory) ReturnStray(stop <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !m.granting.TryLock() { // never waited for, so that a grant keeps its own deadline
		select {
		case <-tick.C:
		case <-stop:
			return
		}
	}
	// No grant is under way: each that was answered is known here, or was given back.
	var stray []protocol.Return
	m.mu.Lock()
	for _, r := range m.files.Granted() {
		if m.segments[r.Serial] == nil {
			stray = append(stray, r)
		}
	}
	m.mu.Unlock()
	m.granting.Unlock()
	for _, r := range stray { // one that is being undone already is not found the second time
		m.broker.Call(context.Background(), protocol.OpReturn, r, nil)
	}
}
