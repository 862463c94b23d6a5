package broker_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

const gpu = "cuda:GPU-5b8d1c1e-0f3a-4d52-9c6e-3a7f1e2d4c5b"

// slab is a descriptor as a driver gives it: no file, without size, not to be
// opened anew. other tells whether a descriptor is of the same thing.
func slab(t testing.TB) (fd *sys.FD, same func(*sys.FD) bool) {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { w.Close() })
	one := sys.NewFD(int(r.Fd()))
	fd, err = one.Dup()
	require.NoError(t, err)
	t.Cleanup(func() { fd.Close(); r.Close() })
	_, id, err := fd.Stat()
	require.NoError(t, err)
	return fd, func(o *sys.FD) bool {
		_, other, err := o.Stat()
		require.NoError(t, err)
		return other == id
	}
}

func withCUDA(t testing.TB, socket, name string) *peer {
	t.Helper()
	h := helloOf(name)
	h.Features = []string{protocol.FeatureCUDA}
	return connectAs(t, socket, h)
}

// allocOn makes a storage on a device, counted once, and offers its memory.
func (p *peer) allocOn(device string, bytes uint64, fd *sys.FD) storage {
	p.t.Helper()
	s := storage{bytes: bytes}
	p.must(protocol.OpGrant, protocol.Grant{Bytes: bytes, Chunks: 1, Device: device}, &s.grant)
	s.Serial, s.Generation, s.Index = s.grant.Chunks[0].Serial, 1, s.grant.Chunks[0].Chunk*protocol.ChunkIndices
	_, err := p.call(protocol.OpOffer, protocol.Offer{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil, fd)
	require.NoError(p.t, err)
	require.NoError(p.t, p.fds[1].Reserve(protocol.SessionEntries+int64(s.Index)*protocol.EntrySize, protocol.PageBytes))
	p.entries.SetGeneration(s.Index, 1)
	p.entries.Share(s.Index)
	p.entries.Describe(s.Index, 0, bytes, sys.Monotonic())
	require.NoError(p.t, p.refcounts.Take(s.Index))
	return s
}

func TestMemoryOfADeviceIsKeptAsItsDescriptor(t *testing.T) {
	b := serve(t, nil)
	p, q, blind := withCUDA(t, b.socket, "owner"), withCUDA(t, b.socket, "reader"), connect(t, b.socket, "without")
	fd, same := slab(t)
	s := p.allocOn(gpu, 2<<20, fd)
	require.Zero(t, s.grant.DeviceID)
	require.Zero(t, b.Status().Memory.Granted, "it is not the machine's")
	require.Equal(t, []broker.DeviceStatus{{Device: gpu, Granted: 2 << 20, Held: 2 << 20}}, b.Status().Devices)
	row := list[broker.SegmentRow](p, "segments", "")[0]
	require.Equal(t, "cuda", row.Kind)
	require.Equal(t, gpu, row.Device)

	for _, write := range []bool{false, true} {
		var r protocol.SegmentReply
		fds, err := q.call(protocol.OpSegment, protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial, Write: write}, &r)
		require.NoError(t, err)
		require.Equal(t, protocol.SegmentReply{Bytes: 2 << 20, Device: gpu}, r)
		require.True(t, same(fds[0]))
		wire.CloseAll(fds)
	}
	blind.attach(s.Ref)
	e := blind.refused(protocol.CodeUnsupported, protocol.OpSegment, protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial})
	require.Contains(t, e.Message, gpu)

	p.refused(protocol.CodeBusy, protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial})
	p.refcounts.Drop(s.Index)
	p.must(protocol.OpReturn, protocol.Return{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
	require.Zero(t, b.Status().Devices[0].Granted)
	ev, _ := q.read()
	require.Equal(t, protocol.EventTrim, ev.Event, "the client that mapped it is notified")
}

func TestOffersThatDoNotFitAreRefused(t *testing.T) {
	b := serve(t, nil)
	p, q := withCUDA(t, b.socket, "owner"), withCUDA(t, b.socket, "other")
	fd, _ := slab(t)
	s := p.allocOn(gpu, 2<<20, fd)
	right := protocol.Offer{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}
	cpu := p.alloc(4096)
	for _, c := range []struct {
		by   *peer
		code protocol.Code
		what protocol.Offer
		fds  []*sys.FD
	}{
		{p, protocol.CodeConflict, right, []*sys.FD{fd}},
		{q, protocol.CodeNotFound, right, []*sys.FD{fd}},
		{p, protocol.CodeInvalid, protocol.Offer{Segment: right.Segment, Serial: 1}, []*sys.FD{fd}},
		{p, protocol.CodeInvalid, right, nil},
		{p, protocol.CodeInvalid, right, []*sys.FD{fd, fd}},
		{p, protocol.CodeInvalid, protocol.Offer{Segment: cpu.grant.Segment, Serial: cpu.grant.SegmentSerial}, []*sys.FD{fd}},
		{p, protocol.CodeNotFound, protocol.Offer{Segment: 1 << 31}, []*sys.FD{fd}},
	} {
		_, err := c.by.call(protocol.OpOffer, c.what, nil, c.fds...)
		require.Error(t, err)
		require.Equal(t, c.code, err.(*protocol.Error).Code, "%v", err)
	}
	for _, name := range []string{"cuda:", "GPU-1", "cuda:GPU/1", "cuda:" + string(make([]byte, 60)), "rocm:GPU-1"} {
		p.refused(protocol.CodeInvalid, protocol.OpGrant, protocol.Grant{Bytes: 1, Chunks: 1, Device: name})
	}
}

func TestQuotaIsOfEachDevice(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.DeviceMemory, c.SessionDeviceMemory = 6<<20, 4<<20 })
	p, q := withCUDA(t, b.socket, "p"), withCUDA(t, b.socket, "q")
	grant := func(device string) protocol.Grant { return protocol.Grant{Bytes: 4 << 20, Chunks: 1, Device: device} }
	var g protocol.GrantReply
	p.must(protocol.OpGrant, grant(gpu), &g)
	e := p.refused(protocol.CodeQuota, protocol.OpGrant, grant(gpu))
	require.Contains(t, e.Remedy, "--session-device-memory")
	e = q.refused(protocol.CodeQuota, protocol.OpGrant, grant(gpu))
	require.Contains(t, e.Remedy, "--device-memory")
	require.Contains(t, e.Message, "p (pid", "the largest holders are named")
	q.must(protocol.OpGrant, grant(gpu+"1"), nil)
	p.must(protocol.OpReturn, protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}, nil)
	q.must(protocol.OpGrant, grant(gpu), nil)
}

