package natscalls

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"math"
	"math/big"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// Members of the objects that stand for what JSON does not have.
const (
	markHandle = "$handle"
	markBytes  = "$bytes"
	// markTuple is of the value of a tuple, as a broker publishes one.
	markTuple = "$tuple"
	// markFunction is of a result that is a registered function: its name.
	markFunction = "$function"
)

// maxDepth bounds the nesting of what is asked for and answered.
const maxDepth = protocol.MaxTreeDepth

// given is what a request has given: the tensors that were opened for it are released after the call.
type given struct {
	ctx     context.Context
	c       *client.Client
	tensors []*client.Tensor
}

func (g *given) release() {
	for _, t := range g.tensors {
		t.Release()
	}
}

func refused(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalid, `ask with a JSON array of arguments, or an object of arguments by name`, format, args...)
}

// arguments reads a request.
func (g *given) arguments(data []byte) ([]any, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	if t, err := protocol.ParseTuple(data); err == nil {
		v, err := g.valueOf(&t)
		if err != nil {
			return nil, err
		}
		return spread(v), nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	if err != nil {
		return nil, refused("the request is no JSON: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, refused("the request has more than one value")
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			if v[i], err = g.value(v[i], 0); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for name := range v {
			if v[name], err = g.value(v[name], 0); err != nil {
				return nil, err
			}
		}
	default:
		return nil, refused("the request is neither an array nor an object")
	}
	return spread(v), nil
}

// spread are the arguments that a value as the whole request is: by position where it is a list or a tuple, by name
// where it is a dict of texts, else the one that it is.
func spread(v any) (args []any) {
	switch v := v.(type) {
	case []any:
		return v
	case protocol.ValueTuple:
		return v
	case map[string]any:
		for name, item := range v {
			args = append(args, client.Arg(name, item))
		}
		return args
	}
	return []any{v}
}

// value makes an argument of what JSON has.
func (g *given) value(v any, depth int) (any, error) {
	if depth > maxDepth {
		return nil, refused("an argument is nested deeper than %d levels", maxDepth)
	}
	switch v := v.(type) {
	case json.Number:
		return number(v)
	case []any:
		for i := range v {
			x, err := g.value(v[i], depth+1)
			if err != nil {
				return nil, err
			}
			v[i] = x
		}
	case map[string]any:
		if len(v) == 1 {
			if h, is := v[markHandle]; is {
				return g.open(h)
			}
			if text, is := v[markBytes]; is {
				return bytesOf(text)
			}
			if t, is := v[markTuple]; is {
				return g.tuple(t)
			}
		}
		for k := range v {
			x, err := g.value(v[k], depth+1)
			if err != nil {
				return nil, err
			}
			v[k] = x
		}
	}
	return v, nil
}

// number is an integer of any size, or a float.
func number(n json.Number) (any, error) {
	if i, err := n.Int64(); err == nil {
		return i, nil
	}
	if i, is := new(big.Int).SetString(n.String(), 10); is && len(n.String()) <= protocol.MaxIntDigits {
		return i, nil
	}
	f, err := n.Float64()
	if err != nil {
		return nil, refused("a number is too large: %s", shortened(n.String()))
	}
	return f, nil
}

func bytesOf(text any) (any, error) {
	s, is := text.(string)
	b, err := base64.StdEncoding.DecodeString(s)
	if !is || err != nil {
		return nil, refused("%s has no text in base64", markBytes)
	}
	return b, nil
}

// open opens a tensor by its handle.
func (g *given) open(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, refused("%s: %v", markHandle, err)
	}
	h, err := protocol.ParseHandle(text)
	if err != nil {
		return nil, err
	}
	return g.openHandle(h)
}

// openHandle opens a tensor, which is released once the call is over.
func (g *given) openHandle(h protocol.Handle) (any, error) {
	t, err := g.c.Open(g.ctx, h)
	if err != nil {
		return nil, err
	}
	g.tensors = append(g.tensors, t)
	return t, nil
}

// tuple is the value of a tuple among the arguments.
func (g *given) tuple(v any) (any, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, refused("%s: %v", markTuple, err)
	}
	t, err := protocol.ParseTuple(text)
	if err != nil {
		return nil, err
	}
	return g.valueOf(&t)
}

// valueOf is the value of a tuple, whose tensors it opens.
func (g *given) valueOf(t *protocol.Tuple) (any, error) {
	names := make([]string, len(t.Tensors))
	for i := range t.Tensors {
		names[i] = t.Tensors[i].Name
	}
	return protocol.DecodeValue(t.Value, names, func(i int) (any, error) { return g.openHandle(t.Tensors[i].Handle) })
}

// encode makes JSON of a result, whose tensors it releases. Each has a lease of leaseTime.
func encode(ctx context.Context, result any) ([]byte, error) {
	e := &encoder{ctx: ctx}
	v, err := e.value(result)
	for _, t := range e.tensors {
		t.Release()
	}
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	j := json.NewEncoder(&b)
	j.SetEscapeHTML(false)
	if err := j.Encode(v); err != nil {
		return nil, noJSON("call it from a program of this machine", "what cannot be written: %v", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// encoder looks at each tensor of a result, also after an error.
type encoder struct {
	ctx     context.Context
	tensors []*client.Tensor
	failed  error // of the first handle that could not be made
}

func (e *encoder) value(v any) (out any, err error) {
	switch v := v.(type) {
	case nil, bool, int64, *big.Int, string:
		return v, nil
	case *client.Tensor:
		e.tensors = append(e.tensors, v)
		if e.failed == nil {
			var h protocol.Handle
			if h, e.failed = v.Handle(e.ctx, client.LeaseFor(leaseTime)); e.failed == nil {
				return map[string]any{markHandle: h}, nil
			}
		}
		return nil, e.failed
	case *client.Function:
		defer v.Close()
		return map[string]any{markFunction: v.Name()}, nil
	case []byte:
		return map[string]any{markBytes: base64.StdEncoding.EncodeToString(v)}, nil
	case dlpack.DType:
		return v.String(), nil
	case dlpack.Device:
		return v.String(), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, noJSON("return a text in its place", "a float that is %v", v)
		}
		return v, nil
	case protocol.ValueTuple:
		return e.list(v)
	case []any:
		return e.list(v)
	case protocol.Dataclass:
		return e.value(v.Value)
	case map[string]any:
		all := make(map[string]any, len(v))
		for k, item := range v {
			x, failed := e.value(item)
			all[k], err = x, cmp.Or(err, failed)
		}
		return all, err
	case protocol.Dict: // as pairs: its keys are no texts
		pairs := make([]any, len(v))
		for i, item := range v {
			key, failed := e.value(item.Key)
			value, also := e.value(item.Value)
			pairs[i], err = []any{key, value}, cmp.Or(err, failed, also)
		}
		return pairs, err
	}
	return nil, noJSON("call it from a program of this machine", "a %T", v)
}

func noJSON(remedy, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalid, remedy, "the result has no JSON: it has "+format, args...)
}

func (e *encoder) list(all []any) (any, error) {
	out := make([]any, len(all))
	var err error
	for i, item := range all {
		x, failed := e.value(item)
		out[i], err = x, cmp.Or(err, failed)
	}
	return out, err
}
