package client

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/sessionfiles"
	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// calls is what the calls of a client have in common.
type calls struct {
	mu           sync.Mutex // guards what follows
	spare        []*endpoint
	spareStreams []*endpoint
	functions    map[string]*Function // by the name that was asked for
	replies      replies
	door         door
	watched      watched
}

// Function is a function that other processes provide. It may be used from any goroutine.
type Function struct {
	*opened
	wait time.Duration // for a provider
	// object is its number where it was an argument; 0: it is registered by its name.
	object uint64
	closed bool // guarded by the mutex of opened
}

// opened is a function, or the door to those that another session has given as arguments, that is open.
type opened struct {
	c      *Client
	t      *lanes.Topic
	record sessionfiles.FunctionRecord
	known  atomic.Pointer[describedAs]
	room   chan struct{} // a place for each call that may be under way
	out    outgoing      // for the use of whichever has the turn to send

	mu    sync.Mutex // guards what follows
	users int        // calls, and those that have it open
}

func newFunction(c *Client, t *lanes.Topic) *Function {
	return &Function{opened: &opened{c: c, t: t, record: t.Function(), room: make(chan struct{}, t.Info.Depth), users: 1}}
}

// describedAs is the description of a version.
type describedAs struct {
	version uint64
	s       *signature.Signature
}

// FunctionOption configures Client.Function.
type FunctionOption interface{ function(*Function) }

type functionOption func(*Function)

func (f functionOption) function(to *Function) { f(to) }

// Wait is how long Client.Function, and calls of what it returns, wait for a provider if there is none
// (default 0: not at all).
func Wait(d time.Duration) FunctionOption { return functionOption(func(f *Function) { f.wait = d }) }

// Function opens a function by its name, with a version (name@version) or without: then the newest one of now, to which
// all calls of what it returns go. Errors: ErrNotFound, which names similar ones; ErrNoProvider if it waited for one and none came; ErrInvalid.
func (c *Client) Function(ctx context.Context, name string, opts ...FunctionOption) (*Function, error) {
	var o Function
	for _, f := range opts {
		f.function(&o)
	}
	f, err := c.openFunction(ctx, name, o.wait)
	if err != nil {
		return nil, err
	}
	f.wait = o.wait
	if f.wait > 0 && f.Providers() == 0 {
		if f, err = c.awaitProvided(ctx, name, f); err != nil {
			return nil, err
		}
	}
	c.forgetOther(name, f)
	return f, nil
}

// lookForFunction is how often a function is looked for that is not there: the broker notifies no session of a name
// that it does not know.
const lookForFunction = 100 * time.Millisecond

func (c *Client) openFunction(ctx context.Context, name string, wait time.Duration) (*Function, error) {
	if err := protocol.CheckFunction(name); err != nil {
		return nil, err
	}
	until := time.Now().Add(wait)
	var absent error // of the look before
	for {
		t, err := c.openNumbered(ctx, protocol.TopicOpenRequest{Name: name, Kind: protocol.KindFunction})
		if err == nil {
			return newFunction(c, t), nil
		}
		if absent != nil && ctx.Err() != nil {
			return nil, notAwaited(ctx, name, absent) // the last look had no time left: what the one before it has seen holds
		}
		if fault.Code(err) != protocol.CodeNotFound || !time.Now().Before(until) {
			return nil, err
		}
		absent = err
		select {
		case <-time.After(min(lookForFunction, time.Until(until))):
		case <-ctx.Done():
			return nil, notAwaited(ctx, name, err)
		}
	}
}

// notAwaited is the error of a wait for a function that has ended with its context: at its deadline the function is absent.
func notAwaited(ctx context.Context, name string, absent error) error {
	if !errors.Is(ctx.Err(), context.Canceled) {
		return absent
	}
	return protocol.Errorf(protocol.CodeCancelled, "", "the wait for the function %s was cancelled", name).Because(ctx.Err()).With("function", name)
}

// Name is the function's name, with its version; "" of one that was an argument.
func (f *Function) Name() string { return f.t.Info.Name }

// title is what it is called in errors.
func (f *Function) title() string {
	if f.object != 0 {
		return "function argument"
	}
	return f.Name()
}

// Providers is how many sessions provide it now.
func (f *Function) Providers() int { return int(f.record.Providers()) }

// Doc is what it does, as its provider says.
func (f *Function) Doc() string {
	if s := f.signature(); s != nil {
		return s.Doc
	}
	return ""
}

// Signature is what it takes and gives, as its provider says: (x: tensor, by: float = 2.0) -> tensor.
func (f *Function) Signature() string {
	if s := f.signature(); s != nil {
		return s.String()
	}
	return ""
}

