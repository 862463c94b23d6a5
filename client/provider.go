package client

import (
	"cmp"
	"context"
	"math"
	"reflect"
	"runtime/debug"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// HandleOption configures Handle.
type HandleOption interface {
	handle(*protocol.FunctionRegister, *signature.Signature)
}

type handleOption func(*protocol.FunctionRegister, *signature.Signature)

func (f handleOption) handle(r *protocol.FunctionRegister, s *signature.Signature) { f(r, s) }

// Concurrency is how many calls the function runs at a time, 1 to 1,024 (default 1).
func Concurrency(calls int) HandleOption { return concurrency(calls) }

type concurrency int

func (n concurrency) handle(r *protocol.FunctionRegister, _ *signature.Signature) {
	r.Concurrency = uint32(n)
}

// check refuses one that no function has: as a number of 32 bits it would be another one.
func (n concurrency) check() error {
	if n < 1 || n > protocol.MaxConcurrency {
		return refused("a concurrency of %d is not 1 to %d", int(n), protocol.MaxConcurrency)
	}
	return nil
}

// Idempotent lets another provider run a call again whose provider has ended before it replied. So the function may
// run more than once for one call.
func Idempotent() HandleOption {
	return handleOption(func(r *protocol.FunctionRegister, _ *signature.Signature) { r.Idempotent = true })
}

// Exclusive allows one process alone to provide it.
func Exclusive() HandleOption {
	return handleOption(func(r *protocol.FunctionRegister, _ *signature.Signature) { r.Exclusive = true })
}

// Override takes the place of the providers that there are: what runs there ends there, what waits comes here. The
// signature may be another one.
func Override() HandleOption {
	return handleOption(func(r *protocol.FunctionRegister, _ *signature.Signature) { r.Override = true })
}

// OverNATS has the function be called over NATS too, by a broker that runs with --nats-functions.
func OverNATS() HandleOption {
	return handleOption(func(_ *protocol.FunctionRegister, s *signature.Signature) { s.NATS = true })
}

// Doc is what the function does, for people.
func Doc(text string) HandleOption {
	return handleOption(func(_ *protocol.FunctionRegister, s *signature.Signature) { s.Doc = text })
}

// Registration is a function that this process provides.
type Registration struct{ p *provider }

// Handle provides a function under a name, with a version (name@version) or without, from now until Close. Each
// call runs in a goroutine, and as many at a time as Concurrency says.
//
// In is what callers give: a struct, each of whose exported fields is a parameter (`baton:"name,default=0.5"`,
// `baton:",optional"`, pointers are optional); struct{} for none; Args for whatever is given; any other type for the one
// parameter x. Out is what they get: a number, string, []byte, *Tensor, *Function, or slices, maps and structs of these;
// any; struct{} for nothing. Types that write and read themselves as text (time.Time) are strings; structs with
// unexported fields alone are ErrInvalid, and errors as values. Types that arguments do not fit are refused at the caller.
//
// Tensors of In are lent for as long as the function runs (Retain keeps one), and may be written if their caller's
// may. Tensors of Out are released when they were sent: of one that is to stay, return what Retain gives. A *Function of
// In is closed when the function has returned; a *Function of Out is a registered one, and stays open.
//
// ctx is done when the caller cancels the call or has gone, and when its deadline passes; calls that the function makes
// with it end then, too. An error that it returns is ErrRemote at its caller; RemoteError gives it a kind. A panic is
// an error with its trace, also one of a method of what f returns (Error of a nil pointer, MarshalText).
//
// Errors: ErrConflict if it is registered otherwise, or this session provides it already; ErrPermissionDenied if
// another user has the name; ErrInvalid; ErrTooMany.
func Handle[In, Out any](c *Client, name string, f func(ctx context.Context, in In) (Out, error), opts ...HandleOption) (*Registration, error) {
	if err := protocol.CheckFunction(name); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, noFunction(name)
	}
	s := &signature.Signature{}
	if err := describeResult(s, reflect.TypeFor[Out]()); err != nil {
		return nil, err
	}
	read, err := readerOf[In](s)
	if err != nil {
		return nil, err
	}
	return provide(c, name, s, opts, func(k *callContext, r *received, _ *partsSender) (any, error) {
		in, err := read(r)
		if err != nil {
			return nil, err
		}
		return f(k, in)
	})
}

