package client

import (
	"math/big"
	"reflect"
	"slices"
	"unicode/utf8"

	"github.com/baton-ipc/baton/client/internal/lanes"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// callMessage is a request or a reply that is to be sent: its record, its tensors, and what stands in the
// tree.
type callMessage struct {
	record  protocol.Call
	tensors []*Tensor // that arguments are
	nested  []any     // items of the tree
	tree    []byte
	inTree  []protocol.NamedTensor

	sent    *lanes.Call // once the request was sent
	lending *lending    // functions of this process that are arguments; nil: none
	window  uint32      // of a part: how many there may be that were not taken; 0: as many as there is room for

	args [6]protocol.CallArg
	room [256]byte
}

// NamedArg is an argument that is given by its parameter's name; see Arg.
type NamedArg struct {
	name  string
	value any
}

// Arg gives an argument of a call by the name of its parameter.
func Arg(name string, value any) NamedArg { return NamedArg{name, value} }

func isTensor(v any) bool { _, is := v.(*Tensor); return is }

// addAll adds the arguments of a call.
func (m *callMessage) addAll(args []any) error {
	m.record.Args = m.args[:0]
	named := false
	for i, v := range args {
		a, is := v.(NamedArg)
		switch {
		case is && a.name == "":
			return protocol.Errorf(protocol.CodeInvalid, "name the parameter", "argument %d has an empty name", i+1)
		case is:
			named, v = true, a.value
		case named:
			return protocol.Errorf(protocol.CodeInvalid, "give those by position first", "argument %d by position comes behind one by name", i+1)
		}
		if _, is := v.(AheadOption); is {
			return refused("argument %d is Ahead, an option of a stream", i+1)
		}
		if err := m.add(a.name, v); err != nil {
			return err
		}
	}
	if named {
		return givenTwice(m.record.Args)
	}
	return nil
}

// givenTwice refuses arguments of which two have one name: a function would see one of them.
func givenTwice(args []protocol.CallArg) error {
	var room [8]string
	names := room[:0]
	for i := range args {
		if name := args[i].Name; name != "" {
			names = append(names, name)
		}
	}
	if len(names) < 2 {
		return nil
	}
	slices.Sort(names)
	for i := range names[1:] {
		if names[i] == names[i+1] {
			return protocol.Errorf(protocol.CodeInvalid, "name each argument once", "the argument %s is given twice", names[i])
		}
	}
	return nil
}

// add adds one argument, or the result.
func (m *callMessage) add(name string, v any) error {
	if !utf8.ValidString(name) {
		return protocol.Errorf(protocol.CodeInvalid, "use UTF-8", "the name of an argument, %q, is not UTF-8", name)
	}
	if v, is := v.(*Tensor); is && v != nil {
		m.record.Args = append(m.record.Args, protocol.CallArg{Name: name, Code: protocol.ArgTensor, N: uint32(len(m.tensors))})
		m.tensors = append(m.tensors, v)
		return nil
	}
	a, plain := argOf(v)
	if !plain {
		v, err := plainValue(v, 0)
		if err != nil {
			return err
		}
		if isTensor(v) {
			return m.add(name, v)
		}
		if a, plain = argOf(v); !plain { // it was not one of a named type
			a = protocol.CallArg{Code: protocol.ArgTree, N: uint32(len(m.nested))}
			m.nested = append(m.nested, v)
		}
	}
	if a.Code == protocol.ArgStr && !utf8.ValidString(a.Text) {
		return protocol.Errorf(protocol.CodeInvalid, "send it as []byte", "%q is text that is not UTF-8", a.Text)
	}
	a.Name = name
	m.record.Args = append(m.record.Args, a)
	return nil
}

// argOf is the argument that a scalar is; false for anything else.
func argOf(v any) (protocol.CallArg, bool) {
	switch v := v.(type) {
	case nil:
		return protocol.CallArg{}, true
	case bool:
		return protocol.Bool(v), true
	case int:
		return protocol.Int(int64(v)), true
	case int8:
		return protocol.Int(int64(v)), true
	case int16:
		return protocol.Int(int64(v)), true
	case int32:
		return protocol.Int(int64(v)), true
	case int64:
		return protocol.Int(v), true
	case uint8:
		return protocol.Int(int64(v)), true
	case uint16:
		return protocol.Int(int64(v)), true
	case uint32:
		return protocol.Int(int64(v)), true
	case uint:
		return protocol.Int(int64(v)), v>>63 == 0
	case uint64:
		return protocol.Int(int64(v)), v>>63 == 0
	case *big.Int:
		if v == nil {
			return protocol.CallArg{}, true
		}
		return protocol.Int(v.Int64()), v.IsInt64()
	case float32:
		return protocol.Float(float64(v)), true
	case float64:
		return protocol.Float(v), true
	case string:
		return protocol.Str(v), true
	case []byte:
		return protocol.CallArg{Code: protocol.ArgBytes, Text: string(v)}, true
	case dlpack.DType:
		return protocol.CallArg{Code: protocol.ArgDType, Value: uint64(v.Code) | uint64(v.Bits)<<8 | uint64(v.Lanes)<<16}, true
	case dlpack.Device:
		return protocol.CallArg{Code: protocol.ArgDevice, Value: uint64(uint32(v.Type)) | uint64(uint32(v.ID))<<32}, true
	case *Tensor: // nil
		return protocol.CallArg{}, true
	}
	return protocol.CallArg{}, false
}

// encode makes the tree, once all is there.
func (m *callMessage) encode() (err error) {
	if len(m.nested) > 0 {
		m.tree, m.inTree, err = protocol.EncodeItems(m.nested, len(m.tensors), isTensor)
	}
	return err
}

// compose makes the message of it, in the turn to send.
func (m *callMessage) compose(c *Client, o *outgoing) error {
	for _, t := range m.tensors {
		if err := c.addTensor(o, t, ""); err != nil {
			return err
		}
	}
	for _, t := range m.inTree {
		if err := c.addTensor(o, t.Tensor.(*Tensor), t.Name); err != nil {
			return err
		}
	}
	o.desc.Tree = m.tree
	var err error
	o.desc.Meta, err = m.record.Append(m.room[:0])
	return err
}

// plainValue makes a value of those types that a value tree is made of.
func plainValue(v any, depth int) (any, error) {
	if depth > protocol.MaxTreeDepth {
		return nil, protocol.Errorf(protocol.CodeInvalid, "make it flatter; a value must not contain itself", "a value is nested deeper than %d levels", protocol.MaxTreeDepth)
	}
	switch v := v.(type) {
	case nil, bool, int64, float64, string, []byte, dlpack.DType, dlpack.Device:
		return v, nil
	case *Tensor:
		if v == nil {
			return nil, nil
		}
		return v, nil
	case *Callback:
		if v == nil {
			return nil, nil
		}
		return v, nil
	case *big.Int:
		if v == nil {
			return nil, nil
		}
		return v, nil
	case *Function:
		if v == nil {
			return nil, nil
		}
		return v, nil
	case protocol.ValueFunction:
		if v.Token != "" {
			return nil, protocol.Errorf(protocol.CodeInvalid, "give client.Func, or the function that came", "a function is given by its token")
		}
		return v, nil
	case *Bundle:
		if v == nil {
			return nil, nil
		}
		return v.Value()
	case protocol.Dict:
		out := make(protocol.Dict, len(v))
		for i, item := range v {
			plain, err := plainValue(item.Value, depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = protocol.DictItem{Key: item.Key, Value: plain}
		}
		return out, nil
	case protocol.Dataclass:
		fields, err := plainValue(v.Value, depth+1)
		if err != nil {
			return nil, err
		}
		v.Value, _ = fields.(map[string]any)
		return v, nil
	case protocol.ValueTuple:
		all, err := plainValue([]any(v), depth)
		if err != nil {
			return nil, err
		}
		return protocol.ValueTuple(all.([]any)), nil
	}
	of := reflect.ValueOf(v)
	if of.Kind() == reflect.Pointer && of.IsNil() {
		return nil, nil
	}
	if err := isError(v); err != nil {
		return nil, err
	}
	if isText(of.Type()) {
		return textOf(of)
	}
	return plainReflected(of, depth)
}

func plainReflected(v reflect.Value, depth int) (any, error) {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return v.Uint(), nil
	case reflect.Float32, reflect.Float64:
		return v.Float(), nil
	case reflect.String:
		return v.String(), nil
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil, nil
		}
		if isText(v.Type().Elem()) {
			return textOf(v.Elem())
		}
		return plainValue(v.Elem().Interface(), depth+1)
	case reflect.Slice, reflect.Array:
		if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
			return v.Bytes(), nil
		}
		all := make([]any, v.Len()) // a nil slice is an empty list
		for i := range all {
			item, err := plainValue(v.Index(i).Interface(), depth+1)
			if err != nil {
				return nil, err
			}
			all[i] = item
		}
		return all, nil
	case reflect.Map:
		return plainMap(v, depth)
	case reflect.Func:
		return nil, refused("a Go function is given as client.Func or client.Function, not as %s", v.Type())
	case reflect.Struct:
		fields, err := fieldsOf(v.Type())
		if err != nil {
			return nil, err
		}
		out := make(map[string]any, len(fields))
		for i := range fields {
			item, err := plainValue(v.Field(fields[i].index).Interface(), depth+1)
			if err != nil {
				return nil, err
			}
			out[fields[i].Name] = item
		}
		return out, nil
	}
	return nil, unsendable(v.Type())
}

// plainMap makes a dict of a map; a nil map is an empty one.
func plainMap(v reflect.Value, depth int) (any, error) {
	asText := isText(v.Type().Key())
	text := asText || v.Type().Key().Kind() == reflect.String
	flat, pairs := map[string]any{}, protocol.Dict{}
	for it := v.MapRange(); it.Next(); {
		item, err := plainValue(it.Value().Interface(), depth+1)
		if err != nil {
			return nil, err
		}
		if text {
			name := it.Key().String()
			if asText {
				if name, err = textOf(it.Key()); err != nil {
					return nil, err
				}
				if _, twice := flat[name]; twice {
					return nil, refused("two keys of a %s have the text %q", v.Type(), name)
				}
			}
			flat[name] = item
			continue
		}
		key, err := plainValue(it.Key().Interface(), depth+1)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, protocol.DictItem{Key: key, Value: item})
	}
	if text {
		return flat, nil
	}
	return pairs, nil
}
