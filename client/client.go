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
	"github.com/baton-ipc/baton/internal/sys"
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
	dl    *exports
	trace bool
	// devices is nil without WithDevices.
	devices *deviceSet

	openMu   turn // opens and closes of topics take turns
	got      got
	claiming sync.RWMutex // held for reading from the look whether the client is closed to a claim or its acknowledgement

	mu         sync.Mutex // guards what follows
	ctl        *control
	lost       chan struct{} // closed when ctl is replaced; a new one each time
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
	set       atomic.Bool           // up: all of the above that does not change is there
	openings  atomic.Uint64         // the number of the last
	limbo     atomic.Pointer[limbo] // while a broker that is being stopped, or evicts the session, decides on it
	evicted   atomic.Bool           // the broker has said that an operator ends this session
	epoch     atomic.Uint64         // counts reconnections
	restores  atomic.Uint64         // how many brokers have asked for the files that are here
	owed      map[fileKey]bool      // what the broker may lack of them; pages.peerMu guards it
	handovers atomic.Uint64
	readers   atomic.Uint64 // the number that the last reader has
	bytesSent atomic.Uint64
	background
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
	var err error
	if o.socket, o.named, err = address.Resolve(o.address); err != nil {
		return nil, err
	}
	c := &Client{opts: o, openMu: newTurn(), attachMu: newTurn(), lost: make(chan struct{}), topics: map[uint64]*topic{},
		segments: map[uint64]*segmentEntry{}, joining: map[uint64]*joining{}, counting: map[uint64]struct{}{}, trace: os.Getenv("BATON_TRACE") == "1", dl: &exports{}}
	hello, fds, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	err = protocol.This("client", Version).CheckPeer(
		protocol.Speaker{Role: "broker", Build: hello.Version, Speaks: hello.Protocol, Layout: hello.Layout})
	if err != nil {
		wire.CloseAll(fds)
		c.ctl.leave()
		return nil, err
	}
	if c.pages, err = openPages(hello, fds, c.dl); err != nil {
		c.ctl.leave()
		return nil, err
	}
	if c.trace {
		c.pages.session.Store32(protocol.SessionTraceOn, 1) // the broker shows traces then
	}
	c.hub = newHub(c.pages)
	c.pool = handles.NewPool(source{c: c}, c.pages.row, c.freeTest(), hello.Limits)
	if o.modest {
		c.pool.Modest()
	}
	if o.devices != nil {
		c.devices = newDeviceSet(c, o.devices)
	}
	c.startBackground()
	c.set.Store(true)
	return c, nil
}

// open connects to a broker and asks it for a session. One that goes away meanwhile is
// followed by another.
func (c *Client) open(ctx context.Context) (*protocol.HelloReply, []*sys.FD, error) {
	for pause := dialSoon; ; pause = min(2*pause, dialLate) {
		conn, err := dial(ctx, &c.opts)
		if err != nil {
			return nil, nil, err
		}
		c.ctl = newControl(wire.New(conn), c.onEvent, c.onLate)
		go c.ctl.run()
		var hello protocol.HelloReply
		fds, err := c.greet(ctx, c.ctl, nil, &hello)
		if err == nil {
			return &hello, fds, nil
		}
		if err == wire.ErrNoDescriptors {
			c.ctl.leave()
			return nil, nil, err
		}
		c.ctl.close()
		if !isLost(err) {
			return nil, nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, err
		}
	}
}

func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

// greet says hello.
func (c *Client) greet(ctx context.Context, ctl *control, resume *protocol.Resume, ok *protocol.HelloReply) ([]*sys.FD, error) {
	file := aliveFile()
	var features []string
	if c.opts.devices != nil {
		features = []string{protocol.FeatureCUDA}
	}
	return ctl.call(ctx, protocol.OpHello, &protocol.Hello{
		Features: features,
		Protocol: protocol.Version, Layout: protocol.Layout,
		Client:    protocol.Client{Name: c.opts.name, Language: "go", Version: Version},
		Namespace: c.opts.namespace, PID: os.Getpid(), Resume: resume, Alive: len(file) > 0,
	}, ok, file...)
}

// awaitBroker is how long a call waits for the next broker at most.
const awaitBroker = 30 * time.Second