// noFunction is the error of a nil function.
func noFunction(name string) error {
	return protocol.Errorf(protocol.CodeInvalid, "give a function", "%s is nil", name)
}

// provide registers a function by its name, and begins to take calls.
func provide(c *Client, name string, s *signature.Signature, opts []HandleOption, run runFunc) (*Registration, error) {
	p := newProvider(c, run)
	p.parts = s.Parts
	request := protocol.FunctionRegister{Concurrency: 1}
	for _, o := range opts {
		if n, is := o.(concurrency); is {
			if err := n.check(); err != nil {
				return nil, protocol.Errorf(protocol.CodeInvalid, "use 1 to 1024", "%s: %w", name, err)
			}
		}
		o.handle(&request, s)
	}
	err := s.Check()
	if err != nil {
		return nil, err
	}
	if request.Description, err = s.JSON(); err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, "write defaults as JSON", "describe %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), registerWait)
	defer cancel()
	if err := p.register(ctx, name, &request); err != nil {
		return nil, err
	}
	p.begin()
	return &Registration{p}, nil
}

// describeResult describes the result that a Go type stands for, or the parts.
func describeResult(s *signature.Signature, t reflect.Type) error {
	if t == reflect.TypeFor[struct{}]() {
		s.Result = "none"
		return nil
	}
	if err := carried(t); err != nil {
		return protocol.Errorf(protocol.CodeInvalid, remedyOf(err), "the result: %w", err)
	}
	if text := typeText(t); text != "any" {
		s.Result = text
	}
	return nil
}

// readerOf describes the parameters that a Go type stands for, and gives what reads it from a call.
func readerOf[In any](s *signature.Signature) (func(*received) (In, error), error) {
	into, err := readerInto(reflect.TypeFor[In](), s)
	if err != nil {
		return nil, err
	}
	if isOne(reflect.TypeFor[In]()) { // without reflection, where that can be
		return func(r *received) (in In, err error) {
			v, err := r.onlyOne()
			if err != nil {
				return in, err
			}
			if in, err = convert[In](v); err != nil {
				err = refused("the parameter x: %w", err)
			}
			return in, err
		}, nil
	}
	return func(r *received) (in In, err error) { return in, into(r, reflect.ValueOf(&in).Elem()) }, nil
}

// isOne tells whether a Go type stands for the one parameter x.
func isOne(t reflect.Type) bool {
	return t != reflect.TypeFor[Args]() && (t.Kind() != reflect.Struct || typeText(t) != "dict")
}

// readerInto is readerOf where the type is not known to the compiler.
func readerInto(t reflect.Type, s *signature.Signature) (func(*received, reflect.Value) error, error) {
	switch {
	case t == reflect.TypeFor[Args]():
		return func(r *received, in reflect.Value) error { in.Set(reflect.ValueOf(Args{r})); return nil }, nil
	case !isOne(t):
		fields, err := fieldsOf(t)
		if err != nil {
			return nil, err
		}
		parameters := make([]signature.Parameter, len(fields))
		for i := range fields {
			parameters[i] = fields[i].Parameter
		}
		s.Parameters = &parameters
		return func(r *received, in reflect.Value) error { return readFieldsOf(in, fields, r) }, nil
	}
	if err := carried(t); err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, remedyOf(err), "the parameter x: %w", err)
	}
	s.Parameters = &[]signature.Parameter{{Name: "x", Type: typeText(t)}}
	return func(r *received, in reflect.Value) error {
		v, err := r.onlyOne()
		if err == nil {
			if err = assign(in, v); err != nil {
				err = refused("the parameter x: %w", err)
			}
		}
		return err
	}, nil
}

// onlyOne is the argument of a function that has the one parameter x.
func (r *received) onlyOne() (any, error) {
	args := r.record.Args
	if len(args) != 1 || args[0].Name != "" && args[0].Name != "x" {
		return nil, refused("%d arguments were given for the one parameter x", len(args))
	}
	return r.value(&args[0])
}

