package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// segmentEntry is a segment known to this process.
type segmentEntry struct {
	*shm.Segment
	device *deviceSegment // nil: memory of the machine
	own    bool           // granted to this session and not given back; Client.mu guards it
	also   []*shm.Segment // of a keeper: the same, mapped by clients whose counts it took over
}

// segment returns a segment, asking the broker for a descriptor that allows the
// use. Concurrent calls for one segment may both ask; the second descriptor is
// closed.
func (c *Client) segment(ctx context.Context, index uint32, serial uint64, write bool) (*segmentEntry, error) {
	c.mu.Lock()
	e := c.segments[serial]
	c.mu.Unlock()
	if e != nil && (e.HasWritable() || !write && e.HasReadable()) {
		return e, nil
	}
	if c.devices == nil && c.onDevice(index) {
		return nil, errNoDevices("a GPU")
	}
	var ok protocol.SegmentReply
	before := c.arriving()
	fds, err := c.link.call(ctx, protocol.OpSegment, protocol.Segment{Segment: index, Serial: serial, Write: write}, &ok)
	if err != nil {
		c.lacks(err, fileKey{protocol.RestoreSegment, serial})
		return nil, err
	}
	if len(fds) != 1 {
		wire.CloseAll(fds)
		return nil, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "segment came with %d descriptors, not 1", len(fds))
	}
	return c.mapGiven(index, serial, write, fds[0], &ok, before)
}

// readable returns a segment that can be read here; nil where it is not known.
func (c *Client) readable(serial uint64) *segmentEntry {
	c.mu.Lock()
	e := c.segments[serial]
	c.mu.Unlock()
	if e != nil && (e.HasWritable() || e.HasReadable()) {
		return e
	}
	return nil
}

