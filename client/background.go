package client

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

func (c *Client) work() {
	often := time.NewTicker(compareEvery)
	defer often.Stop()
	b := c.jobs
	for {
		select {
		case <-b.stop:
			return
		case <-often.C:
			c.compare()
			continue
		case <-b.wake:
		}
		now := b.take()
		c.carryOut(&now)
		c.tellClaims(func(op string, body any) error {
			_, err := c.link.call(context.Background(), op, body, nil)
			return err
		})
	}
}

func (c *Client) carryOut(d *due) {
	if d.compare {
		c.compare()
	}
	if d.custody {
		c.takeCustody()
	}
	if d.collect {
		c.collect((*handles.Pool).CollectIdle)
	}
	if d.forgetPeers {
		c.forgetPeers()
	}
	missing := slices.DeleteFunc(slices.Collect(maps.Keys(d.peers)), func(s protocol.PeerSession) bool { return c.pages.known(s.Slot, s.Serial) != nil })
	if len(missing) > 0 {
		c.mapPeers(context.Background(), missing)
	}
}

func (c *Client) keepConnected() {
	for {
		select {
		case <-c.jobs.stop:
			return
		case <-c.link.away():
			if c.link.isClosed() || !c.reconnect() {
				return
			}
		}
	}
}

// reconnect tries until a broker takes this session back: the same one, to which
// it was only disconnected, or a new one, which is given all that is mapped
// here. It returns false when the client was closed or its session is lost.
func (c *Client) reconnect() bool {
	for pause := reconnectSoon; ; pause = min(2*pause, reconnectLate) {
		if c.pages.isOver() || c.pages.isClosed() {
			why := errStopped
			if c.life.evicted.Load() || c.pages.isEvicted() {
				why = errEvicted
			}
			c.lose(why)
			return false
		}
		c.goOn()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		ctl, err := c.resume(ctx)
		cancel()
		if ctl != nil {
			if !c.link.adopt(ctl) {
				return false
			}
			c.hub.wakeAll()
			// What was asked for while no broker was there, claims too.
			c.jobs.post(func(d *due) { d.compare = true })
			go c.returnStray()
			return true
		}
		if isFinal(err) {
			c.lose(err)
			return false
		}
		select {
		case <-time.After(pause):
		case <-c.jobs.stop:
			return false
		}
	}
}

// Pauses between attempts to reconnect to a broker that answers.
const (
	reconnectSoon = 20 * time.Millisecond
	reconnectLate = time.Second
)

// resume tries once.
func (c *Client) resume(ctx context.Context) (*control, error) {
	p := c.pages
	return c.link.resume(ctx, &protocol.Resume{Instance: p.instance, Serial: p.serial, Secret: p.secret}, c.restore)
}

// restore hands a new broker the descriptors of everything mapped here.
func (c *Client) restore(ctx context.Context, ask request) error {
	p := c.pages
	c.restores.Add(1)            // SYNC restores: before anything is listed; pairs with arrived
	unanswered := c.unanswered() // before the groups are listed: a reader that is missing here has its group there
	items := []protocol.RestoreItem{{Role: protocol.RestoreBroker}, {Role: protocol.RestoreBell}, {Role: protocol.RestoreSession, Serial: p.serial}}
	fds := []*sys.FD{p.brokerFD, p.bellFD, p.sessionFD}
	held := []*sys.FD(nil) // closed meanwhile, they are closed behind this
	defer func() {
		for _, fd := range held {
			fd.Release()
		}
	}()
	add := func(role string, serial uint64, fd *sys.FD) {
		if _, err := fd.Acquire(); err == nil {
			held = append(held, fd)
			items = append(items, protocol.RestoreItem{Role: role, Serial: serial})
			fds = append(fds, fd)
		}
	}
	custody, sessions := p.inventory()
	var segments []uint64 // that are mapped, without a descriptor
	for k, f := range custody {
		add(k.role, k.serial, f.fd)
	}
	c.mu.Lock()
	for serial, s := range c.segments {
		if fd := s.FD(); fd != nil {
			add(protocol.RestoreSegment, serial, fd)
		} else if custody[fileKey{protocol.RestoreSegment, serial}].fd == nil {
			segments = append(segments, serial)
		}
	}
	for _, t := range c.topics {
		for _, g := range t.groups.Load().groups {
			add(protocol.RestoreGroup, g.id, g.fd)
		}
	}
	c.mu.Unlock()
	const batch = 32
	for len(items) > 0 {
		n := min(batch, len(items))
		if _, err := ask(ctx, protocol.OpRestore, protocol.Restore{Items: items[:n]}, nil, fds[:n]...); err != nil {
			return err
		}
		items, fds = items[n:], fds[n:]
	}
	var ok protocol.HelloReply
	more, err := ask(ctx, protocol.OpRestored, protocol.Restored{Unanswered: unanswered, Sessions: sessions, Segments: segments}, &ok)
	wire.CloseAll(more)
	if err == nil && !ok.Resumed {
		err = protocol.ErrBrokerLost
	}
	return err
}