// readFieldsOf sets the fields of a struct from arguments by position and by name.
func readFieldsOf(in reflect.Value, fields []callField, r *received) error {
	var room [8]int
	which := append(room[:0], make([]int, len(fields))...) // number of the argument + 1
	for i := range r.record.Args {
		at := i
		if name := r.record.Args[i].Name; name != "" && (i >= len(fields) || fields[i].Name != name) {
			for at = 0; at < len(fields) && fields[at].Name != name; at++ {
			}
			if at == len(fields) {
				return refused("there is no parameter %s", name)
			}
		}
		if at >= len(fields) {
			return refused("%d arguments were given, and the function takes %d", len(r.record.Args), len(fields))
		}
		if which[at] != 0 {
			return refused("the parameter %s is given twice", fields[at].Name)
		}
		which[at] = i + 1
	}
	for at := range fields {
		var v any
		if n := which[at]; n != 0 {
			a := &r.record.Args[n-1]
			if !fields[at].text && setScalar(in.Field(fields[at].index), a) {
				continue
			}
			var err error
			if v, err = r.value(a); err != nil {
				return err
			}
		}
		if err := fields[at].assign(in, v, which[at] != 0); err != nil {
			return err
		}
	}
	return nil
}

// setScalar sets a field of the very kind that an argument has; false where it is another kind. No value is
// boxed for it.
func setScalar(to reflect.Value, a *protocol.CallArg) bool {
	switch kind := to.Kind(); {
	case a.Code == protocol.ArgFloat && kind == reflect.Float64:
		to.SetFloat(math.Float64frombits(a.Value))
	case a.Code == protocol.ArgInt && (kind == reflect.Int64 || kind == reflect.Int):
		to.SetInt(int64(a.Value)) // an int has 64 bits on each machine that Baton runs on
	case a.Code == protocol.ArgBool && kind == reflect.Bool:
		to.SetBool(a.Value == 1)
	case a.Code == protocol.ArgStr && kind == reflect.String:
		to.SetString(a.Text)
	default:
		return false
	}
	return true
}

// register opens the function, or makes one without a name, reads in its group, and has the broker list it.
func (p *provider) register(ctx context.Context, name string, request *protocol.FunctionRegister) error {
	t, err := p.c.openNumbered(ctx, protocol.TopicOpenRequest{Name: name, Kind: protocol.KindFunction, Create: true})
	if err != nil {
		return err
	}
	group := protocol.GroupOfFunction
	r, err := t.Read(ctx, lanes.StartAll, &group)
	if err != nil {
		t.Close()
		return err
	}
	request.TopicRef, request.Reader = protocol.TopicRef{Topic: t.Info.Topic, ID: t.Info.ID}, r.Number()
	var ok protocol.FunctionRegistered
	if _, err := p.c.s.Link.Call(ctx, protocol.OpFunctionRegister, request, &ok); err != nil {
		r.Close()
		t.Close()
		return err
	}
	crashpoint.At("function-registered")
	r.Provide(ok.Registration, ok.Counted, p.c.canBegin)
	p.t, p.reader, p.most = t, &Reader{c: p.c, t: t, r: r}, max(1, int(request.Concurrency))
	return nil
}

// registerWait is how long a registration waits for the broker.
const registerWait = 30 * time.Second

// Name is the function's name, with its version.
func (r *Registration) Name() string { return r.p.t.Info.Name }

// IsCurrent tells whether it takes calls: not any more once another provider has overridden it, it was removed, or the
// session has ended.
func (r *Registration) IsCurrent() bool { return !r.p.over() }

// Done is closed once it takes no more calls and all that it has begun have ended.
func (r *Registration) Done() <-chan struct{} { return r.p.workersEnded }

// Wait waits until it takes no more calls and all that it has begun have ended: nil if it was closed, overridden or
// removed, or the client was closed; ErrSessionLost if a broker has ended the session, ErrPermissionDenied if its
// user may not use the broker any more; the error of ctx, which ErrTimeout is at its deadline.
func (r *Registration) Wait(ctx context.Context) error {
	p := r.p
	select {
	case <-p.workersEnded:
	case <-ctx.Done():
		return fault.Context(ctx, "waiting for the end of "+p.t.Info.Name)
	}
	if err := p.c.s.Link.CheckLost(ctx); err != nil {
		return err
	}
	return nil
}

