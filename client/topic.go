package client

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/protocol"
)

// TopicOption configures a topic. One left out takes what exists, else the
// default; one that differs from the existing topic's gives ErrConflict.
type TopicOption interface {
	topic(*opening)
}

// QueueOption configures a queue, likewise.
type QueueOption interface {
	queue(*opening)
}

// opening is what a topic or queue is to be opened with.
type opening struct {
	protocol.TopicOpenRequest
	err error // of an option that cannot be asked for
}

type commonOption func(*opening)

func (f commonOption) topic(r *opening) { f(r) }
func (f commonOption) queue(r *opening) { f(r) }

type topicOption func(*opening)

func (f topicOption) topic(r *opening) { f(r) }

type queueOption func(*opening)

func (f queueOption) queue(r *opening) { f(r) }

// CommonOption is an option of topics and of queues.
type CommonOption interface {
	TopicOption
	QueueOption
}

// Depth is how many messages of each sender are kept (default 8, of a queue 64).
func Depth(n int) CommonOption {
	return commonOption(func(r *opening) { r.Depth = r.number("depth", n, 1, protocol.MaxDepth) })
}

// Description is the bytes of a slot for what describes a message (default
// 1024); a longer description costs a storage.
func Description(bytes int) CommonOption {
	return commonOption(func(r *opening) { r.Description = r.number("description", bytes, 0, protocol.MaxDescription) })
}

// number checks an option's value, which the broker would get as another one.
func (r *opening) number(option string, n, least, most int) *uint32 {
	if n < least || n > most {
		r.err = protocol.Errorf(protocol.CodeInvalid, fmt.Sprintf("use %d to %d", least, most), "%s %d of %s", option, n, lanes.TitleOf(r.Kind, r.Name))
		return nil
	}
	u := uint32(n)
	return &u
}

// LingerOption is an option of topics, of queues and of functions.
type LingerOption interface {
	CommonOption
	HandleOption
}

type lingerOption time.Duration

func (d lingerOption) topic(r *opening) { s := time.Duration(d).Seconds(); r.Linger = &s }
func (d lingerOption) queue(r *opening) { d.topic(r) }
func (d lingerOption) handle(r *protocol.FunctionRegister, _ *signature.Signature) {
	r.Linger = time.Duration(d).Seconds()
}

// Linger is how long a topic stays when no session has it open (default 60 s), and how long a function stays
// listed (default 0): calls of one without a provider are ErrNoProvider all the same.
func Linger(d time.Duration) LingerOption { return lingerOption(d) }

// MustExist opens only what is there: ErrNotFound otherwise.
func MustExist() CommonOption {
	return commonOption(func(r *opening) { r.Create = false })
}

// Overwrite false makes a topic lossless: a send waits for the slowest reader.
func Overwrite(yes bool) TopicOption {
	return topicOption(func(r *opening) { r.Overwrite = &yes })
}

// Redeliver makes an item whose taker dies before releasing it go to another.
func Redeliver(yes bool) QueueOption {
	return queueOption(func(r *opening) { r.Redeliver = &yes })
}

// Topic is a channel of messages with many senders and many readers.
type Topic struct {
	c      *Client
	t      *lanes.Topic
	out    outgoing // for the use of whichever has the turn to send
	closed atomic.Bool
}

// Topic opens or makes a topic. An empty name makes a private one, which others
// open by its Token. Errors: ErrInvalid, ErrConflict, ErrNotFound, ErrTooMany.
func (c *Client) Topic(ctx context.Context, name string, opts ...TopicOption) (*Topic, error) {
	r := opening{TopicOpenRequest: protocol.TopicOpenRequest{Name: name, Kind: protocol.KindTopic, Create: true}}
	for _, o := range opts {
		o.topic(&r)
	}
	t, err := c.openNamed(ctx, &r)
	if err != nil {
		return nil, err
	}
	return &Topic{c: c, t: t}, nil
}

func (c *Client) openNamed(ctx context.Context, r *opening) (*lanes.Topic, error) {
	if r.err != nil {
		return nil, r.err
	}
	if r.Name != "" {
		if err := protocol.CheckName(r.Name); err != nil {
			return nil, err
		}
	}
	return c.openNumbered(ctx, r.TopicOpenRequest)
}

