package client

import (
	"context"
	"math"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// received is a request or reply that came, with its record, which was checked.
type received struct {
	m      *Message
	b      *Bundle
	record protocol.Call
	items  []any // of the tree, once one was asked for
	// Of a reply: tensors that are given out are holders of their own.
	owns   bool
	within context.Context // of a reply: its call's
	owned  []*Tensor
	opened []*Function // of the result

	args [6]protocol.CallArg // room
}

// receive reads the record of a message, which stays the caller's to release.
func receive(m *Message) (*received, error) {
	b, err := m.Bundle()
	if err != nil {
		return nil, err
	}
	r := &received{m: m, b: b}
	r.record.Args = r.args[:0]
	if err := r.record.Parse(b.meta); err != nil {
		return nil, err
	}
	return r, nil
}

func malformed(what string) error {
	return protocol.Errorf(protocol.CodeProtocol, "update or restart its sender", "a call came with %s", what)
}

// tensor gives a tensor by its number.
func (r *received) tensor(i int) (any, error) {
	if i < 0 || i >= len(r.b.tensors) {
		return nil, malformed("a tensor that is not there")
	}
	t := r.b.tensors[i]
	if r.owns {
		t = t.Retain()
		r.owned = append(r.owned, t)
	}
	return t, nil
}

// undo releases what was given out.
func (r *received) undo() {
	for _, t := range r.owned {
		t.Release()
	}
	for _, f := range r.opened {
		f.Close()
	}
	r.owned, r.opened = nil, nil
}

// value is what an argument is.
func (r *received) value(a *protocol.CallArg) (any, error) {
	switch a.Code {
	case protocol.ArgTensor:
		return r.tensor(int(min(a.N, math.MaxInt32)))
	case protocol.ArgTree:
		return r.item(a.N)
	}
	return scalarArg(a), nil
}

// scalarArg is the value of an argument that stands in the table.
func scalarArg(a *protocol.CallArg) any {
	switch a.Code {
	case protocol.ArgInt:
		return int64(a.Value)
	case protocol.ArgBool:
		return a.Value == 1
	case protocol.ArgFloat:
		return math.Float64frombits(a.Value)
	case protocol.ArgStr:
		return a.Text
	case protocol.ArgBytes:
		return []byte(a.Text)
	case protocol.ArgDType:
		return dlpack.DType{Code: dlpack.TypeCode(a.Value), Bits: uint8(a.Value >> 8), Lanes: uint16(a.Value >> 16)}
	case protocol.ArgDevice:
		return dlpack.Device{Type: dlpack.DeviceType(int32(a.Value)), ID: int32(a.Value >> 32)}
	}
	return nil
}

// decode reads the tree, unless that was done.
func (r *received) decode() error {
	if r.items != nil {
		return nil
	}
	if len(r.b.tree) == 0 {
		return malformed("an item of a tree that is not there")
	}
	tree, err := protocol.DecodeTree(r.b.tree, r.tensor)
	if err != nil {
		return err
	}
	items, is := tree.([]any)
	if !is {
		return malformed("a tree that is no list")
	}
	r.items = items
	return nil
}

func (r *received) item(n uint32) (any, error) {
	if r.items == nil {
		if err := r.decode(); err != nil {
			return nil, err
		}
		if r.owns {
			if err := r.ownFunctions(); err != nil {
				return nil, err
			}
		}
	}
	if uint64(n) >= uint64(len(r.items)) {
		return nil, malformed("an item that its tree does not have")
	}
	return r.items[n], nil
}

// result is the one argument of a reply.
func (r *received) result() (any, error) {
	if len(r.record.Args) != 1 || r.record.Args[0].Name != "" {
		return nil, malformed("no result, or more than one")
	}
	return r.value(&r.record.Args[0])
}

// named finds an argument by its name; false where there is none.
func (r *received) named(name string) (any, bool, error) {
	for i := range r.record.Args {
		if a := &r.record.Args[i]; a.Name == name {
			v, err := r.value(a)
			return v, err == nil, err
		}
	}
	return nil, false, nil
}

// resultOf reads a result or a part, and releases what it came in. What it opens for that ends with the call.
func resultOf[T any](ctx context.Context, f *Function, r *received) (out T, err error) {
	defer r.m.Release()
	read := false
	defer func() { // also where T's own reading panics
		if !read {
			r.undo()
		}
	}()
	r.owns, r.within = true, ctx
	v, err := r.result()
	if err == nil {
		out, err = convert[T](v)
	}
	if read = err == nil; !read {
		var none T
		return none, protocol.Errorf(protocol.CodeOf(err), "ask for the type that the function returns", "the result of %s: %w", f.title(), err)
	}
	return out, nil
}

// Args are the arguments of a call as they came: for a function that takes whatever is given. They are lent for
// as long as the function runs; Retain keeps a tensor.
type Args struct{ of *received }

// Len is how many were given.
func (a Args) Len() int { return len(a.of.record.Args) }

// Name is the name by which an argument was given, "" if it was by position.
func (a Args) Name(i int) string { return a.of.record.Args[i].Name }

// At returns an argument: nil, bool, int64, float64, string, []byte, *Tensor, *Function, dlpack.DType, dlpack.Device,
// or what Bundle.Value has. Errors: ErrInvalid for a number beyond the arguments, ErrProtocol if the caller has
// described it wrongly.
func (a Args) At(i int) (any, error) {
	if i < 0 || i >= a.Len() {
		return nil, refused("%d arguments were given, and number %d is asked for", a.Len(), i+1)
	}
	return a.of.value(&a.of.record.Args[i])
}

// Named returns the argument that was given by a name; false if there is none. ErrProtocol: the
// caller has described it wrongly.
func (a Args) Named(name string) (any, bool, error) { return a.of.named(name) }