// Close takes no more calls, waits until those that run have ended or ctx is done (ErrTimeout at its deadline;
// they run on), and leaves. A second Close does the same.
func (r *Registration) Close(ctx context.Context) error {
	p := r.p
	p.closed.Store(true)
	p.c.s.Waits.WakeAll()
	select {
	case <-p.workersEnded:
		return nil
	case <-ctx.Done():
		return fault.Context(ctx, "waiting for the calls that run of "+p.t.Info.Name)
	}
}

// answer runs a call and replies, unless it is over.
func (p *provider) answer(m *Message, claimed lanes.Claimed) {
	replied := false
	defer func() {
		m.Release()
		claimed.End(replied)
	}()
	r, err := receive(m)
	if err != nil || r.record.Kind != protocol.CallRequest {
		return // its caller has broken the protocol
	}
	if err := p.canReply(&claimed, &r.record); err != nil {
		if !claimed.IsCancelled() && !isLate(&r.record) {
			claimed.Ran(0)
			claimed.Failed()
			unreplied(&claimed, err)
		}
		return
	}
	ctx := newCallContext(p.c, p.t, claimed, &r.record)
	failed := cmp.Or(givenTwice(r.record.Args), p.takeFunctions(ctx, r))
	began := sys.Monotonic()
	if r.record.Deadline != 0 && began >= r.record.Deadline || claimed.IsCancelled() || !claimed.Begin() {
		ctx.end()
		return
	}
	var parts *partsSender
	if p.parts {
		parts = &partsSender{p: p, k: ctx, began: began}
	}
	var given *callMessage
	told := &RemoteError{Kind: "panic", Message: "the function ended its goroutine"}
	defer func() { // also where that is so
		if parts != nil {
			parts.end()
		}
		ctx.end()
		claimed.Ran(sys.Monotonic() - began)
		crashpoint.At("call-ran")
		replied = p.reply(&claimed, &r.record, began, given, told)
		crashpoint.At("call-replied")
	}()
	if failed != nil {
		told = remoteOf(failed)
		return
	}
	given, told = p.runOne(ctx, r, parts)
}

// takeFunctions opens the functions among the arguments, as canReply does.
func (p *provider) takeFunctions(k *callContext, r *received) error {
	for {
		err := r.takeFunctions(context.Background(), k)
		if err == nil || !p.again(err, &k.claimed, &r.record) {
			return err
		}
	}
}

// canReply opens where the caller waits, before the function begins: after that it needs no broker. It tries as
// long as its caller waits.
func (p *provider) canReply(claimed *lanes.Claimed, request *protocol.Call) error {
	if p.c.knownPlace(request.TopicID) != nil {
		return nil
	}
	ctx := context.Background()
	if request.Deadline != 0 {
		left := time.Duration(int64(request.Deadline) - int64(sys.Monotonic()))
		until, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		ctx = until
	}
	for {
		_, err := p.c.replyPlace(ctx, request)
		if err == nil || !p.again(err, claimed, request) {
			return err
		}
	}
}

// unreplied notes for the caller of a call why it ends without a reply, where memory lacks for one.
func unreplied(claimed *lanes.Claimed, err error) {
	switch fault.Code(err) {
	case protocol.CodeOutOfMemory, protocol.CodeQuota, protocol.CodeTooMany:
		claimed.NoReply()
	}
}

// again tells whether what failed since no broker answered is to be tried again.
func (p *provider) again(err error, claimed *lanes.Claimed, request *protocol.Call) bool {
	return fault.Uncertain(err) && p.c.s.Life.Ended() == nil && !isLate(request) && !claimed.IsCancelled()
}

// runOne runs the function of a call: what it gives, or how it has failed. All that is the function's own runs here, so
// that a panic is an error: methods of its error and of its result, too. Behind it is none of it left.
func (p *provider) runOne(k *callContext, r *received, parts *partsSender) (given *callMessage, told *RemoteError) {
	if err := p.refuses(&r.record); err != nil {
		return nil, remoteOf(err)
	}
	defer func() {
		if x := recover(); x != nil {
			given, told = nil, panicked(x, debug.Stack())
		}
	}()
	v, err := p.run(k, r, parts)
	if err = k.ownEnd(err); err != nil {
		return nil, remoteOf(err)
	}
	m := &callMessage{}
	m.record.Args = m.args[:0]
	if err := m.add("", v); err != nil {
		return nil, remoteOf(err)
	}
	return m, nil
}

