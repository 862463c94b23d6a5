package client

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/sparse"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Version is reported to the broker; the build sets it.
var Version = "dev"

// Client is a session with a broker. See the package comment for who may use it
// when. Make one with Connect, end it with Close.
type Client struct {
	opts  options
	pages *pages
	pool  *handles.Pool
	pools poolSet
	hub   *hub
	trace bool
	// devices is nil without WithDevices.
	devices *deviceSet

	openMu   turn // opens and closes of topics take turns
	got      got
	claiming sync.RWMutex // held for reading from the look whether the client is closed to a claim or its acknowledgement

	life life
	link *link

	mu         sync.Mutex // guards what follows
	closed     bool
	topics     map[uint64]*topic
	segments   map[uint64]*segmentEntry // by serial
	granting   sync.RWMutex             // read: a grant is asked for or made ready; see returnStray
	claims     []uint64                 // leases that were opened here, of which the broker is not told yet
	joining    map[uint64]*joining      // by number of the reader
	counting   map[uint64]struct{}      // by place: records of readers
	forReaders map[uint32]uint64        // what the row of a session that is over counts for readers of its lanes

	unmapOnce sync.Once // see unmapReleased

	attached sparse.Table[attachment] // by chunk
	attachMu turn                     // one goroutine attaches at a time

	room      room
	set       atomic.Bool      // up: all of the above that does not change is there
	openings  atomic.Uint64    // the number of the last
	restores  atomic.Uint64    // how many brokers have asked for the files that are here
	owed      map[fileKey]bool // what the broker may lack of them; pages.peerMu guards it
	handovers atomic.Uint64
	readers   atomic.Uint64 // the number that the last reader has
	bytesSent atomic.Uint64
	jobs      *jobs
}

// Connect opens a session, starting the user's broker if none runs. Without a
// deadline in ctx it waits at most 30 s. Errors: ErrNoBroker, ErrVersion,
// ErrPermissionDenied, ErrTooMany, ErrInvalid.
func Connect(ctx context.Context, opts ...Option) (*Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	return connect(ctx, o)
}

func connect(ctx context.Context, o options) (*Client, error) {
	ctx, cancel := withDefaultTimeout(ctx, 30*time.Second)
	defer cancel()
	socket, named, err := address.Resolve(o.address)
	if err != nil {
		return nil, err
	}
	c := &Client{opts: o, jobs: newJobs(), openMu: newTurn(), attachMu: newTurn(), topics: map[uint64]*topic{},
		segments: map[uint64]*segmentEntry{}, joining: map[uint64]*joining{}, counting: map[uint64]struct{}{}, trace: os.Getenv("BATON_TRACE") == "1"}
	c.link = newLink(&c.life, brokerPlace{socket, named, o.start, o.binary}, o.hello(), c.onEvent)
	hello, fds, err := c.link.open(ctx)
	if err != nil {
		return nil, err
	}
	err = protocol.This("client", Version).CheckPeer(
		protocol.Speaker{Role: "broker", Build: hello.Version, Speaks: hello.Protocol, Layout: hello.Layout})
	if err != nil {
		wire.CloseAll(fds)
		c.link.leave()
		return nil, err
	}
	if c.pages, err = openPages(hello, fds); err != nil {
		c.link.leave()
		return nil, err
	}
	if c.trace {
		c.pages.session.Store32(protocol.SessionTraceOn, 1) // the broker shows traces then
	}
	c.hub = newHub(c.pages, &c.life)
	c.pool = handles.NewPool(source{c: c}, c.pages.row, c.freeTest(), hello.Limits)
	if o.modest {
		c.pool.Modest()
	}
	if o.devices != nil {
		c.devices = newDeviceSet(c, o.devices)
	}
	go c.work()
	go c.keepConnected()
	c.set.Store(true)
	return c, nil
}

// Namespace returns where this client's names live.
func (c *Client) Namespace() string { return c.opts.namespace }

// Instance identifies the broker's memory; handles of another are refused.
func (c *Client) Instance() string { return c.pages.instance }

