package memory

import (
	"context"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Attachment is a chunk whose owner looks at this session's refcounts: only then may
// its storages be counted here.
type Attachment struct {
	handles.Chunk
	owner   *sessionfiles.Peer
	Segment *Segment
}

// attach returns the attachment of the chunk that a ref names, asking the broker
// the first time. ErrExpired: the chunk has been given back. ErrInvalidHandle:
// no such index.
func (m *Memory) attach(ctx context.Context, ref protocol.Ref) (*Attachment, error) {
	chunk := ref.Index / protocol.ChunkIndices
	if ref.Index >= protocol.MaxStorages {
		return nil, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "no storage index %d", ref.Index)
	}
	if a := m.attached.Load(chunk); a != nil && a.Serial == ref.Serial {
		return a, nil
	}
	return m.attachSlow(ctx, chunk, ref.Serial)
}

// attachSlow asks for a chunk, and with the same request for those of which messages of other
// senders wait: a reader that meets many senders meets them at once.
func (m *Memory) attachSlow(ctx context.Context, chunk uint32, serial uint64) (*Attachment, error) {
	if err := m.Attaching.Take(ctx); err != nil {
		return nil, err
	}
	defer m.Attaching.End()
	if a := m.attached.Load(chunk); a != nil && a.Serial == serial {
		return a, nil
	}
	if !m.isListed(chunk, serial) {
		return nil, fault.Expired("its memory has been given back")
	}
	if m.devices == nil && m.files.OnDevice(m.files.Chunks.Load(chunk).Segment) {
		return nil, gpu.NoDevices("a GPU")
	}
	ahead := newAhead(m)
	ahead.add(chunk, serial)
	m.lanes.AttachAhead(ahead)
	a, err := m.askAttach(ctx, ahead.chunks)
	if len(ahead.chunks) > 1 && fault.Code(err) == protocol.CodeTooMany {
		a, err = m.askAttach(ctx, ahead.chunks[:1]) // there may be room for one file
	}
	return a, err
}

// isListed tells whether a grant of a chunk is there.
func (m *Memory) isListed(chunk uint32, serial uint64) bool {
	return chunk < m.files.ChunksEnd() && m.files.Chunks.Serial(chunk) == serial
}

// Ahead is what one request to attach asks for. What other processes say leads to it, so
// each chunk is looked up in the broker's page.
type Ahead struct {
	m        *Memory
	chunks   []protocol.AttachChunk
	segments map[uint64]bool // whose files are asked for
}

func newAhead(m *Memory) *Ahead { return &Ahead{m: m, segments: map[uint64]bool{}} }

// Full tells whether no more can be asked for.
func (a *Ahead) Full() bool { return len(a.chunks) == protocol.MaxPeers }

// add adds a chunk, which is listed.
func (a *Ahead) add(chunk uint32, serial uint64) {
	segment := a.m.files.Chunks.Load(chunk).SegmentSerial
	file := !a.segments[segment] && a.m.readable(segment) == nil
	a.segments[segment] = true
	a.chunks = append(a.chunks, protocol.AttachChunk{Chunk: chunk, Serial: serial, File: file})
}

// Consider adds the chunk of a ref that is not checked, unless this session is attached
// to it or cannot use it.
func (a *Ahead) Consider(ref protocol.Ref) {
	chunk, m := ref.Index/protocol.ChunkIndices, a.m
	if ref.Serial == 0 || ref.Index >= protocol.MaxStorages || !m.isListed(chunk, ref.Serial) {
		return
	}
	if has := m.attached.Load(chunk); has != nil && has.Serial == ref.Serial {
		return
	}
	for _, asked := range a.chunks {
		if asked.Chunk == chunk {
			return
		}
	}
	if !m.files.OnDevice(m.files.Chunks.Load(chunk).Segment) {
		a.add(chunk, ref.Serial)
	}
}

