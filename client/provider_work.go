package client

import (
	"context"
	"os"
	"sync"
	"sync/atomic"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/turn"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/protocol"
)

// runFunc runs a function for a call. What gives parts sends them by parts.
type runFunc func(k *callContext, r *received, parts *partsSender) (any, error)

// provider is what the goroutines of a registration share.
type provider struct {
	c      *Client
	t      *lanes.Topic
	run    runFunc
	parts  bool      // it gives parts
	isDoor bool      // it is called by the numbers of functions that were arguments
	reader *Reader   // for the use of whichever has the turn
	turn   turn.Turn // one goroutine at a time waits for a call
	closed atomic.Bool
	// noTraces: the environment keeps traces of errors in this process.
	noTraces bool

	mu           sync.Mutex // guards what follows
	most         int        // calls that run at a time
	running      int        // places that are taken, of most
	starved      bool       // the goroutine with the turn waits for a place
	resuming     []chan struct{}
	workers      int
	idle         int // workers that wait for a call, or for the turn to do so
	parked       int // workers whose functions wait for room, without a place
	workersEnded chan struct{}
}

func newProvider(c *Client, run runFunc) *provider {
	return &provider{c: c, run: run, turn: turn.New(), workersEnded: make(chan struct{}), noTraces: keepsTraces(os.Getenv(address.EnvNoTraces))}
}

// begin has it take calls, once it is registered.
func (p *provider) begin() {
	p.mu.Lock()
	p.addWorker()
	p.mu.Unlock()
}

// over tells whether no more calls are taken.
func (p *provider) over() bool {
	return p.closed.Load() || !p.reader.r.Provides() || p.c.s.Life.IsOver()
}

// A function runs in a place, of which there are as many as the registration says. The goroutine that
// waits for a call takes one for as long as it looks, since what it finds it has to run. A function that
// waits for room gives its place back, and waits for one before it goes on.

// takePlace takes a place if one is free.
func (p *provider) takePlace() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isFull() {
		p.starved = true
		return false
	}
	p.running++
	return true
}

// isFull tells whether no place is free. Callers hold p.mu.
func (p *provider) isFull() bool { return p.running >= p.most || len(p.resuming) > 0 }

// hasPlace tells whether one is free.
func (p *provider) hasPlace() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.isFull()
}

// givePlace gives a place to a function that waits for one, or back. wake: the goroutine that waits for a
// place is to look again, once p.mu is free. Callers hold p.mu.
func (p *provider) givePlace() (wake bool) {
	if len(p.resuming) > 0 {
		close(p.resuming[0])
		p.resuming = p.resuming[1:]
		return false
	}
	p.running--
	wake = p.starved
	p.starved = false
	return wake
}

// leavePlace is givePlace without p.mu.
func (p *provider) leavePlace() {
	p.mu.Lock()
	wake := p.givePlace()
	p.mu.Unlock()
	if wake {
		p.c.s.Waits.WakeAll()
	}
}

// park gives the place of a function that waits to another call.
func (p *provider) park() {
	p.mu.Lock()
	p.parked++
	wake := p.givePlace()
	p.addIfNoneWaits()
	p.mu.Unlock()
	if wake {
		p.c.s.Waits.WakeAll()
	}
}

// resume waits for a place.
func (p *provider) resume() {
	p.mu.Lock()
	p.parked--
	if !p.isFull() {
		p.running++
		p.mu.Unlock()
		return
	}
	given := make(chan struct{})
	p.resuming = append(p.resuming, given)
	p.mu.Unlock()
	<-given
}

// addWorker begins another goroutine. Callers hold p.mu.
func (p *provider) addWorker() {
	p.workers++
	p.idle++
	go p.work()
}

// addIfNoneWaits sees to it that one waits for a call while there is a place. Callers hold p.mu.
func (p *provider) addIfNoneWaits() {
	if p.idle == 0 && p.workers-p.parked < p.most {
		p.addWorker()
	}
}

// work takes calls and runs them, one after the other, until the registration is over.
func (p *provider) work() {
	returned := false
	defer func() {
		if !returned { // a function has ended this goroutine
			p.mu.Lock()
			p.workers--
			p.addWorker()
			p.mu.Unlock()
			p.leavePlace()
		}
	}()
	surplus := false
	for !surplus {
		m, claimed, ok := p.next()
		if !ok {
			break
		}
		p.mu.Lock()
		p.idle--
		p.addIfNoneWaits()
		p.mu.Unlock()
		p.answer(m, claimed)
		p.mu.Lock()
		wake := p.givePlace()
		p.idle++
		if surplus = p.idle > 1 && p.workers-p.parked > p.most; surplus {
			p.idle-- // with the look, so that another that looks does not leave as well
			p.workers--
		}
		p.mu.Unlock()
		if wake {
			p.c.s.Waits.WakeAll()
		}
	}
	returned = true
	if surplus {
		return
	}
	p.mu.Lock()
	p.workers--
	p.idle--
	last := p.workers == 0
	p.mu.Unlock()
	if last { // the calls of others are over by then
		p.closed.Store(true)
		p.reader.Close()
		p.t.Close()
		close(p.workersEnded)
	}
}

// next waits for a call and a place to run it in. One goroutine at a time does.
func (p *provider) next() (m *Message, claimed lanes.Claimed, ok bool) {
	p.turn.Must()
	defer p.turn.End()
	ctx := context.Background()
	until := func() bool { return p.over() || p.reader.r.Ready() || p.c.calls.replies.sweepDue() }
	for {
		if p.over() {
			p.reader.r.PassOn()
			return nil, claimed, false
		}
		if !p.takePlace() {
			p.reader.r.PassOn()
			p.c.s.Topics.AwaitAny(ctx, func() bool { return p.over() || p.hasPlace() })
			continue
		}
		m, err := p.reader.poll(ctx)
		if m != nil {
			return m, p.reader.r.Claimed(), true
		}
		p.leavePlace()
		switch {
		case err != nil && (p.c.s.Life.Ended() != nil || fault.Code(err) == protocol.CodeClosed):
			p.reader.r.PassOn()
			return nil, claimed, false
		case err != nil: // what cannot be taken now, such as the memory of a message while no broker runs
			p.reader.r.PassOn()
			p.c.s.Topics.AwaitMoment(ctx, p.over)
			continue
		}
		p.c.sweepReplies(false)
		p.reader.r.AwaitBeside(ctx, until)
	}
}
