package broker_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/shortdir"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// patience bounds what must happen and takes no time of its own.
const patience = 90 * time.Second

// served is a running broker. stop ends it, as TERM does, and reports what Serve
// returned; ended waits until it ends otherwise.
type served struct {
	*broker.Broker
	socket      string
	stop, ended func() error
}

// serve runs a broker for one test.
func serve(t testing.TB, change func(*broker.Config)) *served {
	t.Helper()
	cfg := broker.Config{Dir: filepath.Join(shortdir.New(t), "run"), Memory: 1 << 30, Version: "test"}
	if change != nil {
		change(&cfg)
	}
	b, err := broker.New(context.Background(), cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- b.Serve(ctx) }()
	s := &served{Broker: b, socket: b.Socket()}
	s.stop = func() error {
		cancel()
		return s.ended()
	}
	s.ended = sync.OnceValue(func() error {
		select {
		case err := <-result:
			return err
		case <-time.After(patience):
			panic("broker does not end")
		}
	})
	t.Cleanup(func() { require.NoError(t, s.stop()) })
	return s
}

// peer is a client of the broker, made of nothing but the protocol.
type peer struct {
	t      testing.TB
	w      *wire.Conn
	id     uint64
	hello  protocol.HelloReply
	events []json.RawMessage

	fds          []*sys.FD // what hello gave
	broker, file shm.Region
	bellFile     shm.Region
	bells        shm.Bells
	brokerFile   shm.Region // the broker's session file
	chunks       handles.Chunks
	refcounts    handles.Refcounts
	entries      handles.Entries
	nextLane     uint64
}

func dial(t testing.TB, socket string) *wire.Conn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return wire.New(c.(*net.UnixConn))
}

func helloOf(name string) protocol.Hello {
	return protocol.Hello{Protocol: protocol.Version, Layout: protocol.Layout, PID: os.Getpid(),
		Client: protocol.Client{Name: name, Language: "go", Version: "test"}}
}

// connect opens a session and maps its files.
func connect(t testing.TB, socket, name string) *peer {
	t.Helper()
	return connectAs(t, socket, helloOf(name))
}

func connectAs(t testing.TB, socket string, h protocol.Hello, files ...*sys.FD) *peer {
	t.Helper()
	p := &peer{t: t, w: dial(t, socket), nextLane: protocol.SessionLanes}
	fds, err := p.call(protocol.OpHello, h, &p.hello, files...)
	require.NoError(t, err)
	p.greeted(fds)
	return p
}

// greeted maps what came with the answer to hello.
func (p *peer) greeted(fds []*sys.FD) {
	p.t.Helper()
	p.fds = fds
	p.t.Cleanup(func() { wire.CloseAll(p.fds) })
	if len(fds) == 0 {
		return
	}
	require.Len(p.t, fds, 4)
	p.broker = p.mapRegion(fds[0], protocol.BrokerBytes, false)
	p.file = p.mapRegion(fds[1], protocol.SessionBytes, true)
	p.bellFile = p.mapRegion(fds[2], protocol.BellBytes, true)
	p.bells = shm.NewBells(p.bellFile)
	p.brokerFile = p.mapRegion(fds[3], protocol.SessionBytes, false)
	p.chunks = handles.NewChunks(p.broker)
	p.refcounts = handles.NewRefcounts(p.file)
	p.entries = handles.NewEntries(p.file)
}

func (p *peer) mapRegion(fd *sys.FD, bytes int, write bool) shm.Region {
	p.t.Helper()
	b, err := sys.Map(fd, bytes, write)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { sys.Unmap(b) })
	return shm.NewRegion(b)
}

// send writes a request without reading the reply.
func (p *peer) send(op string, fields any, fds ...*sys.FD) uint64 {
	p.t.Helper()
	p.id++
	require.NoError(p.t, p.w.Request(p.id, op, fields, fds...))
	return p.id
}

// call makes a request and decodes its reply; events on the way are kept.
func (p *peer) call(op string, fields, reply any, fds ...*sys.FD) ([]*sys.FD, error) {
	p.t.Helper()
	id := p.send(op, fields, fds...)
	e, got := p.answer()
	require.Equal(p.t, id, e.ID)
	if e.Error != nil {
		require.Empty(p.t, got)
		return nil, e.Error
	}
	if reply != nil {
		require.NoError(p.t, json.Unmarshal(e.OK, reply))
	}
	return got, nil
}

