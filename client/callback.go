package client

import (
	"context"
	"encoding/hex"
	"reflect"
	"sync"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/client/internal/turn"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// Callback is a function of this process as an argument; see Func.
type Callback struct {
	run runFunc
	err error // why it cannot be given
}

// Func makes an argument of a function of this process: what is called can call it while the call runs.
//
//	loss, err := client.Call[float64](ctx, c, "train", data, client.Arg("on_step", client.Func(
//		func(ctx context.Context, loss float64) (bool, error) { … })))
//
// In and Out are as those of Handle. f runs in goroutines of its own, several at a time if the other side calls it
// so. Its ctx is done when it is wanted no more, and when the call that it was given to has ended; that call returns
// once f has. Errors and panics of f go to whatever has called it. A call that is given a nil f is ErrInvalid.
func Func[In, Out any](f func(ctx context.Context, in In) (Out, error)) *Callback {
	if f == nil {
		return &Callback{err: noFunction("the function of client.Func")}
	}
	read, err := readerOf[In](&signature.Signature{})
	return &Callback{err: err, run: func(k *callContext, r *received, _ *partsSender) (any, error) {
		in, err := read(r)
		if err != nil {
			return nil, err
		}
		return f(k, in)
	}}
}

// door is the private function by which others call the functions that this session has given as arguments.
type door struct {
	making turn.Turn // held while it is made

	mu    sync.Mutex // guards what follows
	p     *provider  // nil: there is none yet
	token string
	last  uint64 // number of the last object
	lent  map[uint64]*lent
}

// lending are the functions that one call has given.
type lending struct {
	d       *door
	objects []uint64
	sent    chan struct{} // closed once call is known
	call    *lanes.Call   // nil: it was not sent

	running sync.WaitGroup
	runs    map[*callContext]struct{} // guarded by the mutex of the door
}

// lent is one of them.
type lent struct {
	of *lending
	f  *Callback
}

// door makes the door of the session, once.
func (c *Client) door(ctx context.Context) (*door, error) {
	d := &c.calls.door
	if err := d.making.Take(ctx); err != nil {
		return nil, err
	}
	defer d.making.End()
	if d.p != nil {
		return d, nil
	}
	p := newProvider(c, d.run)
	p.isDoor = true
	request := protocol.FunctionRegister{Concurrency: protocol.MaxConcurrency, Description: "{}"}
	if err := p.register(ctx, "", &request); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.p, d.token, d.lent = p, p.t.Info.Token, map[uint64]*lent{}
	d.mu.Unlock()
	p.begin()
	return d, nil
}

// lend gives a function of this process a number, and makes the value that stands for it.
func (m *callMessage) lend(ctx context.Context, c *Client, f *Callback) (any, error) {
	if f.err != nil {
		return nil, f.err
	}
	d, err := c.door(ctx)
	for c.unanswered(ctx, err) {
		d, err = c.door(ctx)
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.lending == nil {
		m.lending = &lending{d: d, sent: make(chan struct{}), runs: map[*callContext]struct{}{}}
	}
	d.last++
	d.lent[d.last] = &lent{m.lending, f}
	m.lending.objects = append(m.lending.objects, d.last)
	return protocol.ValueFunction{Token: d.token, Object: d.last}, nil
}

// begins notes the call that the functions were given to; nil: it was not sent. l may be nil.
func (l *lending) begins(call *lanes.Call) {
	if l == nil {
		return
	}
	l.call = call
	close(l.sent)
}

// end takes the functions back, and waits for those that run. l may be nil.
func (l *lending) end() {
	if l == nil {
		return
	}
	l.d.mu.Lock()
	for _, object := range l.objects {
		delete(l.d.lent, object)
	}
	for k := range l.runs {
		k.stop()
	}
	l.d.mu.Unlock()
	l.running.Wait()
}

// run runs a function of this session that is called by its number.
func (d *door) run(k *callContext, r *received, parts *partsSender) (any, error) {
	d.mu.Lock()
	one := d.lent[r.record.Object]
	if one != nil {
		one.of.runs[k] = struct{}{}
		one.of.running.Add(1)
	}
	d.mu.Unlock()
	if one == nil {
		return nil, lentNoMore()
	}
	l := one.of
	defer func() {
		d.mu.Lock()
		delete(l.runs, k)
		d.mu.Unlock()
		l.running.Done()
	}()
	if !l.isFor(k.claimed.CallerSlot()) {
		return nil, lentNoMore()
	}
	return one.f.run(k, r, parts)
}

// isFor tells whether a session has the call that the functions were given to. Others have no use of them, though they
// may know the token.
func (l *lending) isFor(slot uint32) bool {
	<-l.sent
	if l.call == nil {
		return false
	}
	member, state := l.call.State()
	return state == shm.CallBegun && uint32(member) == slot
}

// Functions in what is sent and in what came.

// eachFunction replaces the functions in a value that is made of those types that a value tree has.
func eachFunction(v any, replace func(any) (any, error)) (any, error) {
	all := func(items []any) error {
		for i, item := range items {
			with, err := eachFunction(item, replace)
			if err != nil {
				return err
			}
			items[i] = with
		}
		return nil
	}
	switch v := v.(type) {
	case *Callback, *Function, protocol.ValueFunction:
		return replace(v)
	case []any:
		return v, all(v)
	case protocol.ValueTuple:
		return v, all(v)
	case map[string]any:
		for key, item := range v {
			with, err := eachFunction(item, replace)
			if err != nil {
				return nil, err
			}
			v[key] = with
		}
	case protocol.Dict:
		for i := range v {
			with, err := eachFunction(v[i].Value, replace)
			if err != nil {
				return nil, err
			}
			v[i].Value = with
		}
	case protocol.Dataclass:
		_, err := eachFunction(v.Value, replace)
		return v, err
	}
	return v, nil
}

// giveFunctions makes values of the functions among the arguments of a call.
func (m *callMessage) giveFunctions(ctx context.Context, c *Client) error {
	if len(m.nested) == 0 {
		return nil
	}
	return m.functions(func(v any) (any, error) {
		switch f := v.(type) {
		case *Callback:
			return m.lend(ctx, c, f)
		case *Function:
			if f.object != 0 { // it is the other session's, and is called through this one
				return m.lend(ctx, c, f.passedOn())
			}
			return protocol.ValueFunction{Name: f.Name()}, nil
		}
		return v, nil
	})
}

// nameFunctions makes values of the functions of a result, which have to be registered.
func (m *callMessage) nameFunctions() error {
	if len(m.nested) == 0 {
		return nil
	}
	return m.functions(func(v any) (any, error) {
		if f, is := v.(*Function); is && f.object == 0 {
			return protocol.ValueFunction{Name: f.Name()}, nil
		}
		if f, is := v.(protocol.ValueFunction); is {
			return f, nil
		}
		return nil, protocol.Errorf(protocol.CodeInvalid, "register it, and return what Client.Function gives", "a function that is returned is not registered")
	})
}

func (m *callMessage) functions(replace func(any) (any, error)) error {
	for i, v := range m.nested {
		with, err := eachFunction(v, replace)
		if err != nil {
			return err
		}
		m.nested[i] = with
	}
	return nil
}

// passedOn makes an argument of a function that was one.
func (f *Function) passedOn() *Callback {
	return &Callback{run: func(k *callContext, r *received, _ *partsSender) (any, error) {
		args := make([]any, len(r.record.Args))
		for i := range args {
			a := &r.record.Args[i]
			v, err := r.value(a)
			if err != nil {
				return nil, err
			}
			if args[i] = v; a.Name != "" {
				args[i] = Arg(a.Name, v)
			}
		}
		return f.Call(k, args...)
	}}
}

var functionType = reflect.TypeFor[*Function]()

// takeFunctions opens the functions among the arguments that came, for as long as the call runs. Done again it goes
// on where it failed.
func (r *received) takeFunctions(ctx context.Context, k *callContext) error {
	for i := range r.record.Args {
		if r.record.Args[i].Code == protocol.ArgTree {
			if err := r.decode(); err != nil {
				return err
			}
			break
		}
	}
	if len(r.items) == 0 {
		return nil
	}
	return r.eachFunction(func(f protocol.ValueFunction) (*Function, error) {
		var of *Function
		var err error
		if f.Token == "" {
			of, err = k.c.knownFunction(ctx, f.Name)
		} else {
			of, err = k.c.openDoor(ctx, f.Token)
		}
		if err != nil {
			return nil, err
		}
		given := &Function{opened: of.opened, object: f.Object}
		k.given = append(k.given, given)
		return given, nil
	})
}

// ownFunctions opens the functions of a result, which are its caller's to close.
func (r *received) ownFunctions() error {
	ctx, cancel := context.WithTimeout(r.within, registerWait)
	defer cancel()
	return r.eachFunction(func(f protocol.ValueFunction) (*Function, error) {
		if f.Token != "" {
			return nil, malformed("a result with a function that is not registered")
		}
		of, err := r.m.c.openFunction(ctx, f.Name, 0)
		if err == nil {
			r.opened = append(r.opened, of)
		}
		return of, err
	})
}

func (r *received) eachFunction(open func(protocol.ValueFunction) (*Function, error)) error {
	for i, v := range r.items {
		with, err := eachFunction(v, func(v any) (any, error) {
			f, is := v.(protocol.ValueFunction)
			if !is {
				return v, nil
			}
			return open(f)
		})
		if err != nil {
			return err
		}
		r.items[i] = with
	}
	return nil
}

// openDoor finds the door of another session by its token, or opens it. The caller ends the use.
func (c *Client) openDoor(ctx context.Context, token string) (*Function, error) {
	r := &c.calls.replies
	find := func() *Function {
		r.mu.Lock()
		defer r.mu.Unlock()
		if f := r.doors[token]; f != nil && f.use() {
			return f
		}
		return nil
	}
	if f := find(); f != nil {
		return f, nil
	}
	if b, err := hex.DecodeString(token); err != nil || len(b) != 16 {
		return nil, malformed("a function argument without a token")
	}
	t, err := c.openNumbered(ctx, protocol.TopicOpenRequest{Token: token, Kind: protocol.KindFunction})
	if err != nil {
		return nil, err
	}
	f := newFunction(c, t)
	f.hold()
	r.mu.Lock()
	if r.doors == nil {
		r.doors = map[string]*Function{}
	}
	other := r.doors[token]
	r.doors[token] = f
	r.mu.Unlock()
	if other != nil { // another goroutine was faster
		go other.Close()
	}
	return f, nil
}
