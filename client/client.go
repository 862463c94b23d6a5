package client

import (
	"context"
	"os"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/link"
	"github.com/baton-ipc/baton/client/internal/session"
	"github.com/baton-ipc/baton/client/internal/turn"
	"github.com/baton-ipc/baton/handles"
	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Version is reported to the broker; the build sets it.
var Version = "dev"

// Client is a session with a broker. See the package comment for which goroutines may
// use it. Make one with Connect, end it with Close.
type Client struct {
	s     *session.Session
	opts  options
	calls calls

	handovers atomic.Uint64
	bytesSent atomic.Uint64
}

// Connect opens a session, starting the user's broker if none runs. Without a
// deadline in ctx it waits at most 30 s. Errors: ErrNoBroker, ErrVersion,
// ErrPermissionDenied, ErrTooMany, ErrInvalid.
func Connect(ctx context.Context, opts ...Option) (*Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	return connect(ctx, o)
}

func connect(ctx context.Context, o options) (*Client, error) {
	ctx, cancel := link.WithDefaultTimeout(ctx, 30*time.Second)
	defer cancel()
	socket, named, err := address.Resolve(o.address)
	if err != nil {
		return nil, err
	}
	s, err := session.Open(ctx, session.Options{Place: link.Place{Socket: socket, Named: named, Start: o.start, Binary: o.binary}, Hello: o.hello(),
		Devices: o.devices, Modest: o.modest, Trace: os.Getenv(address.EnvTrace) == "1"})
	if err != nil {
		return nil, err
	}
	c := &Client{s: s, opts: o}
	c.calls.door.making = turn.New()
	return c, nil
}

// Namespace returns where this client's names live.
func (c *Client) Namespace() string { return c.opts.namespace }

// Instance identifies the broker's memory. A handle of another instance is fetched if both brokers run with --span,
// else refused.
func (c *Client) Instance() string { return c.s.Files.Instance }

// Session returns the serial by which listings name this session.
func (c *Client) Session() uint64 { return c.s.Files.Serial }

// Broker asks the broker a read-only question (an op of docs/protocol.md, such as "status" or
// "list") and decodes the answer into what reply points to; nil: it is not looked at.
// ErrUnsupported: the broker does not know the op; ErrPermissionDenied: it is only for the
// broker's user; ErrInvalid: reply is no pointer; other errors are the op's own.
func (c *Client) Broker(ctx context.Context, op string, body, reply any) error {
	if to := reflect.ValueOf(reply); reply != nil && (to.Kind() != reflect.Pointer || to.IsNil()) {
		return protocol.Errorf(protocol.CodeInvalid, "give a pointer to what it is decoded into", "the reply to %s cannot be decoded into a %T", op, reply)
	}
	fds, err := c.s.Link.Call(ctx, op, body, reply)
	wire.CloseAll(fds)
	return err
}

// Close ends the session. What was sent is still received. Tensors, slices and DLPack tensors that
// were not released stay valid, and their bytes as they are, until they are; what is released then
// is recycled as ever. All else is unmapped: memory that nothing here holds at once, the session's
// own files when the Client and what came from it are garbage. While no broker runs Close returns
// within two seconds, and the next broker is told when it is there. A broker that is lost or does
// not answer is no error; any other refusal is returned, and the Client is closed all the same. It
// may be called from any goroutine; a second Close does nothing.
func (c *Client) Close() error { return c.s.Close() }

// Reopen opens a new session with the options of this one: what a program does after
// ErrSessionLost; after ErrPermissionDenied it fails until the user may use the broker. Topics, queues, readers and tensors of the old session stay its own:
// calls go on to fail, and what was received can be read and released. Close the old
// Client when it is of no more use. Errors are those of Connect.
func (c *Client) Reopen(ctx context.Context) (*Client, error) { return connect(ctx, c.opts) }

// Collect looks for storages that nothing holds any more and gives empty memory
// back to the broker, which otherwise stays here, warm, for the next tensors.
// It returns the bytes given back.
func (c *Client) Collect() uint64 { return c.s.Memory.Reclaim((*handles.Pool).Reclaim) }

// Stats is what this process has and did.
type Stats struct {
	handles.PoolStats
	Handovers uint64 // messages sent
	BytesSent uint64 // bytes of tensors handed over, none of them copied
	Segments  int    // mapped here
	Topics    int
}

// Stats returns the figures.
func (c *Client) Stats() Stats {
	s := Stats{Handovers: c.handovers.Load(), BytesSent: c.bytesSent.Load(), Topics: c.s.Topics.Count()}
	s.PoolStats, s.Segments = c.s.Memory.Stats()
	return s
}