// refuses tells what a request asks for that the function does not do: its caller did not know of it.
func (p *provider) refuses(request *protocol.Call) error {
	switch takes := request.Flags&protocol.CallTakesParts != 0; {
	case takes && !p.parts:
		return protocol.Errorf(protocol.CodeInvalid, "call it without a stream", "the function gives one result, and no parts")
	case request.Object != 0 && !p.isDoor:
		return protocol.Errorf(protocol.CodeInvalid, "", "the function is no argument, and is called as number %d", request.Object)
	case !takes && p.parts:
		return protocol.Errorf(protocol.CodeInvalid, "call it as a stream", "the function gives parts, and no one result")
	}
	return nil
}

// reply sends what a function has given, or how it has failed, or that its call was cancelled meanwhile. False: its
// caller has nothing.
func (p *provider) reply(claimed *lanes.Claimed, request *protocol.Call, began uint64, m *callMessage, told *RemoteError) bool {
	if m != nil {
		defer m.releaseAll()
	}
	if claimed.IsDeserted() {
		return false
	}
	if claimed.IsCancelled() { // what the function returned goes no further
		return p.replyError(claimed, request, began, remoteOf(
			protocol.Errorf(protocol.CodeCancelled, "", "the caller wants the call no more")))
	}
	if told == nil && isLate(request) { // nor does it after the deadline
		return p.replyError(claimed, request, began, remoteOf(
			protocol.Errorf(protocol.CodeTimeout, "", "the call's deadline has passed")))
	}
	if told == nil {
		m.record.Kind, m.record.Number, m.record.Deadline = protocol.CallReply, request.Number, began
		err := m.nameFunctions()
		if err == nil {
			err = m.encode()
		}
		if err == nil {
			var replied bool
			if replied, err = p.send(claimed, request, m); replied || !isFault(err) {
				return replied
			}
		}
		told = remoteOf(err) // a value that cannot be sent is an error of the function
	}
	claimed.Failed()
	return p.replyError(claimed, request, began, told)
}

// replyError sends an error as a reply.
func (p *provider) replyError(claimed *lanes.Claimed, request *protocol.Call, began uint64, told *RemoteError) bool {
	m := &callMessage{}
	m.record = protocol.Call{Kind: protocol.CallReply, Number: request.Number, Deadline: began}
	if p.noTraces || p.t.Function().KeepsTraces() {
		told = told.withoutTraces(0)
	}
	if m.addError(told) != nil || m.encode() != nil {
		return false
	}
	replied, err := p.send(claimed, request, m)
	unreplied(claimed, err)
	return replied
}

// send sends a reply. Where a broker has to be asked and none answers it tries as long as its caller waits.
func (p *provider) send(claimed *lanes.Claimed, request *protocol.Call, m *callMessage) (bool, error) {
	for {
		replied, err := p.c.sendReply(context.Background(), request, m)
		if !p.again(err, claimed, request) {
			return replied, err
		}
	}
}

// isFault reports an error of a value that was to be sent.
func isFault(err error) bool {
	switch fault.Code(err) {
	case protocol.CodeInvalid, protocol.CodeExpired, protocol.CodeOutOfMemory, protocol.CodeQuota, protocol.CodeTooMany, protocol.CodeReadOnly, protocol.CodeClosed, protocol.CodeHandle:
		return true
	}
	return false
}

// releaseAll releases the tensors of a result.
func (m *callMessage) releaseAll() {
	for _, t := range m.tensors {
		t.Release()
	}
	if m.tree == nil { // it was not encoded
		for _, v := range m.nested {
			releaseIn(v)
		}
	}
	for _, t := range m.inTree {
		t.Tensor.(*Tensor).Release()
	}
}

// releaseIn releases the tensors of a value.
func releaseIn(v any) {
	switch v := v.(type) {
	case *Tensor:
		v.Release()
	case []any:
		for _, item := range v {
			releaseIn(item)
		}
	case protocol.ValueTuple:
		releaseIn([]any(v))
	case map[string]any:
		for _, item := range v {
			releaseIn(item)
		}
	case protocol.Dict:
		for _, item := range v {
			releaseIn(item.Value)
		}
	case protocol.Dataclass:
		releaseIn(v.Value)
	}
}
