package client

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"time"

	"github.com/baton-ipc/baton/client/internal/memory"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Bundle is several named tensors: a state dict, a batch, the value of a name.
// It holds what it was made of until Release; its tensors are lent by it.
type Bundle struct {
	names   []string
	tensors []*Tensor
	tree    []byte // value tree; empty: one unnamed tensor, or a flat dict
	meta    []byte
	held    *memory.Holding

	// Revision is the number that a name's revision got, 0 for other bundles. It grows with each revision, by more than one
	// where the name spans several hosts.
	Revision uint64
	// Live tells that all sessions may write the bundle in place, so that reads may
	// see half a write.
	Live bool
	// Stale is for names that span several hosts: when the bundle was taken the broker could not say that this revision is
	// the newest. It has not got a newer one yet, or does not reach what orders them.
	Stale bool

	stamp uint64 // when the revision was set, ns of CLOCK_MONOTONIC; 0: it is none
}

// Age is how long ago the revision of a name was set, also on another host; 0 for other bundles.
func (b *Bundle) Age() time.Duration {
	if b.stamp == 0 {
		return 0
	}
	return max(time.Duration(sys.Monotonic()-b.stamp), 0)
}

// Spec describes one tensor of a bundle to be allocated.
type Spec struct {
	Name  string
	DType dlpack.DType
	Shape []int64
}

// AllocBundle allocates several tensors in one storage, each aligned to 256 bytes, so that a whole
// state dict is one reference. Their bytes are undefined. Errors: ErrInvalid (a shape, a dtype, two
// specs of one name), ErrOutOfMemory, ErrQuotaExceeded; with one nothing is held.
func (c *Client) AllocBundle(ctx context.Context, specs ...Spec) (*Bundle, error) {
	return c.allocBundle(ctx, c.opts.alloc, specs)
}

// AllocBundleOn is AllocBundle on a GPU, named as for Device. Errors besides: ErrUnsupported for a
// Client that was connected without WithDevices, ErrNotFound or ErrInvalid for a GPU that this
// process does not see.
func (c *Client) AllocBundleOn(ctx context.Context, device string, specs ...Spec) (*Bundle, error) {
	o := c.opts.alloc
	o.device = device
	return c.allocBundle(ctx, o, specs)
}

func (c *Client) allocBundle(ctx context.Context, o allocOptions, specs []Spec) (*Bundle, error) {
	b := &Bundle{held: memory.NewHolding(c.s.Memory)}
	if err := checkNames(specs); err != nil {
		return nil, err
	}
	offsets := make([]uint64, len(specs))
	total := uint64(0)
	for i, s := range specs {
		n, err := s.DType.NumBytes(s.Shape)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalid, "use shapes whose bytes fit in 64 bits and known dtypes", "allocate %q %s%v: %w", s.Name, s.DType, s.Shape, err)
		}
		offsets[i] = total
		if total += (uint64(n) + protocol.Alignment - 1) &^ (protocol.Alignment - 1); total > 1<<52 {
			return nil, protocol.Errorf(protocol.CodeOutOfMemory, "ask for less", "a bundle of more than 2^52 bytes")
		}
	}
	if total > 0 {
		if err := c.fill(ctx, b.held, total, o); err != nil {
			return nil, err
		}
	}
	for i, s := range specs {
		t := &Tensor{c: c, held: b.held, storage: -1, dtype: s.DType, shape: append([]int64(nil), s.Shape...), name: s.Name, lent: true}
		if n, _ := dlpack.NumElements(s.Shape); n > 0 {
			t.storage, t.offset = 0, offsets[i]
			if err := t.place(true); err != nil {
				b.Release()
				return nil, err
			}
		}
		b.names, b.tensors = append(b.names, s.Name), append(b.tensors, t)
	}
	return b, nil
}

// checkNames refuses names that would not be the keys of a dict.
func checkNames(specs []Spec) error {
	seen := make(map[string]struct{}, len(specs))
	for _, s := range specs {
		if _, twice := seen[s.Name]; twice {
			return errNames(fmt.Sprintf("two tensors have the name %q", s.Name))
		}
		seen[s.Name] = struct{}{}
	}
	return nil
}

func errNames(what string) error {
	return protocol.Errorf(protocol.CodeInvalid, "give each tensor a name of its own", "%s", what)
}

// NewBundle gathers tensors under names. They stay their owner's: the bundle is
// for sending them together, and needs no Release.
func NewBundle(tensors map[string]*Tensor) *Bundle {
	b := &Bundle{}
	for name := range tensors {
		b.names = append(b.names, name)
	}
	sort.Strings(b.names)
	for _, name := range b.names {
		b.tensors = append(b.tensors, tensors[name])
	}
	return b
}

// Names lists the tensors in their order; a path in a nested value has its parts
// joined by '/'.
func (b *Bundle) Names() []string { return b.names }

// Tensors lists them in the same order, lent.
func (b *Bundle) Tensors() []*Tensor { return b.tensors }

// Tensor returns the tensor of a name, lent, or nil.
func (b *Bundle) Tensor(name string) *Tensor {
	for i, n := range b.names {
		if n == name {
			return b.tensors[i]
		}
	}
	return nil
}

// Value returns the structure that was sent: nested map[string]any, []any, protocol.ValueTuple,
// numbers, strings, bytes, with *Tensor leaves, lent. ErrProtocol: the sender described it wrongly.
func (b *Bundle) Value() (any, error) {
	paths := make([]string, len(b.names))
	for i := range b.names {
		paths[i] = b.path(i)
	}
	return protocol.DecodeValue(b.tree, paths, func(i int) (any, error) {
		if i >= len(b.tensors) {
			return nil, protocol.Errorf(protocol.CodeProtocol, "update or restart its sender", "the value has a tensor %d, and %d came", i, len(b.tensors))
		}
		return b.tensors[i], nil
	})
}

// Meta decodes into v what the bundle's sender or setter attached by the option Meta; without
// meta it leaves v alone. Sending the bundle on does not repeat it. ErrInvalid: the meta
// cannot be decoded into v.
func (b *Bundle) Meta(v any) error {
	if len(b.meta) == 0 {
		return nil
	}
	if err := json.Unmarshal(b.meta, v); err != nil {
		return protocol.Errorf(protocol.CodeInvalid, "decode into the type that was sent", "meta: %w", err)
	}
	return nil
}

// RawMeta returns the JSON of the meta, nil when there is none.
func (b *Bundle) RawMeta() json.RawMessage { return b.meta }

// path is a tensor's name on the wire. The names of a flat bundle are keys,
// those of a nested value are paths already.
func (b *Bundle) path(i int) string {
	if len(b.tree) > 0 || b.names[i] == "" {
		return b.names[i]
	}
	return protocol.TensorPath(b.names[i])
}

// NumBytes returns the bytes of all tensors.
func (b *Bundle) NumBytes() int64 {
	n := int64(0)
	for _, t := range b.tensors {
		n += t.NumBytes()
	}
	return n
}

// Retain adds a holder of the bundle's memory. It panics after the last Release.
func (b *Bundle) Retain() {
	if b.held != nil {
		b.held.Retain()
	}
}

// Release ends one holder; after the last, the tensors must not be used. It panics if no holder is left, as
// Message.Release.
func (b *Bundle) Release() {
	if b.held != nil {
		b.held.Release()
	}
}
