package client

import (
	"context"
	"time"

	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// closeTime is how long Close waits for a broker. What it could not do goes on in
	// the background.
	closeTime = 2 * time.Second
	// closedTry bounds one attempt in the background.
	closedTry = 5 * time.Second
	// closedForNothing is how long a client that holds nothing looks for a broker to
	// tell that its session is over. What its lanes name stays counted, for readers.
	closedForNothing = 30 * time.Second
	// keeperLook is how often a keeper gives up what is held no more.
	keeperLook = 2 * time.Second
)

// Close ends the session. What was sent is still received. Tensors, slices and DLPack
// tensors that were not released stay valid, and their bytes as they are, until they
// are; what is released then is recycled as ever. All else is unmapped: memory that
// nothing here holds at once, the session's own pages when the Client and what came
// from it are garbage. While no broker runs Close returns within two seconds, and the
// next broker is told when it is there.
func (c *Client) Close() error {
	if !c.link.close() {
		return nil
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	e := &ending{c: c, lanes: c.quiesce()}
	if c.devices != nil {
		c.devices.close()
	}
	c.jobs.end()
	c.hub.wakeAll()
	over, err := e.advance(ctx)
	if over {
		e.finish()
	} else {
		go e.linger()
	}
	if e.said || isLost(err) || protocolCode(err) == protocol.CodeTimeout {
		return nil // it goes on, the next broker is told, or the process's death says the same
	}
	return err
}

// quiesce ends what writes to lanes and groups: once the session is over for the
// broker, no reader would see a message, and a claim would stay. The channel gives how
// often the lanes name each storage, as soon as no send waits for an answer of the
// broker any more.
func (c *Client) quiesce() <-chan map[uint32]uint64 {
	c.claiming.Lock()
	c.life.close()
	c.hub.wakeAll()
	c.claiming.Unlock()
	c.endPools(errClosed("client"))
	lanes := make(chan map[uint32]uint64, 1)
	if c.life.lost.Load() != nil {
		lanes <- nil // emptyLanes sees to them
		return lanes
	}
	topics := c.allTopics()
	go func() { lanes <- endLanes(topics) }()
	return lanes
}

// endLanes ends the writing of lanes, which are the broker's to read, and gives how often
// they name each storage.
func endLanes(of []*topic) map[uint32]uint64 {
	n := map[uint32]uint64{}
	for _, t := range of {
		t.mu.must()
		t.writing = false
		for _, kept := range t.kept {
			for _, index := range kept {
				n[index]++
			}
		}
		t.kept = nil
		t.mu.end()
	}
	return n
}

// ending is the way of a closed client's session to its end. One goroutine at a time
// goes it: that of Close, then linger.
type ending struct {
	c     *Client
	lanes <-chan map[uint32]uint64 // gives named, once; nil when it has
	named map[uint32]uint64        // what the lanes name, until it is counted down
	said  bool                     // the broker has heard bye
	kept  bool                     // the client is its instance's keeper
}

// advance goes as far as it can now, and tells whether the session is over here. No
// error: it is a keeper that still holds.
func (e *ending) advance(ctx context.Context) (over bool, err error) {
	c := e.c
	if c.life.lost.Load() != nil || c.pages.isOver() {
		e.settle(ctx)
		e.countDown()
		return true, nil
	}
	if e.stopped() {
		return true, nil
	}
	if !e.said {
		e.settle(ctx) // what the lanes name stays counted otherwise, so the session stays as well
		c.tellClaims(func(op string, body any) error { return c.link.askNow(ctx, op, body, nil) })
		held, err := e.bye(ctx)
		crashpoint.At("bye-said")
		if err != nil {
			return false, err
		}
		e.said = true
		counted := e.countDown()
		crashpoint.At("bye-counted")
		if counted && held {
			held, err = e.bye(ctx)
		}
		if !held || err != nil {
			return err == nil, err
		}
	} else if e.look() {
		e.countDown()
	}
	return e.keep(ctx)
}

// stopped tells whether the broker was stopped and nothing is left to be told: the next one
// with the same memory directory looks at the row itself.
func (e *ending) stopped() bool {
	c := e.c
	if c.life.limbo.Load() == nil || !c.link.isAway() || !c.pages.isClosed() {
		return false
	}
	return e.said || e.look() && len(e.named) == 0
}

// look tells whether it is known what the lanes name: no send waits for an answer.
func (e *ending) look() bool {
	select {
	case e.named = <-e.lanes:
		e.lanes = nil
	default:
	}
	return e.lanes == nil
}

// settle looks, and waits for it.
func (e *ending) settle(ctx context.Context) {
	if e.look() {
		return
	}
	select {
	case e.named = <-e.lanes:
		e.lanes = nil
	case <-ctx.Done():
	}
}

// countDown counts down what the lanes named: the broker counts for it now. It tells
// whether they were still counted.
func (e *ending) countDown() bool {
	if e.named == nil {
		return false
	}
	for index, n := range e.named {
		for range n {
			e.c.pages.row.Drop(index)
		}
	}
	e.named = nil
	return true
}

// bye tells whether the row still counts anything. A session that the broker does not
// know any more is over.
func (e *ending) bye(ctx context.Context) (held bool, err error) {
	var r protocol.ByeReply
	err = e.c.link.askNow(ctx, protocol.OpBye, nil, &r)
	if protocolCode(err) == protocol.CodeClosed {
		return false, nil
	}
	return r.Held, err
}

// linger goes on until the session is over: it finds the next broker where this one
// goes away, and waits as a keeper while anything is held.
func (e *ending) linger() {
	c := e.c
	heard := time.Now()
	pause := reconnectSoon
	for {
		ctx, cancel := context.WithTimeout(context.Background(), closedTry)
		over, err := e.advance(ctx)
		if !over && c.link.isAway() {
			over = e.comeBack(ctx)
		}
		cancel()
		if over || err != nil && time.Since(heard) > closedForNothing && !e.holds() {
			e.finish()
			return
		}
		if err == nil {
			heard = time.Now()
			pause = keeperLook
			select {
			case <-c.link.away():
				pause = reconnectSoon
			case <-time.After(pause):
			}
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, reconnectLate)
	}
}

// holds tells whether the process holds anything: the row counts more than the lanes name.
// Without a broker nobody else can count down what they name.
func (e *ending) holds() bool {
	if !e.look() {
		return true
	}
	row := &e.c.pages.row
	for chunk := range e.c.counted() {
		for index := chunk * protocol.ChunkIndices; index < (chunk+1)*protocol.ChunkIndices; index++ {
			if row.Count(index) > e.named[index] {
				return true
			}
		}
	}
	return false
}

// comeBack resumes the session at the broker that is there now, and tells whether the
// session is over instead. A closed session is no reason to start a broker.
func (e *ending) comeBack(ctx context.Context) (over bool) {
	c := e.c
	ctl, err := c.resume(ctx)
	if ctl == nil {
		return isFinal(err)
	}
	c.goOn()
	c.link.adoptClosed(ctl)
	return false
}

// finish closes what is left of a session that is over.
func (e *ending) finish() {
	c := e.c
	e.leave()
	c.link.end()
	e.look()
	c.leaveNamed(e.named)
	all := c.unmapFree()
	c.closeFiles()
	if !all || c.exportsOnDevices() {
		c.unmapOnce.Do(func() { go c.unmapReleased() })
	}
}

// closeFiles closes every descriptor; what is in use stays mapped.
func (c *Client) closeFiles() {
	c.pages.closeFiles()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.segments {
		s.CloseFiles()
	}
	for _, t := range c.topics {
		t.closeGroups()
	}
}