// GivesParts tells whether it gives parts, as its provider says: then Parts calls it, and Call does not.
func (f *Function) GivesParts() bool {
	s := f.signature()
	return s != nil && s.Parts
}

// Takes tells what the parameter takes that an argument is for, given as number at (from 0), or by its name if it has
// one: types joined by |, as the signature has them. "" if there is no such parameter, or nothing is known of it.
func (f *Function) Takes(at int, name string) string {
	s := f.signature()
	if s == nil || s.Parameters == nil {
		return ""
	}
	i := -1
	if name != "" {
		i = s.Named(name)
	} else {
		i = s.Positional(at)
	}
	if i < 0 {
		return ""
	}
	return (*s.Parameters)[i].Type
}

// SignatureOf is what a function takes and gives, by the description that listings have of it.
// ErrProtocol: it is no description of a function.
func SignatureOf(description string) (string, error) {
	s, err := signature.Parse(description)
	if err != nil {
		return "", err
	}
	return s.String(), nil
}

// Close ends this use of the function, once the calls that are under way have ended. A second Close does nothing.
// Errors are those of Topic.Close.
func (f *Function) Close() error {
	if !f.shut() {
		return nil
	}
	return f.done()
}

// leave is Close that does not wait for the broker.
func (f *Function) leave() {
	if f.shut() && f.last() {
		go f.t.Close()
	}
}

// shut has no more calls begin; false where that was so.
func (f *Function) shut() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.closed
	f.closed = true
	return !was
}

// use counts a call; false where the function is closed.
func (f *Function) use() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.users++
	}
	return !f.closed
}

// hold counts another use beside one that there is.
func (f *opened) hold() {
	f.mu.Lock()
	f.users++
	f.mu.Unlock()
}

// done ends a use.
func (f *opened) done() error {
	if !f.last() {
		return nil
	}
	return f.t.Close()
}

// last counts a use less, and tells whether it was the last.
func (f *opened) last() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	return f.users == 0
}

// signature is what the function takes, as of now; nil while the broker writes it, or where nothing is known.
func (f *opened) signature() *signature.Signature {
	known := f.known.Load()
	if known != nil && known.version == f.record.Version() {
		return known.s
	}
	version, text, ok := f.record.Description()
	if !ok {
		return nil
	}
	s, err := signature.Parse(text)
	if err != nil {
		s = &signature.Signature{} // nothing is looked at then
	}
	f.known.Store(&describedAs{version, s})
	return s
}

// Call calls a function by its name and waits for what it returns, read as T. An argument is given by its position,
// or by name as Arg. The call ends once: with the result, with the function's own error (ErrRemote), or with
// ErrNotFound, ErrNoProvider, ErrProviderDied, ErrCancelled, ErrTimeout, ErrFull, ErrClosed, ErrSessionLost or
// ErrBrokerLost. Arguments that do not fit are ErrInvalid, before anything is sent. Tensors of the result are the
// caller's to release, functions of it are the caller's to close. A function of this process is given as Func.
//
// A repeated call makes no request of the broker: the function stays open. A name without a version goes on to mean
// the version that it meant at first. When Client.Function opens the name and finds another version, or the first has no
// provider any more, the call goes to the newest version that has one.
func Call[T any](ctx context.Context, c *Client, name string, args ...any) (T, error) {
	f, err := c.knownFunction(ctx, name)
	if err != nil {
		var none T
		return none, c.byDeadline(ctx, err, name, false)
	}
	for {
		out, err := callAndLeave[T](ctx, f, args)
		if f = c.foundAnew(ctx, name, f, err); f == nil {
			return out, err
		}
	}
}

// callAndLeave is call that ends the use of the function.
func callAndLeave[T any](ctx context.Context, f *Function, args []any) (T, error) {
	defer f.done()
	return call[T](ctx, f, args)
}

// CallOf is Call of a function that is open. Errors are those of Call, ErrClosed also once the
// Function was closed.
func CallOf[T any](ctx context.Context, f *Function, args ...any) (T, error) {
	if !f.use() {
		var none T
		return none, fault.Closed(f.title())
	}
	defer f.done()
	return call[T](ctx, f, args)
}

// Call is as the function of this name, with the result as it comes: nil, bool, int64, *big.Int, float64, string,
// []byte, *Tensor, *Function, dlpack.DType, dlpack.Device, []any, protocol.ValueTuple, map[string]any, protocol.Dict or
// protocol.Dataclass. Errors are those of CallOf.
func (f *Function) Call(ctx context.Context, args ...any) (any, error) {
	return CallOf[any](ctx, f, args...)
}

