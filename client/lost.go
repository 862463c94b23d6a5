package client

import (
	"context"
	"time"
	"weak"

	"github.com/baton-ipc/baton/protocol"
)

// lose ends the session here because the broker said that it is over: every call
// fails from now on, those that wait too. What is mapped stays. The first call
// counts; a client that was closed is not lost.
func (c *Client) lose(why error) {
	c.mu.Lock()
	if c.closed || c.hub.lost.Load() != nil {
		c.mu.Unlock()
		return
	}
	ctl := c.ctl
	c.hub.lost.Store(protocol.Errorf(protocol.CodeSessionLost, "open a new session, with Client.Reopen for one; what was received can still be read, copied and released",
		"session %d of broker %s is over: %w", c.pages.serial, c.pages.instance, why))
	close(c.lost) // calls that wait for a broker give up
	c.lost = make(chan struct{})
	c.mu.Unlock()
	c.hub.end()
	// Before the connection ends: by that the broker knows that this process allocates and
	// recycles nothing any more, and that its memory may be given to others where nothing is
	// held. An allocation that waits for an answer of the broker ends first.
	go func() {
		c.endPools()
		ctl.close()
		c.unmapOnce.Do(func() {
			go func() {
				c.emptyLanes()
				unmapReleased(weak.Make(c))
			}()
		})
	}()
}

// endPools has nothing handed out or recycled any more.
func (c *Client) endPools() {
	over := c.hub.lost.Load()
	c.pool.End(over)
	c.pools.end(over)
}

// emptyLanes counts down what the lanes of a lost session name: nobody takes it any more.
func (c *Client) emptyLanes() {
	for _, t := range c.allTopics() {
		t.mu.must()
		t.writing = false
		for _, kept := range t.kept {
			for _, index := range kept {
				c.drop(index)
			}
		}
		t.kept = nil
		t.mu.end()
	}
}

// isOver tells whether the broker was stopped: it said so, or it noted so for a client that
// had no connection.
func (c *Client) isOver() bool { return c.stopped.Load() || c.pages.isOver() }

// unmapReleased unmaps the memory of a session that is over piece by piece as it is
// released. What a broker has cleared the row of stays mapped: it is not known here what
// is held. A client that became garbage with tensors that nobody released is not kept for
// that: its mappings go with it.
func unmapReleased(of weak.Pointer[Client]) {
	for {
		c := of.Value()
		if c == nil || !c.pages.rowIsOwn() {
			return
		}
		c.reap()
		if c.unmapFree() {
			return
		}
		time.Sleep(keeperLook) // c is not used behind this, and may go meanwhile
	}
}

// errStopped is why a session is lost whose broker was stopped.
var errStopped = protocol.Errorf(protocol.CodeBrokerLost, "", "the broker was stopped")

// isFinal reports whether err is an answer to a resume that no broker will change.
func isFinal(err error) bool {
	code := protocolCode(err)
	return code == protocol.CodeExpired || code == protocol.CodeVersion
}

// unlessLost is the error of ending a use, which a lost session has ended already.
func unlessLost(err error) error {
	if protocolCode(err) == protocol.CodeSessionLost {
		return nil
	}
	return err
}

// Reopen opens a new session with the options of this one: what a program does after
// ErrSessionLost. Topics, queues, readers and tensors of the old session stay its own:
// calls go on to fail, and what was received can be read and released. Close the old
// Client when it is of no more use. Errors are those of Connect.
func (c *Client) Reopen(ctx context.Context) (*Client, error) { return connect(ctx, c.opts) }