func (c *Client) openNumbered(ctx context.Context, r protocol.TopicOpenRequest) (*lanes.Topic, error) {
	return c.s.Topics.Join(ctx, protocol.OpTopicOpen, func(opening uint64) any {
		r.Opening = opening
		return &r
	})
}

// OpenPrivate opens another process's private topic by its token. Errors: ErrNotFound if no
// private topic has the token, ErrConflict if a queue has it, ErrInvalid for an empty one.
func (c *Client) OpenPrivate(ctx context.Context, token string) (*Topic, error) {
	t, err := c.openNumbered(ctx, protocol.TopicOpenRequest{Token: token, Kind: protocol.KindTopic})
	if err != nil {
		return nil, err
	}
	return &Topic{c: c, t: t}, nil
}

// Info tells what the topic is.
func (t *Topic) Info() protocol.TopicInfo { return t.t.Info }

// Token opens a private topic in another process.
func (t *Topic) Token() string { return t.t.Info.Token }

// Send hands a value to every reader: a *Tensor, a *Bundle, a map[string]*Tensor,
// or a nested value of map[string]any, []any, nil, bool, numbers, strings, bytes
// and tensors. No tensor is copied. The tensors stay the caller's to release,
// and are not to be written any more. In a lossless topic it waits until the
// slowest reader has made room (ErrFull at the deadline of ctx). Other errors:
// ErrClosed, ErrInvalid, ErrOutOfMemory.
func (t *Topic) Send(ctx context.Context, v any, opts ...SendOption) error {
	if t.closed.Load() {
		return fault.Closed(t.t.Title())
	}
	return t.c.send(ctx, t.t, &t.out, v, 0, opts)
}

// ReaderOption configures a reader.
type ReaderOption interface{ reader(*readerOptions) }

type readerOptions struct {
	start Start
	group *string
}

func (s Start) reader(o *readerOptions) { o.start = s }

type groupOption string

func (g groupOption) reader(o *readerOptions) { s := string(g); o.group = &s }

// Group shares a lossless topic's messages among the readers of that name.
func Group(name string) ReaderOption { return groupOption(name) }

// Reader joins as a reader, by default for what is sent from now on. In a topic that overwrites it
// may lose messages; in a lossless topic senders wait for it. Errors: ErrInvalid (a start or a
// group that is none, a group in a topic that overwrites), ErrTooMany, ErrClosed also once the
// Topic was closed. The caller closes the Reader.
func (t *Topic) Reader(ctx context.Context, opts ...ReaderOption) (*Reader, error) {
	if t.closed.Load() {
		return nil, fault.Closed(t.t.Title())
	}
	var o readerOptions
	for _, f := range opts {
		f.reader(&o)
	}
	if o.start < StartNew || o.start > StartAll {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use StartNew, StartLast or StartAll", "no start %d", o.start)
	}
	if o.group != nil && protocol.CheckNamespace(*o.group) != nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use 1 to 32 of A-Z a-z 0-9 _ -", "group %q is not one token", *o.group)
	}
	r, err := t.t.Read(ctx, o.start.at(), o.group)
	if err != nil {
		return nil, err
	}
	return &Reader{c: t.c, t: t.t, r: r}, nil
}

// Close ends this use of the topic: it leaves it. Other uses, of this process and of
// others, stay open; End closes the topic for all. What was sent is
// kept for its readers. A second Close does nothing. ErrTimeout after five seconds in
// which the broker did not answer, ErrBrokerLost if none was there: the use ends
// once it, or the next one, is told.
func (t *Topic) Close() error {
	if t.closed.Swap(true) {
		return nil
	}
	return t.t.Close()
}

// End closes the topic for all sessions, which Close does not: sends fail with ErrClosed, and readers get
// it once they have received all that is there. What another sends at that moment
// may be received although the send fails, and not the other way round.
func (t *Topic) End(ctx context.Context) error { return t.t.CloseForAll(ctx) }