func call[T any](ctx context.Context, f *Function, args []any) (out T, err error) {
	r, err := f.invoke(ctx, args)
	if err != nil {
		return out, err
	}
	return resultOf[T](ctx, f, r)
}

// awaitProvider waits until the function has a provider.
func (f *Function) awaitProvider(ctx context.Context) error {
	if f.wait <= 0 {
		return f.noProvider()
	}
	until, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	f.c.s.Topics.AwaitAny(until, func() bool { return f.Providers() > 0 || f.t.IsClosed() })
	if err := f.c.s.Life.Ended(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil && f.Providers() == 0 {
		return f.gaveUp(ctx)
	}
	if f.Providers() == 0 {
		return f.noProvider()
	}
	return nil
}

func (f *Function) noProvider() error {
	if f.object != 0 {
		return protocol.Errorf(protocol.CodeNoProvider, "", "the session that gave the function argument has ended")
	}
	return protocol.Errorf(protocol.CodeNoProvider, "start a process that provides it, or wait for one", "no process provides the function %s", f.title()).With("function", f.title())
}

func (f *Function) late() error {
	if f.object != 0 { // it is the process that gave it, and no command shows its calls
		return protocol.Errorf(protocol.CodeTimeout, "wait longer", "the call of a function argument has not ended in time").Because(context.DeadlineExceeded)
	}
	if f.Providers() == 0 {
		return f.c.withoutProvider(f.title())
	}
	return f.c.tooLate(f.title())
}

// withoutProvider is as tooLate, of a function that has no provider: no command shows why its call has not ended.
func (c *Client) withoutProvider(name string) error {
	return protocol.Errorf(protocol.CodeTimeout, "start a process that provides it, or give a call that runs longer; `"+c.s.Link.Typed("events")+" --kind function` says how its providers ended",
		"the call of %s has not ended in time; no process provides the function: it was deleted, or its providers have ended", name).
		Because(context.DeadlineExceeded).With("function", name)
}

// tooLate is the error of a call of a function whose deadline has passed.
func (c *Client) tooLate(name string) error {
	return protocol.Errorf(protocol.CodeTimeout, "wait longer, or look with `"+c.s.Link.Typed("why", "function", name)+"`", "the call of %s has not ended in time", name).
		Because(context.DeadlineExceeded).With("function", name)
}

// gaveUp is the error of a call that ended with its context.
func (f *Function) gaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return f.late()
	}
	return f.cancelled(ctx.Err())
}

func (f *Function) cancelled(why error) error {
	return protocol.Errorf(protocol.CodeCancelled, "", "the call of %s was cancelled by its caller", f.title()).Because(why).With("function", f.title())
}

// noRoom is the error of a call that waited for room: one that was cancelled meanwhile is no other than a cancelled call.
func (f *Function) noRoom(err error) error {
	if errors.Is(err, context.Canceled) {
		return f.cancelled(err)
	}
	return err
}

// invoke makes a call and returns its result, which the caller releases.
func (f *Function) invoke(ctx context.Context, args []any) (*received, error) {
	k, err := f.begin(ctx, args, 0)
	if err != nil {
		return nil, err
	}
	defer k.end()
	r, err := k.next(ctx)
	if err == nil && len(k.m.tensors)+len(k.m.inTree) > 0 {
		f.t.WithdrawDone() // what it was given is given back now, if its provider has said so
	}
	if err == nil && r.record.Flags&protocol.CallFailed != 0 {
		err = k.failed(r)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// byDeadline is the error of a call that was not sent: one whose deadline has passed while a broker was waited for ends
// by that, and by nothing else. away: there is no broker now.
func (c *Client) byDeadline(ctx context.Context, err error, name string, away bool) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	switch code := fault.Code(err); {
	case code == protocol.CodeBrokerLost, code == protocol.CodeTimeout, code == protocol.CodeFull && away:
		return c.tooLate(name)
	}
	return err
}

// begin sends a call. ahead: how many parts may be there that were not taken, of a stream; else 0.
func (f *Function) begin(ctx context.Context, args []any, ahead uint32) (*callUnderWay, error) {
	k, err := f.beginNow(ctx, args, ahead)
	if err != nil {
		return nil, f.c.byDeadline(ctx, err, f.title(), f.c.s.Link.IsAway())
	}
	return k, nil
}

func (f *Function) beginNow(ctx context.Context, args []any, ahead uint32) (*callUnderWay, error) {
	if err := f.c.s.Life.Ended(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, f.gaveUp(ctx)
	}
	if f.Providers() == 0 {
		if err := f.awaitProvider(ctx); err != nil {
			return nil, err
		}
	}
	m, err := f.message(ctx, args, ahead)
	begun := false
	defer func() {
		if !begun && m != nil {
			m.lending.begins(nil)
			m.lending.end()
		}
	}()
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeOf(err), remedyOf(err), "%s: %w", f.title(), err).With("function", f.title())
	}
	if m.record.Chain, err = f.chain(ctx); err != nil {
		return nil, err
	}
	if until, has := ctx.Deadline(); has {
		m.record.Deadline = max(1, uint64(int64(sys.Monotonic())+int64(time.Until(until))))
	}
	select {
	case f.room <- struct{}{}:
	default:
		select {
		case f.room <- struct{}{}:
		case <-ctx.Done():
			return nil, f.noRoom(f.t.Timeout(ctx, protocol.CodeFull, "no room for another call"))
		}
	}
	e, err := f.c.endpoint(ctx, f.t.Info.ID, ahead)
	for f.c.unanswered(ctx, err) {
		e, err = f.c.endpoint(ctx, f.t.Info.ID, ahead)
	}
	if err != nil {
		<-f.room
		return nil, err
	}
	m.record.Topic, m.record.TopicID, m.record.Token = e.t.Info.Topic, e.t.Info.ID, e.token
	m.record.Number = e.begins(ahead > 0)
	if err := f.send(ctx, m); err != nil {
		f.c.giveBack(e)
		<-f.room
		return nil, err
	}
	begun = true
	m.lending.begins(m.sent)
	k := &callUnderWay{f: f, e: e, m: m, sent: m.sent}
	if f.wait > 0 {
		k.waits = time.Now().Add(f.wait)
	}
	return k, nil
}