// mapGiven keeps a segment whose descriptor has come, of which it takes ownership.
func (c *Client) mapGiven(index uint32, serial uint64, write bool, fd *sys.FD, ok *protocol.SegmentReply, before arriving) (e *segmentEntry, err error) {
	var mapped *sys.FD // its use ends behind the mutex
	defer func() {
		if mapped != nil {
			c.keepOrClose(before, fileKey{protocol.RestoreSegment, serial}, mapped, ok.Custody)
		}
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed { // nobody would close it
		fd.Close()
		return nil, errClosed("client")
	}
	if ok.Device == "" {
		mapped = fd
	}
	if e = c.segments[serial]; e != nil {
		if ok.Device != "" {
			return e, e.Give(fd, write)
		}
		return e, e.Map(fd, write)
	}
	if ok.Device != "" {
		s := shm.NewDeviceSegment(index, serial, ok.Bytes, fd)
		if e, err = c.deviceEntry(ok, s); err != nil {
			s.Close()
			return nil, err
		}
	} else {
		s, err := shm.MapSegment(index, serial, ok.Bytes, fd, write)
		if err != nil {
			return nil, err
		}
		e = &segmentEntry{Segment: s}
	}
	c.segments[serial] = e
	return e, nil
}

// writable makes sure that a segment can be written here.
func (c *Client) writable(ctx context.Context, e *segmentEntry) error {
	if e.HasWritable() {
		return nil
	}
	_, err := c.segment(ctx, e.Index, e.Serial, true)
	return err
}

// source is a pool's way to the broker.
type source struct {
	c         *Client
	pageBytes uint64 // of huge pages; 0: the machine's usual ones
}

// Grant asks the broker for a segment and reserves its pages here, so that this
// process's container pays and a full memory is an error now, not a SIGBUS later.
func (s source) Grant(ctx context.Context, bytes uint64, chunks int, fallback bool) (handles.Grant, error) {
	s.c.granting.RLock()
	defer s.c.granting.RUnlock()
	before := s.c.arriving()
	request := protocol.Grant{Bytes: bytes, Chunks: chunks, PageBytes: s.pageBytes, Fallback: fallback}
	if m, err := sys.ReadMemory(); err == nil && s.pageBytes == 0 {
		free := m.Free()
		request.Free = &free
	}
	var ok protocol.GrantReply
	fds, err := s.c.link.call(ctx, protocol.OpGrant, request, &ok)
	if err != nil {
		return handles.Grant{}, err
	}
	if len(fds) != 1 {
		wire.CloseAll(fds)
		return handles.Grant{}, protocol.Errorf(protocol.CodeProtocol, "use a broker of this version", "grant came with %d descriptors, not 1", len(fds))
	}
	crashpoint.At("grant-received")
	if err := fds[0].Reserve(0, int64(ok.Bytes)); err != nil {
		fds[0].Close()
		s.c.link.call(ctx, protocol.OpReturn, protocol.Return{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil)
		code, remedy := protocol.CodeInternal, "free memory, or raise the container's limit"
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
		err = s.prepareNew(before, &segmentEntry{Segment: seg}, ok.Chunks)
	}
	if err != nil {
		seg.Close()
		s.c.link.call(ctx, protocol.OpReturn, protocol.Return{Segment: ok.Segment, Serial: ok.SegmentSerial}, nil)
		return handles.Grant{}, err
	}
	crashpoint.At("grant-prepared")
	return handles.Grant{Segment: seg, Region: region, Chunks: ok.Chunks}, nil
}

// reserve has pages of the own session file, so that a touch cannot fail. Of a client
// that is closed meanwhile the file is closed too: that is ErrClosed.
func (c *Client) reserve(at, bytes int64) error {
	err := c.pages.sessionFD.Reserve(at, bytes)
	if err == nil {
		return nil
	}
	if over := c.life.ended(); over != nil {
		return over
	}
	return protocol.Errorf(protocol.CodeOutOfMemory, "free memory", "%w", err)
}

// prepare reserves the entries of new chunks and attaches this session to them;
// the broker has set its bit already.
func (s source) prepare(e *segmentEntry, chunks []protocol.ChunkGrant) error {
	seg := e.Segment
	for _, k := range chunks {
		record := s.c.pages.chunks.Load(k.Chunk % protocol.MaxChunks)
		if k.Chunk >= protocol.MaxChunks || record.Serial != k.Serial || record.SegmentSerial != seg.Serial ||
			record.Bytes > seg.Bytes || record.Offset > seg.Bytes-record.Bytes {
			if err := s.c.life.ended(); err != nil {
				return err // the session is over, and its chunks with it
			}
			return protocol.Errorf(protocol.CodeProtocol, "report this: broker and client disagree", "chunk %d was granted and is not listed", k.Chunk)
		}
		first := int64(k.Chunk) * protocol.ChunkIndices
		err := s.c.reserve(protocol.SessionEntries+first*protocol.EntrySize, protocol.ChunkIndices*protocol.EntrySize)
		if err == nil && s.c.trace {
			err = s.c.reserve(protocol.SessionTraces+first*protocol.TraceSize, protocol.ChunkIndices*protocol.TraceSize)
		}
		if err != nil {
			return err
		}
		own := s.c.pages.peers.Load(s.c.pages.slot)
		s.c.attached.Store(k.Chunk, &attachment{Chunk: record, owner: own, segment: e})
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.closed { // nobody would unmap it
		for _, k := range chunks {
			s.c.attached.Store(k.Chunk, nil)
		}
		return errClosed("client")
	}
	e.own = true
	s.c.segments[seg.Serial] = e
	return nil
}

// prepareNew is prepare for a segment that was granted in answer to a request.
func (s source) prepareNew(before arriving, e *segmentEntry, chunks []protocol.ChunkGrant) error {
	err := s.prepare(e, chunks)
	if err != nil {
		return err
	}
	s.c.arrived(before, fileKey{protocol.RestoreSegment, e.Serial}, e.FD())
	return nil
}

// MoreChunks asks for more storage indices over a segment.
func (s source) MoreChunks(ctx context.Context, seg *shm.Segment, count int) ([]protocol.ChunkGrant, error) {
	var ok protocol.ChunksReply
	if _, err := s.c.link.call(ctx, protocol.OpChunks, protocol.Chunks{Segment: seg.Index, Count: count}, &ok); err != nil {
		return nil, err
	}
	crashpoint.At("chunks-received")
	s.c.mu.Lock()
	e := s.c.segments[seg.Serial]
	s.c.mu.Unlock()
	if e == nil { // the client was closed while it waited for the answer, and has let the segment go
		return nil, errClosed("client")
	}
	return ok.Chunks, s.prepare(e, ok.Chunks)
}

// Return gives an empty segment back and forgets it. It stays where a broker says that it
// is held, and only then: an answer may be lost with its broker, and where the next one is
// asked the segment is not found.
func (s source) Return(ctx context.Context, seg *shm.Segment) bool {
	crashpoint.At("return-before")
	_, err := s.c.link.call(ctx, protocol.OpReturn, protocol.Return{Segment: seg.Index, Serial: seg.Serial}, nil)
	crashpoint.At("return-done")
	switch {
	case err == nil || errors.Is(err, protocol.ErrNotFound):
		s.c.returned(seg.Serial)
	case errors.Is(err, protocol.ErrBusy):
		return false
	default: // it may be gone: nothing is to be allocated in it
		go s.returnLater(seg)
	}
	return true
}

// returnLater gives a segment back when it is not known whether the broker has it.
func (s source) returnLater(seg *shm.Segment) {
	_, err := s.c.link.callUntil(context.Background(), protocol.OpReturn, protocol.Return{Segment: seg.Index, Serial: seg.Serial}, nil)
	if err == nil || errors.Is(err, protocol.ErrNotFound) {
		s.c.returned(seg.Serial)
	} // else it is held, or the client is closed: it stays until the session ends
}

// returnStray gives back the segments that the broker has granted to this session and
// that are not known here: the answer was lost with a connection or a broker. Only the
// client can know this; a broker does not conclude it from what was handed to it.
func (c *Client) returnStray() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !c.granting.TryLock() { // never waited for, so that a grant keeps its own deadline
		select {
		case <-tick.C:
		case <-c.jobs.stop:
			return
		}
	}
	// No grant is under way: each that was answered is known here, or was given back.
	var stray []protocol.Return
	c.mu.Lock()
	for i := range c.pages.segmentsEnd() {
		at := segmentRecordAt(i)
		serial := c.pages.broker.Load64(at + protocol.SegmentSerial)
		if serial != 0 && c.segments[serial] == nil && c.pages.broker.Load64(at+protocol.SegmentOwnerSerial) == c.pages.serial {
			stray = append(stray, protocol.Return{Segment: i, Serial: serial})
		}
	}
	c.mu.Unlock()
	c.granting.Unlock()
	for _, r := range stray { // one that is being undone already is not found the second time
		c.link.call(context.Background(), protocol.OpReturn, r, nil)
	}
}

// returned forgets a segment that this session has given back.
func (c *Client) returned(serial uint64) {
	c.mu.Lock()
	if e := c.segments[serial]; e != nil {
		e.own = false
	}
	c.mu.Unlock()
	c.trim([]uint64{serial})
}

// trim forgets segments that the broker has taken back. Mapping and descriptor go only when
// this row counts nothing in it: an honest process has nothing left there but for a
// moment, after which the next comparison finds it, and a lying one must not make us
// fault.
func (c *Client) trim(gone []uint64) {
	for _, serial := range gone {
		file := fileKey{protocol.RestoreSegment, serial}
		c.mu.Lock()
		e, named := c.segments[serial], c.forReaders
		c.mu.Unlock()
		if e == nil {
			c.pages.letGo(file)
			continue
		}
		clear := true
		removed := map[uint32]*attachment{}
		for chunk, a := range c.attached.All() {
			if a.SegmentSerial != serial {
				continue
			}
			// SYNC attachment: removed first, counts read second; pairs with hold.
			if c.attached.CompareAndSwap(chunk, a, nil) {
				removed[chunk] = a
			}
			for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
				if c.pages.row.Count(index) > named[index] {
					clear = false
				}
			}
		}
		if !clear || c.pages.rowCleared() {
			for chunk, a := range removed { // the next look is to find the counts again
				c.attached.CompareAndSwap(chunk, nil, a)
			}
			continue
		}
		c.mu.Lock()
		delete(c.segments, serial)
		c.mu.Unlock()
		c.pages.letGo(file)
		e.Close()
		for _, s := range e.also {
			s.Close()
		}
	}
}

// leaveNamed has what the lanes of a session that is over name count for readers alone:
// nobody counts it down any more, and nothing here holds it.
func (c *Client) leaveNamed(n map[uint32]uint64) {
	c.mu.Lock()
	c.forReaders = n
	c.mu.Unlock()
}

// unmapFree unmaps what this session does not hold, and tells whether all is unmapped.
func (c *Client) unmapFree() bool {
	c.mu.Lock()
	all := slices.Collect(maps.Keys(c.segments))
	c.mu.Unlock()
	c.trim(all)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.segments) == 0
}
