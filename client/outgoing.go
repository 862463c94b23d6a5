package client

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/baton-ipc/baton/client/internal/devices"
	"github.com/baton-ipc/baton/client/internal/fault"
	"github.com/baton-ipc/baton/client/internal/gpu"
	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/protocol"
	"github.com/baton-ipc/baton/shm"
)

// SendOption configures one send: Meta, or the Stream after whose work the tensors
// are written (by default the legacy one; of use for tensors on GPUs).
type SendOption interface{ send(*sendOptions) }

type sendOptions struct {
	meta   any
	stream gpu.Stream
	given  bool // otherwise it is the legacy one
}

// after is the stream after whose work the tensors are written.
func (o *sendOptions) after() gpu.Stream {
	if o.given {
		return o.stream
	}
	return gpu.LegacyStream
}

// MetaOption is an option of a send and of Set.
type MetaOption struct{ v any }

func (m MetaOption) send(o *sendOptions)                     { o.meta = m.v }
func (m MetaOption) set(_ *protocol.NameSet, o *sendOptions) { o.meta = m.v }

// Meta attaches a value that JSON can hold to a message or to a revision of a name.
func Meta(v any) MetaOption { return MetaOption{v} }

// outgoing is a message before it has a place: its refs, held by the caller's
// tensors, and its body.
type outgoing struct {
	refs    []protocol.Ref
	body    []byte
	tensors int
	bytes   uint64
	flags   uint32
	spill   *memory.Holding // of the spill storage, when there is one
	counted []uint32        // indices to count up for this message
	devices []devices.Part  // that lie on GPUs
	order   gpu.Point       // when a stream will have written them
	options sendOptions

	desc    protocol.Body
	oneRef  [1]protocol.Ref
	oneDesc [1]protocol.Tensor
	room    [256]byte
	words   [40]uint64
}

// reset empties it and keeps its room, which is never cleared: that would cost
// more than all that a small message needs.
func (o *outgoing) reset(flags uint32) {
	o.refs, o.body, o.desc = nil, nil, protocol.Body{}
	o.tensors, o.bytes, o.flags = 0, 0, flags
	o.spill, o.options = nil, sendOptions{}
	o.counted = o.counted[:0]
	o.devices, o.order = nil, gpu.Point{}
}

// compose turns what was given to a send into a message. Tensors of another
// client are refused: their memory is another broker's.
func (c *Client) compose(o *outgoing, v any, opts []SendOption) error {
	for _, f := range opts {
		f.send(&o.options)
	}
	o.refs, o.desc.Tensors = o.oneRef[:0], o.oneDesc[:0]
	switch v := v.(type) {
	case *Tensor:
		if err := c.addTensor(o, v, ""); err != nil {
			return err
		}
	case *Bundle:
		if err := v.given(); err != nil {
			return err
		}
		o.desc.Tree = v.tree
		for i, t := range v.tensors {
			if v.names[i] == "" && len(v.names) > 1 && len(v.tree) == 0 {
				return errNames("a tensor without a name beside others")
			}
			if err := c.addTensor(o, t, v.path(i)); err != nil {
				return err
			}
		}
		// A lone named tensor needs its dict spelled out no more than many do; an
		// empty bundle needs a tree, or it would read as one unnamed tensor.
		if len(v.tensors) == 0 && len(v.tree) == 0 {
			o.desc.Tree = []byte("{}")
		}
	case map[string]*Tensor:
		return c.compose(o, NewBundle(v), opts)
	case *callMessage:
		if err := v.compose(c, o); err != nil {
			return err
		}
	default:
		tree, tensors, err := protocol.EncodeTree(v, func(x any) bool { _, is := x.(*Tensor); return is })
		if err != nil {
			return err
		}
		o.desc.Tree = tree
		for _, t := range tensors {
			if err := c.addTensor(o, t.Tensor.(*Tensor), t.Name); err != nil {
				return err
			}
		}
	}
	if o.options.meta != nil {
		meta, err := json.Marshal(o.options.meta)
		if err != nil {
			return protocol.Errorf(protocol.CodeInvalid, "use values that JSON can hold", "encode meta: %w", err)
		}
		o.desc.Meta = meta
	}
	o.tensors = len(o.desc.Tensors)
	var err error
	o.body, err = protocol.AppendBody(o.room[:0], &o.desc)
	return err
}

// given refuses what is no tensor.
func (t *Tensor) given(name string) error {
	if t == nil {
		return protocol.Errorf(protocol.CodeInvalid, "see whether there is a tensor of that name where it came from", "tensor %q is nil", name)
	}
	return nil
}

// given refuses what is no bundle.
func (b *Bundle) given() error {
	if b == nil {
		return protocol.Errorf(protocol.CodeInvalid, "give a bundle, or nil for no value", "the bundle is nil")
	}
	return nil
}

