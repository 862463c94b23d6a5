// Package natscalls answers requests over NATS to functions of this machine: it makes calls of them, as a client of
// the broker in whose process it is.
//
// A request is JSON: an array of arguments by position, an object of arguments by name, or nothing. The answer is
// the JSON of the result. What JSON does not have is an object of one key: {"$handle": H} is a tensor by its
// handle, {"$bytes": "base64"} bytes, {"$tuple": T} the value of a tuple, which may be the whole request as well. docs/functions.md, Over NATS, describes it for users.
//
// Ownership: the session keeps the functions that it has called open, until it has had no request for a while. A
// handle in an answer has a lease of a minute, within which the asking client opens it. Concurrency: each
// request has a goroutine, up to mostCalls. Death: the calls are a client's, so they end as any call does; a request
// whose asker has gone runs to its deadline.
package natscalls

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cmd/baton/internal/ownsessions"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// HeaderTimeout says how long a request waits for its result, as 5s or 0.5.
	HeaderTimeout = "Baton-Timeout"
	// DefaultTimeout is how long one waits that does not say.
	DefaultTimeout = 30 * time.Second
	// MaxTimeout bounds what a request may ask for.
	MaxTimeout = time.Hour

	// SessionName is what listings call the sessions that call functions for NATS.
	SessionName = "nats"
	// IdleTime is how long a session is kept that calls nothing: it would keep a broker from its idle exit.
	IdleTime = 10 * time.Second

	// mostCalls bounds the requests under way: each holds a goroutine and a place in the lane of its function.
	mostCalls = 256
	// leaseTime is how long the tensors of an answer can be opened.
	leaseTime = time.Minute
)

// Calls answers requests. Make it with New, end it with Close.
type Calls struct {
	address string
	log     *slog.Logger
	ctx     context.Context
	cancel  context.CancelFunc
	room    chan struct{}
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	sessions *ownsessions.Pool
}

// New makes calls as a client of the broker at an address.
func New(address string, log *slog.Logger) *Calls {
	c := &Calls{address: address, log: log, room: make(chan struct{}, mostCalls)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.sessions = ownsessions.New(c.ctx, address, SessionName, IdleTime, log)
	return c
}

// Answer calls a function for a request. It returns at once.
func (c *Calls) Answer(f natsbridge.Function, r natsbridge.FunctionRequest) {
	select {
	case c.room <- struct{}{}:
	default:
		c.refuse(r, protocol.Errorf(protocol.CodeFull, "ask again later", "%d requests over NATS are under way", mostCalls))
		return
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		c.refuse(r, protocol.Errorf(protocol.CodeBrokerLost, "ask again: another broker may answer", "the broker ends"))
		return
	}
	c.running.Add(1)
	c.mu.Unlock()
	go func() {
		defer c.running.Done()
		defer func() { <-c.room }()
		answer, err := c.call(f, r)
		if room := r.Room(); err == nil && len(answer) > room {
			err = protocol.Errorf(codeTooLarge, "return a tensor, which goes by its handle, or less; or have the server take larger messages (max_payload)",
				"%s has run, and its result has %d bytes as JSON: the NATS server takes %d", f.Name, len(answer), room)
		}
		if err != nil {
			c.refuse(r, c.ended(f, err))
			return
		}
		c.sent(f.Name, r.Respond(answer))
	}()
}

// ended is the error of a request that failed: where the broker ends, that is why its call was cancelled.
func (c *Calls) ended(f natsbridge.Function, err error) error {
	if c.ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return protocol.Errorf(protocol.CodeBrokerLost, "ask again where it does no harm that the function may have run: another broker may answer",
		"the broker ends, and with it the call of %s", f.Name).Because(err)
}

// call makes the call and returns the JSON of its result.
func (c *Calls) call(f natsbridge.Function, r natsbridge.FunctionRequest) ([]byte, error) {
	timeout, err := timeoutOf(r.Header(HeaderTimeout))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	s, err := c.sessions.Get(ctx, f.Namespace)
	if err != nil {
		return nil, err
	}
	defer c.sessions.Release(s)
	given := &given{ctx: ctx, c: s.Client()}
	defer given.release()
	args, err := given.arguments(r.Data())
	if err != nil {
		return nil, err
	}
	result, err := client.Call[any](ctx, s.Client(), f.Name, args...)
	if protocol.CodeOf(err) == protocol.CodeSessionLost {
		c.sessions.Forget(s)
	}
	if err != nil {
		return nil, err
	}
	return encode(ctx, result)
}

func timeoutOf(text string) (time.Duration, error) {
	if text == "" {
		return DefaultTimeout, nil
	}
	d, err := time.ParseDuration(text)
	if seconds, e := strconv.ParseFloat(text, 64); e == nil && seconds <= MaxTimeout.Seconds() {
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil || d <= 0 || d > MaxTimeout {
		return 0, protocol.Errorf(protocol.CodeInvalid, "use seconds or a duration such as 5s, up to "+MaxTimeout.String(), "the header %s is %q", HeaderTimeout, text)
	}
	return d, nil
}

// Close cancels what runs, and ends.
func (c *Calls) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
	c.sessions.Close()
}

// failure is the body of an answer that is an error.
type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Kind    string `json:"kind,omitempty"` // of a function's own error
	Trace   string `json:"trace,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

func (f *failure) body() []byte {
	body, err := json.Marshal(f)
	if err != nil {
		return nil // texts that are no UTF-8 are made so by Marshal: it does not come to this
	}
	return body
}

// codeTooLarge is that of a result which the NATS server would refuse.
const codeTooLarge = protocol.CodeUnsupported

// statuses are the codes that the errors have in the header Nats-Service-Error-Code, by those that HTTP has for the like.
var statuses = map[protocol.Code]string{
	protocol.CodeInvalid: "400", protocol.CodeHandle: "400", protocol.CodePermission: "403", protocol.CodeNotFound: "404",
	protocol.CodeNoProvider: "404", protocol.CodeTimeout: "408", protocol.CodeConflict: "409", protocol.CodeExpired: "410",
	codeTooLarge: "413", protocol.CodeFull: "429", protocol.CodeTooMany: "429", protocol.CodeCancelled: "499", protocol.CodeProviderDied: "502",
	protocol.CodeBrokerLost: "503", protocol.CodeClosed: "503", protocol.CodeSessionLost: "503", protocol.CodeOutOfMemory: "507", protocol.CodeQuota: "507",
}

// refuse answers with an error.
func (c *Calls) refuse(r natsbridge.FunctionRequest, err error) {
	code := protocol.CodeOf(err)
	f := failure{Code: string(code), Message: protocol.Plain(err)}
	var own *client.RemoteError
	var typed *protocol.Error
	switch {
	case errors.As(err, &own):
		f.Kind, f.Message, f.Trace = own.Kind, own.Message, own.Trace
	case errors.As(err, &typed):
		f.Remedy = typed.Remedy
	}
	status := statuses[code]
	if status == "" {
		status = "500"
	}
	body := f.body()
	if len(body) > r.Room() {
		f.Trace, f.Message = "", shortened(f.Message)
		body = f.body()
	}
	text := strings.Join(strings.Fields(f.Message), " ") // a header has one line
	c.sent("", r.Fail(status, shortened(text), body))
}

// shortened keeps a text that stands in a header within bounds.
func shortened(text string) string {
	const most = 512
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// sent notes an answer that could not be given: the asking client will time out.
func (c *Calls) sent(name string, err error) {
	if err != nil {
		c.log.Warn("a request over NATS to a function was not answered", "function", name, "error", err)
	}
}
