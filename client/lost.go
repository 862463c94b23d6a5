package client

import (
	"context"
	"errors"
	"time"

	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/protocol"
)

// lose ends the session here because the broker said that it is over: every call
// fails from now on, those that wait too. What is mapped stays. The first call
// counts; a client that was closed is not lost.
func (c *Client) lose(why error) {
	if !c.link.lose(protocol.Errorf(protocol.CodeSessionLost, "open a new session, with Client.Reopen for one; what was received can still be read, copied and released",
		"session %d of broker %s is over: %s", c.pages.serial, c.pages.instance, messageOf(why))) {
		return
	}
	c.hub.wakeAll()
	go func() { // an allocation may wait for an answer of the broker with the pool's turn
		c.endPools(c.life.lost.Load())
		c.link.end()
		c.goOn()
		c.unmapOnce.Do(func() {
			go func() {
				c.emptyLanes(isFinal(why))
				c.unmapReleased()
			}()
		})
	}()
}

// hear tells a broker that is being stopped that this client has heard so: it allocates,
// recycles and counts nothing from here on, and says nothing more.
func (c *Client) hear() {
	c.life.hear(func() { // an allocation may wait for an answer of the broker with the pool's turn
		c.eachPool((*handles.Pool).Pause)
		c.link.endWriting()
	})
}

// goOn ends that.
func (c *Client) goOn() {
	c.life.goOn(func() { c.eachPool((*handles.Pool).Resume) })
}

// emptyLanes counts down what the lanes of a lost session name: once a broker that has come
// since counts for it, or at once where none comes or none that would know the session.
//
// For one that was closed it waits a while only: what its lanes name stays counted then, for
// readers, until the process ends.
func (c *Client) emptyLanes(unknown bool) {
	var closed time.Time
	for {
		if c.life.closed.Load() {
			if closed.IsZero() {
				closed = time.Now()
			}
			if time.Since(closed) > closedForNothing {
				c.leaveNamed(endLanes(c.allTopics()))
				return
			}
		}
		left := false
		over := unknown || c.pages.isOver()
		for _, t := range c.allTopics() {
			left = !t.empty(over) || left
		}
		if !left {
			return
		}
		time.Sleep(keeperLook)
	}
}

// empty counts down what the own lane names, unless a broker is still to count for that.
func (t *topic) empty(over bool) (done bool) {
	t.mu.must()
	defer t.mu.end()
	t.writing = false
	if !over && t.kept != nil && !t.c.pages.isTakenOver(t.info.Topic, t.laneNo, t.laneInc) {
		return false
	}
	t.letGo()
	return true
}

// letGo counts down what the own lane names. Callers hold t.mu.
func (t *topic) letGo() {
	for _, kept := range t.kept {
		for _, index := range kept {
			t.c.drop(index)
		}
	}
	t.kept = nil
}

// unmapReleased unmaps the memory of a session that is over piece by piece as it is
// released, and lets go of what C code deletes of a GPU's. The client is kept until then,
// though nothing else may refer to it: slices and C code have addresses only, and tensors
// whose counts a keeper took over refer to their own client. What a broker has cleared the
// row of stays mapped: it is not known here what is held.
func (c *Client) unmapReleased() {
	for {
		c.reap()
		if (c.unmapFree() || c.pages.rowCleared()) && !c.exportsOnDevices() {
			return
		}
		time.Sleep(keeperLook)
	}
}

// errStopped is why a session is lost whose broker was stopped.
var errStopped = errors.New("the broker was stopped")

// errEvicted is why a session is lost that an operator has ended.
var errEvicted = errors.New("an operator evicted it")

// messageOf is what an error says, without its code: a lost session is no other error.
func messageOf(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Message
	}
	return err.Error()
}

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
