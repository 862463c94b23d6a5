package client

import (
	"context"
	"time"

	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/client/internal/waits"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
)

// SetOption configures Set: Live, Ephemeral, Replaces, or Meta, which its readers find in the
// bundle.
type SetOption interface {
	set(*protocol.NameSet, *sendOptions)
}

type setOption func(*protocol.NameSet)

func (f setOption) set(s *protocol.NameSet, _ *sendOptions) { f(s) }

// Live makes the name's bundle one that all sessions may write in place.
func Live() SetOption { return setOption(func(s *protocol.NameSet) { s.Live = true }) }

// Ephemeral deletes the name at the end of this session.
func Ephemeral() SetOption { return setOption(func(s *protocol.NameSet) { s.Ephemeral = true }) }

// Set publishes a revision of a name: a whole that is not written any more, or,
// with Live, one bundle that all write. v is what Topic.Send takes. It returns
// the revision's number. What tensors on GPUs hold is waited for. Where the namespace
// spans hosts, they agree within the context's deadline, or as the broker is set. Errors:
// ErrInvalid, ErrExpired, ErrOutOfMemory; with other hosts ErrConflict, ErrUnreachable.
func (c *Client) Set(ctx context.Context, name string, v any, opts ...SetOption) (uint64, error) {
	if err := protocol.CheckName(name); err != nil {
		return 0, err
	}
	var o outgoing
	req := protocol.NameSet{Name: name, Setting: protocol.RandomNumber()}
	for _, f := range opts {
		f.set(&req, &o.options)
	}
	if err := c.compose(&o, v, nil); err != nil {
		return 0, err
	}
	if o.devices != nil {
		if err := c.s.Devices.AwaitWritten(ctx, o.devices...); err != nil {
			return 0, err
		}
	}
	words, head, err := c.place(ctx, &o, protocol.DefaultDescription)
	if err != nil {
		return 0, err
	}
	defer o.finish()
	req.Bytes, req.Tensors = o.bytes, head.Tensors
	if head.Flags&protocol.SlotSpilled != 0 {
		req.Spilled = true
		req.Refs = append(req.Refs, storageRef(o.spill.Storages[0].Ref))
	} else {
		req.Body = head.BodyOf(words)
	}
	for _, r := range o.refs {
		req.Refs = append(req.Refs, storageRef(r))
	}
	crashpoint.At("name-asked")
	req.Seconds = waits.SecondsForHosts(ctx)
	var ok protocol.NameSetReply
	if _, err := c.s.Link.Call(ctx, protocol.OpNameSet, &req, &ok); err != nil {
		return 0, err
	}
	crashpoint.At("name-set")
	c.sent(&o)
	return ok.Revision, nil
}

func storageRef(r protocol.Ref) protocol.StorageRef {
	return protocol.StorageRef{Index: r.Index, Serial: r.Serial, Generation: r.Generation}
}

// GetOption configures Get.
type GetOption func(*getOptions)

type getOptions struct{ wait time.Duration }

// WaitForName is how long Get waits for a name that is not set (default 0: not at
// all).
func WaitForName(d time.Duration) GetOption {
	return func(o *getOptions) { o.wait = d }
}

// Get returns the newest revision of a name, ErrNotFound if there is none and none
// comes in the time that WaitForName gives. The caller releases the bundle.
func (c *Client) Get(ctx context.Context, name string, opts ...GetOption) (*Bundle, error) {
	var o getOptions
	for _, f := range opts {
		f(&o)
	}
	if err := protocol.CheckName(name); err != nil {
		return nil, err
	}
	m, stale, err := c.newest(ctx, name)
	if err != nil {
		return nil, err
	}
	if m == nil && o.wait > 0 {
		if m, stale, err = c.awaitName(ctx, name, o.wait); err != nil {
			return nil, err
		}
	}
	if m == nil {
		return nil, protocol.Errorf(protocol.CodeNotFound, "set it first, or wait longer", "name %s is not set", name)
	}
	return bundleOf(m, stale)
}

// newest returns the newest revision of a name as a message, nil where none is set.
func (c *Client) newest(ctx context.Context, name string) (m *Message, stale bool, err error) {
	m = newMessage(c)
	from, ok, err := c.s.Topics.Newest(ctx, name, &m.taken)
	if !ok {
		return nil, false, err
	}
	return m.from(from), from.Stale, nil
}

// awaitName waits for a revision; nil where none comes in time.
func (c *Client) awaitName(ctx context.Context, name string, wait time.Duration) (m *Message, stale bool, err error) {
	w, err := c.Watch(ctx, name)
	if err != nil {
		return nil, false, err
	}
	defer w.Close()
	until, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	m, err = w.r.Receive(until)
	if fault.Code(err) == protocol.CodeTimeout {
		err = nil
	}
	return m, w.r.t.IsStale(), err
}

// bundleOf makes a message's bundle its own holder.
func bundleOf(m *Message, stale bool) (*Bundle, error) {
	b, err := m.Bundle()
	if err != nil {
		m.Release()
		return nil, err
	}
	b.Revision, b.stamp, b.Stale = m.Sequence, m.Stamp, stale
	return b, nil
}

// Watch follows a name: Next gives the current revision at once, then always the newest. Errors:
// ErrInvalid for what is no name, ErrTooMany. The caller closes the Watch.
func (c *Client) Watch(ctx context.Context, name string) (*Watch, error) {
	if err := protocol.CheckName(name); err != nil {
		return nil, err
	}
	t, err := c.s.Topics.OpenName(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := t.Read(ctx, lanes.StartLast, nil)
	if err != nil {
		t.Close()
		return nil, err
	}
	return &Watch{r: &Reader{c: c, t: t, r: r}}, nil
}

// Watch is a reader of a name's revisions. One goroutine at a time.
type Watch struct {
	r      *Reader
	closed bool
}

// Next returns the newest revision not seen yet, waiting for one until ctx ends
// (ErrTimeout at its deadline). The caller releases the bundle.
func (w *Watch) Next(ctx context.Context) (*Bundle, error) {
	m, err := w.r.Receive(ctx)
	if err != nil {
		return nil, err
	}
	return bundleOf(m, w.r.t.IsStale())
}

// TryNext returns a revision not seen yet if there is one, else nil. Errors are those of Next, but
// for ErrTimeout; the caller releases the bundle.
func (w *Watch) TryNext(ctx context.Context) (*Bundle, error) {
	m, err := w.r.TryReceive(ctx)
	if m == nil || err != nil {
		return nil, err
	}
	return bundleOf(m, w.r.t.IsStale())
}

// Close ends the watch. A second Close does nothing. Errors are those of Topic.Close.
func (w *Watch) Close() error {
	if w.closed {
		return nil
	}
	w.closed = true
	err := w.r.Close()
	if e := w.r.t.Close(); err == nil {
		err = e
	}
	return err
}

// Delete removes a name: ErrNotFound when it is not set. Bundles that were got stay with
// their holders.
func (c *Client) Delete(ctx context.Context, name string) error {
	if err := protocol.CheckName(name); err != nil {
		return err
	}
	c.s.Topics.LeaveName(name)
	before, err := c.s.Link.CallNoting(ctx, protocol.OpNameDelete, protocol.NameRef{Name: name, Seconds: waits.SecondsForHosts(ctx)}, nil)
	if before && fault.Code(err) == protocol.CodeNotFound {
		return nil // the broker that was asked before has deleted it, and could not say so any more
	}
	return err
}