// askAttach attaches this session to chunks, and returns the attachment of the first one. The
// others come along where that is possible.
func (m *Memory) askAttach(ctx context.Context, asked []protocol.AttachChunk) (*Attachment, error) {
	all := asked
	asked = nil
	for k, a := range all { // so that this process's container pays
		err := m.reserve(protocol.SessionRefcounts+int64(a.Chunk)*protocol.ChunkIndices*protocol.RefcountWordSize, protocol.ChunkIndices*protocol.RefcountWordSize)
		if err != nil && k == 0 {
			return nil, err
		}
		if err == nil {
			asked = append(asked, a)
		}
	}
	var ok protocol.AttachReply
	before := m.arriving()
	fds, err := m.broker.Call(ctx, protocol.OpAttach, protocol.Attach{Chunks: asked}, &ok)
	if err == nil {
		crashpoint.At("attach-asked")
		err = m.keepAttached(asked, ok.Chunks, fds, before)
	}
	if err != nil {
		for _, a := range asked {
			if a.File {
				m.lacks(err, sessionfiles.SegmentFile(m.files.Chunks.Load(a.Chunk).SegmentSerial))
			}
		}
		return nil, err
	}
	var owners []protocol.PeerSession
	for _, r := range ok.Chunks {
		if r.Error == nil && m.files.Known(r.Owner, r.OwnerSerial) == nil {
			owners = append(owners, protocol.PeerSession{Slot: r.Owner, Serial: r.OwnerSerial})
		}
	}
	found, err := m.MapPeers(ctx, owners)
	if err != nil {
		return nil, err
	}
	var first *Attachment
	for k, r := range ok.Chunks {
		a, err := m.madeAttachment(ctx, &asked[k], &r, found)
		if err != nil && k == 0 {
			return nil, err
		}
		if err == nil {
			crashpoint.At("attach-mapped")
			m.attached.Store(asked[k].Chunk, a)
		}
		if k == 0 {
			first = a
		}
	}
	return first, nil
}

// madeAttachment makes the attachment that an answer describes.
func (m *Memory) madeAttachment(ctx context.Context, asked *protocol.AttachChunk, r *protocol.AttachAnswer, found map[uint64]FoundPeer) (*Attachment, error) {
	if r.Error != nil {
		return nil, r.Error
	}
	record := m.files.Chunks.Load(asked.Chunk)
	if record.Serial != asked.Serial {
		return nil, fault.Expired("its memory has been given back")
	}
	owner := m.files.Known(record.Owner, record.OwnerSerial)
	if owner == nil {
		f := found[record.OwnerSerial]
		if f.Err != nil {
			return nil, f.Err
		}
		if owner = f.Peer; owner == nil {
			return nil, protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md: broker and client disagree", "chunk %d is listed with another owner than was answered", asked.Chunk)
		}
	}
	segment, err := m.segment(ctx, record.Segment, record.SegmentSerial, false)
	if err != nil {
		return nil, err
	}
	if record.Bytes > segment.Bytes || record.Offset > segment.Bytes-record.Bytes {
		return nil, protocol.Errorf(protocol.CodeProtocol, "report this with the broker's log, see docs/support.md", "chunk %d reaches past its segment", asked.Chunk)
	}
	return &Attachment{Chunk: record, owner: owner, Segment: segment}, nil
}

// keepAttached keeps the segments whose descriptors came with an answer. It takes ownership of
// the descriptors.
func (m *Memory) keepAttached(asked []protocol.AttachChunk, answers []protocol.AttachAnswer, fds []*sys.FD, before Arriving) error {
	defer func() { wire.CloseAll(fds) }() // those that are left
	there := 0
	for k, r := range answers {
		if r.Bytes != 0 {
			there++
		}
		if k >= len(asked) || r.Bytes != 0 && (r.Error != nil || !asked[k].File) {
			there = -1
			break
		}
	}
	if len(answers) != len(asked) || len(fds) != there {
		return protocol.Errorf(protocol.CodeProtocol, "stop the broker and start one of this client's version",
			"%d chunks were asked for: %d answers came with %d descriptors", len(asked), len(answers), len(fds))
	}
	for k, r := range answers {
		if r.Bytes == 0 {
			continue
		}
		fd := fds[0]
		fds = fds[1:]
		if _, err := m.mapGiven(r.Segment, r.SegmentSerial, false, fd, &protocol.SegmentReply{Bytes: r.Bytes, Custody: r.Custody}, before); err != nil && k == 0 {
			return err
		}
	}
	return nil
}