// call makes a request of the broker. While the broker is away it waits for the
// next one until ctx ends, 30 s at most, then returns ErrBrokerLost.
func (c *Client) call(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	ctx, cancel := withDefaultTimeout(ctx, awaitBroker)
	defer cancel()
	tooLong := time.NewTimer(awaitBroker)
	defer tooLong.Stop()
	fds, _, err := c.ask(ctx, tooLong.C, op, body, ok, send...)
	return fds, err
}

// callNoting is call, without descriptors. It tells whether another broker was asked before,
// and went away before it had answered.
func (c *Client) callNoting(ctx context.Context, op string, body, ok any) (before bool, err error) {
	ctx, cancel := withDefaultTimeout(ctx, awaitBroker)
	defer cancel()
	tooLong := time.NewTimer(awaitBroker)
	defer tooLong.Stop()
	_, before, err = c.ask(ctx, tooLong.C, op, body, ok)
	return before, err
}

// callUntil is call without a time of its own: where ctx has no end, until a broker
// has answered, or the session is over.
func (c *Client) callUntil(ctx context.Context, op string, body, ok any, send ...*sys.FD) ([]*sys.FD, error) {
	fds, _, err := c.ask(ctx, nil, op, body, ok, send...)
	return fds, err
}

// ask makes a request of the broker, and of the next one where it goes away. It waits
// for one until ctx or the time for that ends. before tells whether one was asked that has
// gone away before it had answered.
func (c *Client) ask(ctx context.Context, tooLong <-chan time.Time, op string, body, ok any, send ...*sys.FD) (fds []*sys.FD, before bool, err error) {
	for {
		c.mu.Lock()
		ctl, lost, closed := c.ctl, c.lost, c.closed
		c.mu.Unlock()
		if closed {
			return nil, before, errClosed("client")
		}
		if err := c.hub.lost.Load(); err != nil {
			return nil, before, err
		}
		over := ctl.over()
		fds, err := ctl.call(ctx, op, body, ok, send...)
		if err == nil || !isLost(err) {
			return fds, before, err
		}
		before = before || !over
		select {
		case <-lost: // reconnected: ask the new connection
		case <-ctx.Done():
			return nil, before, err
		case <-tooLong:
			return nil, before, err
		}
	}
}

// away is closed once the connection of this moment to the broker is down.
func (c *Client) away() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ctl.done
}

// brokerAway tells whether the connection is down right now.
func (c *Client) brokerAway() bool {
	select {
	case <-c.away():
		return true
	default:
		return false
	}
}

// untilAway returns a context that ends with the connection to the broker, too, and has
// ErrBrokerLost as its cause then.
func (c *Client) untilAway(ctx context.Context) (context.Context, context.CancelFunc) {
	away := c.away()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-away:
			cancel(protocol.ErrBrokerLost)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// live returns ErrClosed once the client was closed, ErrSessionLost once its session
// is lost.
func (c *Client) live() error {
	if !c.hub.ended.Load() {
		return nil
	}
	if err := c.hub.lost.Load(); err != nil && !c.hub.closed.Load() {
		return err
	}
	return errClosed("client")
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
	fds, err := c.call(ctx, op, body, reply)
	wire.CloseAll(fds)
	return err
}

func (c *Client) onEvent(event string, _ []byte) {
	if !c.set.Load() {
		return // nothing is here yet that it could be about
	}
	switch event {
	case protocol.EventTrim:
		c.post(func(d *due) { d.compare = true })
	case protocol.EventEvicted:
		c.evicted.Store(true)
	case protocol.EventStopped:
		c.hear()
	case protocol.EventRoom:
		c.room.told(c.hub)
	case protocol.EventCustody:
		c.post(func(d *due) { d.custody = true })
	case protocol.EventCollect:
		c.post(func(d *due) { d.collect = true })
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
	c.dl.reap(func(cookie uint64) {
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
			return c.refused(err)
		}
		limbo := c.limbo.Load()
		err := c.live()
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

// refused is why something is refused: that the session has ended, where it has.
// For then the own row may look full, as the broker has cleared it, and what is
// dropped after that lowers it below zero; and what a lease of the session
// protected is gone.
func (c *Client) refused(why error) error {
	if ended := c.live(); ended != nil {
		return ended
	}
	return why
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