// message makes the request of a call, as far as its arguments go.
func (f *Function) message(ctx context.Context, args []any, ahead uint32) (*callMessage, error) {
	m := &callMessage{}
	m.record.Kind, m.record.Object = protocol.CallRequest, f.object
	if m.record.Window = ahead; ahead > 0 {
		m.record.Flags |= protocol.CallTakesParts
	}
	if err := m.addAll(args); err != nil {
		return nil, err
	}
	if s := f.signature(); s != nil && f.object == 0 { // of an argument nothing is known
		switch {
		case s.Parts && ahead == 0:
			return nil, refused("it gives parts, and no one result: only a stream takes them")
		case !s.Parts && ahead > 0:
			return nil, refused("it gives no parts: call it")
		}
		if err := m.fit(s); err != nil {
			return nil, err
		}
	}
	if err := m.giveFunctions(ctx, f.c); err != nil {
		return m, err
	}
	return m, m.encode()
}

// chain is that of a call within another, which must end somewhere.
func (f *Function) chain(ctx context.Context) ([]protocol.CallLink, error) {
	outer := running(ctx)
	if outer == nil {
		return nil, nil
	}
	chain := append(append(make([]protocol.CallLink, 0, len(outer.record.Chain)+1), outer.record.Chain...), outer.link())
	within := uint32(0)
	for _, l := range chain {
		if l.TopicID == f.t.Info.ID {
			within++
		}
	}
	names := func() string {
		var all []string
		for _, l := range chain {
			name, found := f.c.s.Topics.NameOf(l.TopicID)
			switch {
			case !found:
				name = "a function that is gone"
			case name == "":
				name = "a function argument"
			}
			all = append(all, name)
		}
		return strings.Join(append(all, f.title()), " > ")
	}
	// Before they are as many as there is room for in a lane: no call waits for room that only those hold within which
	// it is made.
	if len(chain) >= protocol.MaxCallChain {
		return nil, protocol.Errorf(protocol.CodeInvalid, "call less deep", "calls within each other are %d deep: %s", protocol.MaxCallChain, names())
	}
	if within > 0 && within >= f.record.Concurrency() {
		return nil, protocol.Errorf(protocol.CodeInvalid, "register the function with a higher concurrency", "the call would wait for itself: %s", names())
	}
	return chain, nil
}

// send sends a request, once there is room for it.
func (f *Function) send(ctx context.Context, m *callMessage) error {
	for waited := false; ; waited = true {
		wait, err := f.c.attempt(ctx, f.t, &f.out, waited, m, protocol.SlotWritable, nil)
		if m.sent == nil && f.c.unanswered(ctx, err) {
			continue
		}
		if wait == nil {
			if err != nil && m.sent == nil {
				if fault.Code(err) == protocol.CodeClosed && f.c.s.Life.Ended() == nil {
					err = f.noProvider()
				}
				return err
			}
			crashpoint.At("call-sent")
			return nil
		}
		if err := f.t.Await(ctx, wait); err != nil {
			return f.noRoom(err)
		}
		if f.Providers() == 0 && f.wait <= 0 {
			return f.noProvider()
		}
	}
}
