package client

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// callUnderWay is a call that was sent.
type callUnderWay struct {
	f     *Function
	e     *endpoint
	m     *callMessage
	sent  *lanes.Call
	waits time.Time // until when a provider is waited for
	look  uint64    // when it is looked next whether its provider lives, ns; 0: not yet
	left  bool      // its provider still has it
	over  bool      // nothing more of it comes, unless left
	ended bool      // what it had is given back
}

// next waits for the result of a call, or for the next part or the end of a stream, which the caller releases.
func (k *callUnderWay) next(ctx context.Context) (*received, error) {
	if k.e.parts && ctx.Err() != nil { // parts that are there are not wanted any more
		k.giveUp()
		k.over = true
		return nil, k.f.gaveUp(ctx)
	}
	r, err := k.await(ctx)
	k.over = err != nil || r.record.Flags&protocol.CallPart == 0
	return r, err
}

// failed is failure that releases the reply, also where what was registered for the kind of the error panics.
func (k *callUnderWay) failed(r *received) error {
	defer r.m.Release()
	return k.failure(r)
}

// failure is the error that a reply brings.
func (k *callUnderWay) failure(r *received) error {
	err := r.failure(k.f.title())
	remote, is := err.(*RemoteError)
	// A function that ends by its deadline says so at about the time at which its caller finds out.
	if d := k.m.record.Deadline; d != 0 && sys.Monotonic() >= d {
		if is && remote.Kind == kindTimeout || r.m.Stamp+uint64(aboutDeadline) >= d {
			return k.f.late()
		}
	}
	if !is {
		return err
	}
	switch {
	case remote.Kind == kindClosed && k.f.object != 0:
		return lentNoMore()
	case remote.Kind == kindCancelled:
		return protocol.Errorf(protocol.CodeCancelled, "", "%s was cancelled at its provider: %s", k.f.title(), remote.Message).
			Because(remote).With("function", k.f.title())
	}
	return err
}

// aboutDeadline is how long before the deadline an error is sent, at most, that is taken for one by it: clocks and
// stamps differ.
const aboutDeadline = time.Millisecond

// end gives back what the call had, now or once its provider is done with it. One that goes on is cancelled. A second
// end does nothing.
func (k *callUnderWay) end() {
	if k.ended {
		return
	}
	k.ended = true
	if !k.over || k.e.parts && !k.left && !k.isDoneSoon() {
		k.giveUp()
	}
	f := k.f
	k.m.lending.end()
	if !k.left {
		f.c.giveBack(k.e)
		<-f.room
		return
	}
	k.sent.GiveUp() // another call may have its room
	<-f.room
	f.hold() // until the provider has ended it
	f.c.abandon(k.e, *k.sent, func() { f.done() })
}

// isDoneSoon tells whether a provider has ended the call, which it does right after its last reply. Where it dies
// between the two, another one begins the stream of an idempotent function again, for which nothing waits.
func (k *callUnderWay) isDoneSoon() bool {
	for until := sys.Monotonic() + uint64(doneSoon); ; runtime.Gosched() {
		if _, state := k.sent.State(); state == shm.CallDone {
			return true
		}
		if sys.Monotonic() >= until {
			return false
		}
	}
}

// doneSoon is more than a provider takes from its last reply to the end of the call, while it runs.
const doneSoon = 50 * time.Microsecond

// awayTooLong is how long there has been no broker before a call is given up of whose provider nothing is left.
const awayTooLong = 5 * time.Second

// unanswered reports the error of a request that had a time of its own, in which no broker has answered, and which a
// call waits for no less: it ends at the deadline of its context alone.
func (c *Client) unanswered(ctx context.Context, err error) bool {
	return err != nil && fault.Code(err) == protocol.CodeTimeout && ctx.Err() == nil && c.s.Life.Ended() == nil
}

// reply is the reply, if it has come. unread: no broker has answered what was asked for it, so that it may have. While
// none is there the look takes a second at most: then all else that may end the call is looked at.
func (k *callUnderWay) reply(ctx context.Context) (r *received, unread bool, err error) {
	within := ctx
	if k.f.c.s.Topics.NoBrokerFor() > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, aMoment)
		defer cancel()
	}
	r, err = k.e.reply(within)
	if err == nil || ctx.Err() != nil || k.f.c.s.Life.Ended() != nil {
		return r, false, err
	}
	if code := fault.Code(err); code == protocol.CodeTimeout || code == protocol.CodeBrokerLost {
		return nil, true, nil
	}
	return nil, false, err
}

// aMoment is how long a broker that has just come may take to answer.
const aMoment = time.Second

// await waits for the reply, or for what says that none comes.
func (k *callUnderWay) await(ctx context.Context) (*received, error) {
	until := func() bool { return k.e.r.r.Ready() || k.news() }
	for {
		r, unread, err := k.reply(ctx)
		if r != nil || err != nil {
			if err != nil {
				k.giveUp()
				if ctx.Err() != nil {
					err = k.f.gaveUp(ctx)
				}
			}
			return r, err
		}
		if r, err := k.outcome(ctx); r != nil || err != nil {
			return r, err
		}
		if !unread {
			k.e.r.r.AwaitBeside(ctx, until)
		}
	}
}

// news tells whether there is something besides a reply to look at.
func (k *callUnderWay) news() bool {
	_, state := k.sent.State()
	switch {
	case state == shm.CallDone:
		return true
	case state == shm.CallWaits && k.f.Providers() == 0 && (k.waits.IsZero() || time.Now().After(k.waits)):
		return true
	}
	return k.f.t.IsClosed() || k.f.c.s.Topics.NoBrokerFor() > awayTooLong && sys.Monotonic() >= k.look
}