func (c *Client) addTensor(o *outgoing, t *Tensor, name string) error {
	if err := t.given(name); err != nil {
		return err
	}
	if t.held == nil || t.c != c {
		return c.notOurs(t, name)
	}
	if err := t.usable(); err != nil {
		return err
	}
	d := protocol.Tensor{Ref: -1, Code: uint8(t.dtype.Code), Bits: t.dtype.Bits, Lanes: t.dtype.Lanes, DeviceType: 1,
		Offset: t.offset, ReadOnly: t.readonly, Shape: t.shape, Strides: t.strides, Name: name}
	if t.storage < 0 {
		d.Offset = 0
	} else {
		s := &t.held.Storages[t.storage]
		s.Share(c.s.Memory)
		ref := s.Ref
		for i := len(o.refs) - 1; i >= 0; i-- {
			if o.refs[i] == ref {
				d.Ref = i
				break
			}
		}
		if d.Ref < 0 {
			d.Ref = len(o.refs)
			o.refs = append(o.refs, ref)
		}
		o.bytes += uint64(t.NumBytes())
		if t.device != nil {
			d.DeviceType, d.DeviceID = int32(dlpack.CUDA), t.device.ID
			o.devices = append(o.devices, t.part())
		}
	}
	o.desc.Tensors = append(o.desc.Tensors, d)
	return nil
}

// place lays the message out for a slot with room bytes, in a spill storage of
// its own when it is too long. It fills counted with what the slot will name.
func (c *Client) place(ctx context.Context, o *outgoing, room int) ([]uint64, shm.SlotHead, error) {
	head := shm.SlotHead{Flags: o.flags, Tensors: uint16(o.tensors), Bytes: o.bytes, Body: uint32(len(o.body)), Nref: uint16(len(o.refs))}
	o.counted = o.counted[:0]
	words := o.words[:0]
	if o.order.IsSet() {
		head.Flags |= protocol.SlotOrdered
		room -= protocol.OrderSize
	}
	if len(o.refs)*protocol.RefSize+len(o.body) <= room {
		for _, r := range o.refs {
			words = shm.AppendRef(words, r)
			o.counted = append(o.counted, r.Index)
		}
		if o.order.IsSet() {
			words = appendOrder(words, &o.order)
		}
		return shm.AppendBytes(words, o.body), head, nil
	}
	n, err := protocol.SpillLen(len(o.refs), len(o.body))
	if err != nil {
		return nil, head, err
	}
	o.spill = memory.NewHolding(c.s.Memory)
	if err := c.fill(ctx, o.spill, uint64(n), c.opts.alloc); err != nil {
		o.spill = nil
		return nil, head, err
	}
	region, err := o.spill.Region(0, true)
	if err == nil {
		_, err = protocol.AppendSpill(region.Bytes(0, region.Len())[:0], o.refs, o.body)
	}
	if err != nil {
		o.finish()
		return nil, head, err
	}
	crashpoint.At("spill-written")
	o.spill.Storages[0].Share(c.s.Memory)
	ref := o.spill.Storages[0].Ref
	o.counted = append(o.counted, ref.Index)
	for _, r := range o.refs {
		o.counted = append(o.counted, r.Index)
	}
	head.Flags |= protocol.SlotSpilled
	head.Nref, head.Body = 1, 0
	if words = shm.AppendRef(words, ref); o.order.IsSet() {
		words = appendOrder(words, &o.order)
	}
	return words, head, nil
}

func appendOrder(words []uint64, p *gpu.Point) []uint64 {
	number, value := p.At()
	return shm.AppendOrder(words, number, value)
}

// finish lets go of the spill storage: from here on the slot alone names it.
func (o *outgoing) finish() {
	if o.spill != nil {
		o.spill.Release()
		o.spill = nil
	}
}

// notOurs is the error of a tensor of another session, whose memory is another
// broker's, or counted in another holder's refcounts.
func (c *Client) notOurs(t *Tensor, name string) error {
	tensor := "the tensor"
	if name != "" {
		tensor = fmt.Sprintf("tensor %q", name)
	}
	if t.held == nil {
		return protocol.Errorf(protocol.CodeInvalid, "send one that was allocated or received", "%s belongs to no session", tensor)
	}
	its, this := t.c.s.Files, c.s.Files
	const remedy = "copy its elements into this session: Alloc a tensor there, and copy from Slice to Slice"
	if its.Instance != this.Instance {
		return protocol.Errorf(protocol.CodeInvalid, remedy,
			"%s belongs to another session: to %d of broker %s, and this is %d of broker %s", tensor, its.Serial, its.Instance, this.Serial, this.Instance)
	}
	if err := t.c.s.Life.Ended(); err != nil {
		how := "was closed"
		if fault.IsSessionLost(err) {
			how = "is lost"
		}
		return protocol.Errorf(protocol.CodeInvalid, remedy, "%s belongs to a session that %s: to %d, and this is %d", tensor, how, its.Serial, this.Serial)
	}
	return protocol.Errorf(protocol.CodeInvalid, "send it in its own session, or open its handle in this one, or "+remedy,
		"%s belongs to another session: to %d, and this is %d", tensor, its.Serial, this.Serial)
}