// answer returns the next frame that is no event.
func (p *peer) answer() (protocol.Envelope, []*sys.FD) {
	p.t.Helper()
	e, fds := p.read()
	for e.Event != "" {
		e, fds = p.read()
	}
	return e, fds
}

// read returns the next frame.
func (p *peer) read() (protocol.Envelope, []*sys.FD) {
	p.t.Helper()
	p.w.SetReadDeadline(time.Now().Add(patience))
	data, fds, err := p.w.Read()
	require.NoError(p.t, err)
	var e protocol.Envelope
	require.NoError(p.t, json.Unmarshal(data, &e))
	if e.Event != "" {
		p.events = append(p.events, append(json.RawMessage(nil), data...))
	}
	return e, fds
}

// must makes a request that has to succeed and takes no descriptors.
func (p *peer) must(op string, fields, reply any) {
	p.t.Helper()
	fds, err := p.call(op, fields, reply)
	require.NoError(p.t, err)
	wire.CloseAll(fds)
}

// refused makes a request that has to fail with a code.
func (p *peer) refused(code protocol.Code, op string, fields any) *protocol.Error {
	p.t.Helper()
	_, err := p.call(op, fields, nil)
	require.Error(p.t, err)
	e := err.(*protocol.Error)
	require.Equal(p.t, code, e.Code, "%v", e)
	require.NotEmpty(p.t, e.Message)
	require.NotEmpty(p.t, e.Remedy)
	return e
}

// storage is one storage of a peer.
type storage struct {
	protocol.Ref
	grant  protocol.GrantReply
	region shm.Region
	bytes  uint64
}

// alloc takes a segment of its own for one storage, counted once.
func (p *peer) alloc(bytes uint64) storage {
	p.t.Helper()
	var g protocol.GrantReply
	fds, err := p.call(protocol.OpGrant, protocol.Grant{Bytes: bytes, Chunks: 1}, &g)
	require.NoError(p.t, err)
	require.Len(p.t, fds, 1)
	defer fds[0].Close()
	require.NoError(p.t, fds[0].Reserve(0, int64(g.Bytes)))
	s := storage{grant: g, region: p.mapRegion(fds[0], int(g.Bytes), true), bytes: bytes}
	s.Serial, s.Generation, s.Index = g.Chunks[0].Serial, 1, g.Chunks[0].Chunk*protocol.ChunkIndices
	require.NoError(p.t, p.fds[1].Reserve(protocol.SessionEntries+int64(s.Index)*protocol.EntrySize, protocol.PageBytes))
	p.entries.SetGeneration(s.Index, 1)
	p.entries.Share(s.Index)
	p.entries.Describe(s.Index, 0, bytes, sys.Monotonic())
	require.NoError(p.t, p.refcounts.Take(s.Index))
	return s
}

// second makes another storage in the segment of one, counted once.
func (p *peer) second(of storage, n uint32, offset, bytes uint64) storage {
	s := of
	s.Index += n
	p.entries.SetGeneration(s.Index, 1)
	p.entries.Share(s.Index)
	p.entries.Describe(s.Index, offset, bytes, sys.Monotonic())
	require.NoError(p.t, p.refcounts.Take(s.Index))
	s.bytes = bytes
	return s
}

func (s storage) ref() protocol.StorageRef {
	return protocol.StorageRef{Index: s.Index, Serial: s.Serial, Generation: s.Generation}
}

func (p *peer) attach(r protocol.Ref) protocol.AttachAnswer {
	p.t.Helper()
	var a protocol.AttachReply
	p.must(protocol.OpAttach, protocol.Attach{Chunks: []protocol.AttachChunk{{Chunk: r.Index / protocol.ChunkIndices, Serial: r.Serial}}}, &a)
	require.Len(p.t, a.Chunks, 1)
	require.Nil(p.t, a.Chunks[0].Error)
	return a.Chunks[0]
}

// cannotAttach says that a session is not attached to a chunk, and why.
func (p *peer) cannotAttach(code protocol.Code, chunk uint32, serial uint64) {
	p.t.Helper()
	var a protocol.AttachReply
	p.must(protocol.OpAttach, protocol.Attach{Chunks: []protocol.AttachChunk{{Chunk: chunk, Serial: serial}}}, &a)
	require.Len(p.t, a.Chunks, 1)
	require.NotNil(p.t, a.Chunks[0].Error)
	require.Equal(p.t, code, a.Chunks[0].Error.Code)
	require.NotEmpty(p.t, a.Chunks[0].Error.Remedy)
}