// outcome tells how the call has ended without a reply, if it has.
func (k *callUnderWay) outcome(ctx context.Context) (*received, error) {
	f := k.f
	if err := f.c.s.Life.Ended(); err != nil {
		return nil, err
	}
	member, state := k.sent.State()
	if state == shm.CallDone {
		// SYNC claim: a reply was published before it: it is looked for after the look at the claim.
		if r, _, err := k.reply(ctx); r != nil || err != nil {
			return r, err
		}
		if ctx.Err() != nil {
			return nil, f.gaveUp(ctx)
		}
		if until, has := ctx.Deadline(); has && !time.Now().Before(until) {
			return nil, f.late() // the provider has ended it at the deadline, before ctx did
		}
		if member == 0 {
			return nil, f.dropped()
		}
		ended := f.fate(ctx, k.sent, member)
		if ended == nil && f.c.s.Life.Ended() == nil {
			if f.c.s.Topics.NoBrokerFor() > awayTooLong {
				return nil, protocol.Errorf(protocol.CodeBrokerLost, "start the broker again", "the call of %s has ended, and no broker says how", f.title())
			}
			time.Sleep(lanes.Moment) // where the request failed at once
			return nil, nil
		}
		// After the broker's answer every lane is known into which a provider may have replied.
		if r, unread, err := k.reply(ctx); r != nil || err != nil || unread {
			return r, err
		}
		if ended == nil {
			ended = f.c.s.Life.Ended()
		}
		return nil, ended
	}
	if ctx.Err() != nil {
		k.giveUp()
		return nil, f.gaveUp(ctx)
	}
	if state == shm.CallWaits {
		begun := k.sent.BegunBefore()
		if f.Providers() == 0 && !time.Now().Before(k.waits) && k.sent.Withdraw() {
			if begun > 0 { // of an idempotent function: there is none for another time
				if ended := f.fate(ctx, k.sent, 0); ended != nil {
					return nil, ended
				}
			}
			return nil, f.noProvider()
		}
		if f.t.IsClosed() && k.sent.Withdraw() {
			return nil, fault.Closed(f.t.Title())
		}
	}
	if f.c.s.Topics.NoBrokerFor() > awayTooLong {
		if k.sent.IsHopeless() {
			k.giveUp()
			return nil, protocol.Errorf(protocol.CodeBrokerLost, "start the broker again", "the process that had the call of %s has ended, and no broker says how", f.title())
		}
		k.look = sys.Monotonic() + uint64(time.Second)
	}
	return nil, nil
}

// giveUp ends the call here: no provider begins it any more, or the one that has it is told.
func (k *callUnderWay) giveUp() {
	if k.sent.Withdraw() {
		return
	}
	if _, state := k.sent.State(); state != shm.CallDone {
		k.sent.Cancel()
	}
	k.left = true
}

// dropped is the error of a call that no provider had at its end.
func (f *Function) dropped() error {
	return protocol.Errorf(protocol.CodeCancelled, "call again", "the call of %s was dropped by an operator", f.title()).With("function", f.title())
}

// noReply is the error of a call that a living provider has ended without a reply.
func (f *Function) noReply(fate *protocol.FateReply) error {
	code, remedy, why := protocol.CodeProtocol, "update or restart the provider, or this process", ": it could not read the request, or its reply was none"
	if fate.NoReply {
		code, remedy = protocol.CodeOutOfMemory, "release tensors, or raise --memory of the broker; "+f.c.s.Link.Typed("status")+" and "+f.c.s.Link.Typed("ls", "storages")+" show what has the memory"
		why = ", which got no memory for one"
	}
	return protocol.Errorf(code, remedy, "the call of %s was ended without a reply by %s (pid %d)%s", f.title(), fate.Name, fate.PID, why).
		With("function", f.title()).With("pid", fate.PID).With("provider", fate.Name)
}

// fate is the error of a call whose provider has ended without a reply; nil where no broker answers. The member 0 stands
// for the last that had begun a call which waits again.
func (f *Function) fate(ctx context.Context, call *lanes.Call, member uint16) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var fate protocol.FateReply
	asked := protocol.FunctionFate{TopicRef: protocol.TopicRef{Topic: f.t.Info.Topic, ID: f.t.Info.ID}, Member: member}
	asked.Lane, asked.Message = call.Place()
	if _, err := f.c.s.Link.Call(ctx, protocol.OpFunctionFate, asked, &fate); err != nil {
		if fault.Uncertain(err) || f.c.s.Life.Ended() != nil {
			return nil
		}
		fate = protocol.FateReply{}
	}
	if fate.Lives {
		return f.noReply(&fate)
	}
	who := "its provider"
	if fate.Name != "" {
		who = fate.Name
	}
	did := "ended"
	switch {
	case fate.Evicted:
		did = "was evicted"
	case fate.Signal == 0 && fate.Status == nil:
		did = "left" // its process may live
	}
	e := protocol.Errorf(protocol.CodeProviderDied, "look at its log; call again if that does no harm", "%s %s while it had the call of %s", who, did, f.title())
	if fate.Reason != "" {
		e.Message += ": " + fate.Reason
	}
	e.With("function", f.title()).With("pid", fate.PID).With("provider", fate.Name).With("reason", fate.Reason)
	if fate.Seconds != nil {
		e.Message += fmt.Sprintf(" (the function had run for %.3g s)", *fate.Seconds)
		e.With("seconds", *fate.Seconds)
	}
	if fate.Signal != 0 {
		e.With("signal", fate.Signal)
	}
	if fate.Status != nil {
		e.With("status", *fate.Status)
	}
	return e
}