// A client that deletes what an ended process had set may have its memory at once.
func TestNobodyIsRefusedForWhatTheDeadLeftUnheldOnADevice(t *testing.T) {
	b := serve(t, func(c *broker.Config) { c.DeviceMemory = 2 << 20 })
	p := withCUDA(t, b.socket, "p")
	grant := protocol.Grant{Bytes: 2 << 20, Chunks: 1, Device: gpu}
	for range 20 {
		setter := withCUDA(t, b.socket, "setter")
		fd, _ := slab(t)
		s := setter.allocOn(gpu, 2<<20, fd)
		setter.must(protocol.OpNameSet, nameSet("n", s), nil)
		setter.refcounts.Drop(s.Index)
		setter.must(protocol.OpBye, struct{}{}, nil)
		p.refused(protocol.CodeQuota, protocol.OpGrant, grant)
		p.must(protocol.OpNameDelete, protocol.NameRef{Name: "n"}, nil)
		var g protocol.GrantReply
		p.must(protocol.OpGrant, grant, &g)
		p.must(protocol.OpReturn, protocol.Return{Segment: g.Segment, Serial: g.SegmentSerial}, nil)
	}
}

// A creator may die before it has offered what it was granted, or afterwards.
func TestMemoryOfADeadCreatorIsFreed(t *testing.T) {
	b := serve(t, nil)
	p, q := withCUDA(t, b.socket, "creator"), withCUDA(t, b.socket, "holder")
	fd, same := slab(t)
	s := p.allocOn(gpu, 2<<20, fd)
	p.must(protocol.OpGrant, protocol.Grant{Bytes: 2 << 20, Chunks: 1, Device: gpu}, nil)
	q.attach(s.Ref)
	require.NoError(t, q.refcounts.Take(s.Index))
	p.refcounts.Drop(s.Index)
	p.must(protocol.OpBye, struct{}{}, nil)
	eventually(t, "what was never offered is gone", func() bool { return b.Status().Devices[0].Granted == 2<<20 })
	var r protocol.SegmentReply
	fds, err := q.call(protocol.OpSegment, protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, &r)
	require.NoError(t, err)
	require.True(t, same(fds[0]), "what is held outlives its creator")
	wire.CloseAll(fds)
	q.refcounts.Drop(s.Index)
	eventually(t, "nothing is left", func() bool { return b.Status().Devices[0].Granted == 0 && b.Status().Counts.Segments == 0 })
}

func TestStreamsOfTheDeadReleaseWhoWaits(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "producer"), connect(t, b.socket, "consumer")
	p.file.Store64(protocol.SessionStreams, 41)
	fds, err := q.call(protocol.OpPeer, peerOf(p.hello.Slot, p.hello.Serial), nil)
	require.NoError(t, err)
	defer wire.CloseAll(fds)
	words := q.mapRegion(fds[0], protocol.SessionBytes, false)
	require.EqualValues(t, 41, words.Load64(protocol.SessionStreams))
	p.must(protocol.OpBye, struct{}{}, nil)
	require.EqualValues(t, protocol.StreamPoison|41, words.Load64(protocol.SessionStreams))
	require.EqualValues(t, protocol.StreamPoison, words.Load64(protocol.SessionStreams+8*(protocol.MaxStreams-1)), "one that had not written yet")
}

// The next broker gets a slab from a process that has it, and knows which GPU it is on.
func TestMemoryOfADeviceOutlivesItsBroker(t *testing.T) {
	for _, kind := range kindsOfMemory {
		t.Run(kind, func(t *testing.T) {
			memory := memoryOf(t, kind)
			old, socket, id := first(t, memory)
			p := withCUDA(t, socket, "owner")
			fd, same := slab(t)
			s := p.allocOn(gpu, 2<<20, fd)
			old.kill()
			made := next(t, socket, func(c *broker.Config) { c.MemoryDir = memory })
			q := p.returns(socket, handedOver{"segment", s.grant.SegmentSerial, fd})
			b := made()
			q.resumed()
			require.Equal(t, id, b.ID())
			require.Equal(t, []broker.DeviceStatus{{Device: gpu, Granted: 2 << 20, Held: 2 << 20}}, b.Status().Devices)
			r := withCUDA(t, socket, "reader")
			fds, err := r.call(protocol.OpSegment, protocol.Segment{Segment: s.grant.Segment, Serial: s.grant.SegmentSerial}, nil)
			require.NoError(t, err)
			require.True(t, same(fds[0]))
			wire.CloseAll(fds)
		})
	}
}