// writer sends in one topic, as a client does but without any waiting.
type writer struct {
	p    *peer
	info protocol.TopicInfo
	lane shm.Lane
	num  uint32
	inc  uint64 // incarnation
	at   uint64
	held map[uint64][]uint32
}

func (p *peer) open(r protocol.TopicOpenRequest) protocol.TopicInfo {
	p.t.Helper()
	var info protocol.TopicInfo
	p.must(protocol.OpTopicOpen, r, &info)
	return info
}

func ref(info protocol.TopicInfo) protocol.TopicRef {
	return protocol.TopicRef{Topic: info.Topic, ID: info.ID}
}

func (p *peer) writer(info protocol.TopicInfo) *writer {
	p.t.Helper()
	bytes := protocol.LaneBytes(info.Slots, info.Stride)
	at := p.nextLane
	p.nextLane += bytes
	require.NoError(p.t, p.fds[1].Reserve(int64(at), int64(bytes)))
	lane, err := shm.NewLane(p.file, at, info.Slots, info.Stride)
	require.NoError(p.t, err)
	lane.Init(info.ID)
	var r protocol.TopicWriteReply
	p.must(protocol.OpTopicWrite, protocol.TopicWrite{TopicRef: ref(info), Offset: at}, &r)
	return &writer{p, info, lane, r.Lane, r.Incarnation, at, map[uint64][]uint32{}}
}

// post publishes the next message; the one that leaves is un-named.
func (w *writer) post(body string, flags uint32, named []protocol.Ref, nested ...protocol.Ref) uint64 {
	w.p.t.Helper()
	i := w.lane.Head() + 1
	var words []uint64
	for _, r := range append(append([]protocol.Ref{}, named...), nested...) {
		require.NoError(w.p.t, w.p.refcounts.Take(r.Index))
		w.held[i] = append(w.held[i], r.Index)
	}
	for _, r := range named {
		words = shm.AppendRef(words, r)
	}
	words = shm.AppendBytes(words, []byte(body))
	w.lane.Write(i, &shm.SlotHead{Stamp: sys.Monotonic(), Nref: uint16(len(named)), Body: uint32(len(body)), Flags: flags}, words)
	w.lane.Publish(i)
	if old := i - uint64(w.info.Depth); i > uint64(w.info.Depth) {
		w.lane.Unname(old)
		for _, index := range w.held[old] {
			w.p.refcounts.Drop(index)
		}
		delete(w.held, old)
	}
	return i
}

// drop counts down what a lane named that the broker has taken over.
func (w *writer) drop() {
	for _, indices := range w.held {
		for _, index := range indices {
			w.p.refcounts.Drop(index)
		}
	}
	clear(w.held)
}

// bye closes the session and tells whether its refcounts still count anything.
func (p *peer) bye() bool {
	p.t.Helper()
	var r protocol.ByeReply
	p.must(protocol.OpBye, struct{}{}, &r)
	return r.Held
}

// laneOf maps a lane of a topic's peers as a reader does.
func (p *peer) laneOf(info protocol.TopicInfo, l laneOf) shm.Lane {
	p.t.Helper()
	fds, err := p.call(protocol.OpPeer, peerOf(l.Slot, l.Serial), nil)
	require.NoError(p.t, err)
	require.Len(p.t, fds, 1)
	defer wire.CloseAll(fds)
	lane, err := shm.NewLane(p.mapRegion(fds[0], protocol.SessionBytes, false), l.Offset, info.Slots, info.Stride)
	require.NoError(p.t, err)
	return lane
}

// rung returns the value of the peer's own bell.
func (p *peer) rung() uint32 { return p.bells.Parking(p.hello.Slot).Bell() }

// eventually asks until it is so.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	require.Eventually(t, f, patience, 2*time.Millisecond, what)
}

// freed tells whether nothing is left of any segment. The pages of one whose owner has ended go
// back as soon as nothing held lies on them; segment and session file stay until the collector has looked at
// every storage of it, for which it may come again.
func freed(st broker.Status) bool { return st.Memory.Granted == 0 && st.Counts.Segments == 0 }

func list[Row any](p *peer, what, pattern string) (rows []Row) {
	p.t.Helper()
	cursor := ""
	for {
		var r struct {
			Rows   []Row  `json:"rows"`
			Cursor string `json:"cursor"`
		}
		p.must(protocol.OpList, map[string]any{"what": what, "pattern": pattern, "cursor": cursor}, &r)
		rows = append(rows, r.Rows...)
		if r.Cursor == "" {
			return rows
		}
		cursor = r.Cursor
	}
}

func ptr[T any](v T) *T { return &v }
