package broker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func TestGrantGivesASegmentThatReturnTakesBack(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "owner")
	s := p.alloc(10000)
	require.EqualValues(t, 12288, s.grant.Bytes)
	require.True(t, p.chunks.IsAttached(s.grant.Chunks[0].Chunk, p.hello.Slot))
	require.True(t, p.chunks.IsAttached(s.grant.Chunks[0].Chunk, 0))
	require.EqualValues(t, 12288, b.Status().Memory.Granted)

	e := p.refused(protocol.CodeBusy, protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial})
	require.Contains(t, e.Message, "owner")
	require.Equal(t, s.Serial, p.chunks.Serial(s.grant.Chunks[0].Chunk))
	p.refcounts.Drop(s.Index)
	p.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	require.Zero(t, p.chunks.Serial(s.grant.Chunks[0].Chunk))
	require.False(t, p.chunks.IsAttached(s.grant.Chunks[0].Chunk, p.hello.Slot))
	require.Zero(t, b.Status().Memory.Granted)
	require.Zero(t, b.Status().Counts.Chunks)
}

// A client that does not know whether a broker has heard it says `return` again, after
// another grant.
func TestReturnSaidTwiceTakesNoOtherSegmentBack(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "owner")
	first := p.alloc(4096)
	p.refcounts.Drop(first.Index)
	again := protocol.Return{Segment: first.grant.Segment, Serial: first.grant.SegmentSerial}
	p.must(protocol.OpReturn, again, nil)
	for there := false; !there; {
		next := p.alloc(4096)
		p.refcounts.Drop(next.Index)
		p.refused(protocol.CodeNotFound, protocol.OpReturn, again)
		require.NotZero(t, p.chunks.Serial(next.grant.Chunks[0].Chunk))
		p.must(protocol.OpReturn, protocol.Return{Segment: next.grant.Segment, Serial: next.grant.SegmentSerial}, nil)
		there = next.grant.Segment == first.grant.Segment
	}
}

func TestReturnTellsThoseWhoHadTheSegmentAndFreesItsPages(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "owner"), connect(t, b.socket, "reader")
	s := p.alloc(1 << 20)
	copy(s.region.Bytes(0, 5), "hello")
	q.attach(s.Ref)
	var r protocol.SegmentReply
	fds, err := q.call(protocol.OpSegment, protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, &r)
	require.NoError(t, err)
	require.EqualValues(t, 1<<20, r.Bytes)
	defer wire.CloseAll(fds)
	require.Equal(t, "hello", string(q.mapRegion(fds[0], 1<<20, false).Bytes(0, 5)))
	_, err = sys.Map(fds[0], 4096, true)
	require.Error(t, err, "a segment asked for reading must not be writable")
	require.True(t, fds[0].Sealed())

	p.refcounts.Drop(s.Index)
	p.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	e, _ := q.read()
	require.Equal(t, protocol.EventTrim, e.Event)
	record := protocol.BrokerSegments + uint64(s.grant.Segment)*protocol.SegmentRecordSize
	require.NotEqual(t, s.grant.SegmentSerial, q.broker.Load64(record+protocol.SegmentSerial))
	n, err := fds[0].Allocated()
	require.NoError(t, err)
	require.Zero(t, n)
	q.refused(protocol.CodeExpired, protocol.OpSegment, protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial})
	q.cannotAttach(protocol.CodeExpired, s.grant.Chunks[0].Chunk, s.Serial)
}

func TestSegmentOfAnotherCannotBeReturned(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "owner"), connect(t, b.socket, "other")
	s := p.alloc(4096)
	q.refused(protocol.CodeNotFound, protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial})
	q.refused(protocol.CodeNotFound, protocol.OpChunks, protocol.Chunks{Segment: s.grant.Segment, Count: 1})
	q.refused(protocol.CodeNotFound, protocol.OpReturn, protocol.Return{Segment: 1 << 31})
}

func TestChunkSerialsAreNeverReused(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "owner")
	seen := map[uint64]bool{}
	for range 50 {
		s := p.alloc(4096)
		var r protocol.ChunksReply
		p.must(protocol.OpChunks, protocol.Chunks{Segment: s.grant.Segment, Count: 3}, &r)
		for _, c := range append(r.Chunks, s.grant.Chunks...) {
			require.False(t, seen[c.Serial])
			seen[c.Serial] = true
		}
		p.refcounts.Drop(s.Index)
		p.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	}
}

func TestOneSessionLeavesChunksToOthers(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "owner")
	s := p.alloc(4096)
	p.refused(protocol.CodeTooMany, protocol.OpChunks, protocol.Chunks{Segment: s.grant.Segment, Count: protocol.MaxChunks})
	require.Equal(t, 1, b.Status().Counts.Chunks)
	const share = protocol.MaxChunks - protocol.MaxChunks/8
	p.refused(protocol.CodeTooMany, protocol.OpChunks, protocol.Chunks{Segment: s.grant.Segment, Count: share})
	var r protocol.ChunksReply
	p.must(protocol.OpChunks, protocol.Chunks{Segment: s.grant.Segment, Count: share - 1}, &r)
	p.refused(protocol.CodeTooMany, protocol.OpGrant, protocol.Grant{Bytes: 1, Chunks: 1})
	require.Equal(t, 1, b.Status().Counts.Segments)
	again := connect(t, b.socket, "of the same process")
	again.refused(protocol.CodeTooMany, protocol.OpGrant, protocol.Grant{Bytes: 1, Chunks: 1})
	p.must(protocol.OpBye, struct{}{}, nil)
}