// Session returns the serial by which listings name this session.
func (c *Client) Session() uint64 { return c.pages.serial }

// Broker asks the broker a read-only question (an op of docs/protocol.md, such
// as "status" or "list") and decodes the answer into reply.
func (c *Client) Broker(ctx context.Context, op string, body, reply any) error {
	fds, err := c.link.call(ctx, op, body, reply)
	wire.CloseAll(fds)
	return err
}

func (c *Client) onEvent(event string) {
	if !c.set.Load() {
		return // nothing is here yet that it could be about
	}
	switch event {
	case protocol.EventTrim:
		c.jobs.post(func(d *due) { d.compare = true })
	case protocol.EventEvicted:
		c.life.evicted.Store(true)
	case protocol.EventStopped:
		c.hear()
	case protocol.EventRoom:
		c.room.told(c.hub)
	case protocol.EventCustody:
		c.jobs.post(func(d *due) { d.custody = true })
	case protocol.EventCollect:
		c.jobs.post(func(d *due) { d.collect = true })
	}
}

// Collect looks for storages that nobody holds any more and gives empty memory
// back to the broker, which otherwise stays here, warm, for the next tensors.
// It returns the bytes given back.
func (c *Client) Collect() uint64 { return c.collect((*handles.Pool).Collect) }

func (c *Client) collect(pool func(*handles.Pool, context.Context) uint64) uint64 {
	c.settle()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if c.devices != nil {
		c.devices.lend.sweep(ctx)
	}
	given := uint64(0)
	c.eachPool(func(p *handles.Pool) { given += pool(p, ctx) })
	return given
}

// settle does what frees storages: it withdraws queue messages that are done,
// and takes note of DLPack tensors that C code has deleted.
func (c *Client) settle() {
	for _, t := range c.allTopics() {
		t.withdrawDone()
	}
	c.reap()
}

// allTopics lists what is open, to be looked through without the mutex.
func (c *Client) allTopics() []*topic {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.topics))
}

// reap takes note of DLPack tensors that C code has deleted.
func (c *Client) reap() {
	c.pages.dl.reap(func(cookie uint64) {
		if cookie&deviceCookie != 0 {
			c.devices.deleted(cookie)
			return
		}
		if c.pages.row.Count(uint32(cookie)) == 0 {
			c.offer(uint32(cookie))
		}
	})
}

// countUp counts one reference up in the own row. A client that ends its session, and a
// broker that is being stopped, look at the row behind that: what is counted later is undone.
//
// SYNC limbo: looked at behind the count.
func (c *Client) countUp(index uint32) error {
	for {
		if err := c.pages.row.Take(index); err != nil {
			return c.life.refused(err)
		}
		limbo := c.life.limbo.Load()
		err := c.life.ended()
		if limbo == nil && err == nil {
			return nil
		}
		c.pages.row.Drop(index)
		if err == nil {
			err = limbo.wait()
		}
		if err != nil {
			return err
		}
	}
}

// drop counts a reference down and offers the storage for recycling.
func (c *Client) drop(index uint32) {
	if c.pages.row.Drop(index) {
		c.offer(index)
		c.room.released(c.hub)
	}
}

// offer lets the pool of a storage that this session does not hold any more test
// whether it is free.
func (c *Client) offer(index uint32) {
	c.pool.Dropped(index)
	c.pools.dropped(index)
	if c.devices != nil {
		c.devices.lentDropped(index)
	}
}

// Stats is what this process has and did.
type Stats struct {
	handles.PoolStats
	Handovers uint64 // messages sent
	BytesSent uint64 // bytes of tensors handed over, none of them copied
	Segments  int    // mapped here
	Topics    int
}

// Stats returns the figures.
func (c *Client) Stats() Stats {
	s := Stats{PoolStats: c.pool.Stats(), Handovers: c.handovers.Load(), BytesSent: c.bytesSent.Load()}
	c.pools.addStats(&s.PoolStats)
	c.mu.Lock()
	s.Segments, s.Topics = len(c.segments), len(c.topics)
	c.mu.Unlock()
	return s
}
