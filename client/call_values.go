package client

import (
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"

	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// What arguments and results become where they are asked for: bool to int to float, a tensor without
// dimensions to its one number, and nothing else.

func refused(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalid, "give what the function takes", format, args...)
}

// kindOf is what a value is, for people.
func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "none"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case []byte:
		return "bytes"
	case *Tensor:
		return "tensor"
	case []any:
		return "list"
	case protocol.ValueTuple:
		return "tuple"
	case map[string]any, protocol.Dict:
		return "dict"
	case protocol.Dataclass:
		return "dataclass"
	case dlpack.DType:
		return "dtype"
	case dlpack.Device:
		return "device"
	case *Callback, *Function, protocol.ValueFunction:
		return "function"
	}
	return reflect.TypeOf(v).String()
}

// scalarOf is the number of a tensor without dimensions; anything else as it is.
func scalarOf(v any) (any, error) {
	t, is := v.(*Tensor)
	if !is || t == nil || len(t.shape) != 0 {
		return v, nil
	}
	n, ok, err := numberOf(t)
	if err != nil || !ok {
		return v, err
	}
	return n, nil
}

// numberOf reads the one element of a tensor without dimensions; false where it is no bool, int64 or float64.
func numberOf(t *Tensor) (any, bool, error) {
	b, err := t.Bytes()
	if err != nil {
		return nil, false, err
	}
	bits := uint64(0)
	for i := len(b) - 1; i >= 0; i-- {
		bits = bits<<8 | uint64(b[i])
	}
	d := t.dtype
	if d.Lanes != 1 || len(b) == 0 || len(b) > 8 || int(d.Bits) != 8*len(b) {
		return nil, false, nil
	}
	switch d.Code {
	case dlpack.CodeBool:
		return bits != 0, true, nil
	case dlpack.CodeInt:
		return int64(bits<<(64-d.Bits)) >> (64 - d.Bits), true, nil
	case dlpack.CodeUInt:
		if bits > math.MaxInt64 {
			return new(big.Int).SetUint64(bits), true, nil
		}
		return int64(bits), true, nil
	case dlpack.CodeFloat:
		if d.Bits == 64 {
			return math.Float64frombits(bits), true, nil
		}
		if d.Bits == 32 {
			return float64(math.Float32frombits(uint32(bits))), true, nil
		}
		if d.Bits == 16 {
			return float16(bits), true, nil
		}
	case dlpack.CodeBfloat:
		if d.Bits == 16 {
			return float64(math.Float32frombits(uint32(bits) << 16)), true, nil
		}
	}
	return nil, false, nil
}

// float16 is the number that the bits of one of IEEE 754 are.
func float16(bits uint64) float64 {
	exponent, fraction := int(bits>>10&0x1f), float64(bits&0x3ff)
	var f float64
	switch exponent {
	case 0:
		f = math.Ldexp(fraction, -24)
	case 0x1f:
		if f = math.Inf(1); fraction != 0 {
			return math.NaN()
		}
	default:
		f = math.Ldexp(fraction+0x400, exponent-25)
	}
	if bits>>15 != 0 {
		f = -f
	}
	return f
}

// toFloat reads a value as a float; what is said of the value where it is none.
func toFloat(v any) (float64, error) {
	v, err := scalarOf(v)
	if err != nil {
		return 0, err
	}
	switch v := v.(type) {
	case float64:
		return v, nil
	case int64:
		return float64(v), nil
	case bool:
		if v {
			return 1, nil
		}
		return 0, nil
	case *big.Int:
		if f, _ := new(big.Float).SetInt(v).Float64(); !math.IsInf(f, 0) {
			return f, nil
		}
		return 0, refused("the int %s is larger than all floats", v)
	}
	return 0, refused("a %s was given for float", kindOf(v))
}

// toInt reads a value as an integer.
func toInt(v any) (*big.Int, int64, error) {
	v, err := scalarOf(v)
	if err != nil {
		return nil, 0, err
	}
	switch v := v.(type) {
	case int64:
		return nil, v, nil
	case bool:
		if v {
			return nil, 1, nil
		}
		return nil, 0, nil
	case *big.Int:
		return v, 0, nil
	}
	return nil, 0, refused("a %s was given for int", kindOf(v))
}

func toInt64(v any) (int64, error) {
	large, n, err := toInt(v)
	if large != nil {
		return 0, refused("the int %s does not fit in 64 bits", large)
	}
	return n, err
}

func toBool(v any) (bool, error) {
	v, err := scalarOf(v)
	if err != nil {
		return false, err
	}
	b, is := v.(bool)
	if !is {
		return false, refused("a %s was given for bool", kindOf(v))
	}
	return b, nil
}

func toString(v any) (string, error) {
	s, is := v.(string)
	if !is {
		return "", refused("a %s was given for str", kindOf(v))
	}
	return s, nil
}

func toTensor(v any) (*Tensor, error) {
	t, is := v.(*Tensor)
	if !is || t == nil {
		return nil, refused("a %s was given for tensor", kindOf(v))
	}
	return t, nil
}

// convert reads a value as a Go type.
func convert[T any](v any) (out T, err error) {
	switch to := any(&out).(type) { // the common ones without reflection
	case *any:
		*to = v
	case *int64:
		*to, err = toInt64(v)
	case *float64:
		*to, err = toFloat(v)
	case *bool:
		*to, err = toBool(v)
	case *string:
		*to, err = toString(v)
	case **Tensor:
		*to, err = toTensor(v)
	case *struct{}: // whatever it is
	default:
		err = assign(reflect.ValueOf(&out).Elem(), v)
	}
	return out, err
}

var (
	tensorType = reflect.TypeFor[*Tensor]()
	bigType    = reflect.TypeFor[*big.Int]()
	dtypeType  = reflect.TypeFor[dlpack.DType]()
	deviceType = reflect.TypeFor[dlpack.Device]()
	tupleType  = reflect.TypeFor[protocol.ValueTuple]()
	dictType   = reflect.TypeFor[protocol.Dict]()
	classType  = reflect.TypeFor[protocol.Dataclass]()
)

// assign sets a Go value from one of a call.
func assign(to reflect.Value, v any) error {
	t := to.Type()
	if v != nil && reflect.TypeOf(v) == t && (t.Kind() != reflect.Slice || t == tupleType || t == dictType) {
		to.Set(reflect.ValueOf(v))
		return nil
	}
	switch t {
	case tensorType:
		_, err := toTensor(v)
		return err
	case bigType:
		large, n, err := toInt(v)
		if large == nil {
			large = big.NewInt(n)
		}
		to.Set(reflect.ValueOf(large))
		return err
	case dictType:
		if all, is := v.(map[string]any); is {
			out := make(protocol.Dict, 0, len(all))
			for _, key := range slices.Sorted(maps.Keys(all)) {
				out = append(out, protocol.DictItem{Key: key, Value: all[key]})
			}
			to.Set(reflect.ValueOf(out))
			return nil
		}
		return refused("a %s was given for %s", kindOf(v), t)
	case dtypeType, deviceType, tupleType, classType, functionType:
		return refused("a %s was given for %s", kindOf(v), t)
	}
	if isText(t) {
		return setText(to, v)
	}
	switch t.Kind() {
	case reflect.Interface:
		if v == nil {
			to.SetZero()
			return nil
		}
		if !reflect.TypeOf(v).AssignableTo(t) {
			return refused("a %s was given for %s", kindOf(v), t)
		}
		to.Set(reflect.ValueOf(v))
		return nil
	case reflect.Pointer:
		if v == nil {
			to.SetZero()
			return nil
		}
		inner := reflect.New(t.Elem())
		to.Set(inner)
		return assign(inner.Elem(), v)
	case reflect.Bool:
		b, err := toBool(v)
		to.SetBool(b)
		return err
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := toInt64(v)
		if err == nil && to.OverflowInt(n) {
			err = refused("the int %d does not fit in %s", n, t)
		}
		to.SetInt(n)
		return err
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		large, n, err := toInt(v)
		u := uint64(n)
		if large != nil {
			u = large.Uint64()
		}
		if err == nil && (n < 0 || large != nil && !large.IsUint64() || to.OverflowUint(u)) {
			err = refused("the int %v does not fit in %s", v, t)
		}
		to.SetUint(u)
		return err
	case reflect.Float32, reflect.Float64:
		f, err := toFloat(v)
		if err == nil && to.OverflowFloat(f) {
			err = refused("the float %v does not fit in %s", f, t)
		}
		to.SetFloat(f)
		return err
	case reflect.String:
		s, err := toString(v)
		to.SetString(s)
		return err
	case reflect.Slice, reflect.Array:
		return assignList(to, v)
	case reflect.Map:
		return assignMap(to, v)
	case reflect.Struct:
		return assignStruct(to, v)
	}
	return refused("a value of a call cannot be read as the Go type %s", t)
}

func assignList(to reflect.Value, v any) error {
	t := to.Type()
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
		b, is := v.([]byte)
		if !is {
			return refused("a %s was given for bytes", kindOf(v))
		}
		to.SetBytes(b)
		return nil
	}
	var all []any
	switch v := v.(type) {
	case nil:
		to.SetZero()
		return nil
	case []any:
		all = v
	case protocol.ValueTuple:
		all = v
	default:
		return refused("a %s was given for list", kindOf(v))
	}
	if t.Kind() == reflect.Slice {
		to.Set(reflect.MakeSlice(t, len(all), len(all)))
	} else if t.Len() != len(all) {
		return refused("a list of %d was given for one of %d", len(all), t.Len())
	}
	for i, item := range all {
		if err := assign(to.Index(i), item); err != nil {
			return err
		}
	}
	return nil
}

func assignMap(to reflect.Value, v any) error {
	t := to.Type()
	out := reflect.MakeMap(t)
	put := func(k, item any) error {
		key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		if err := assign(key, k); err != nil {
			return err
		}
		if err := assign(value, item); err != nil {
			return err
		}
		out.SetMapIndex(key, value)
		return nil
	}
	switch v := v.(type) {
	case nil:
		to.SetZero()
		return nil
	case map[string]any:
		for k, item := range v {
			if err := put(k, item); err != nil {
				return err
			}
		}
	case protocol.Dict:
		for _, d := range v {
			if err := put(d.Key, d.Value); err != nil {
				return err
			}
		}
	case protocol.Dataclass:
		return assignMap(to, v.Value)
	default:
		return refused("a %s was given for dict", kindOf(v))
	}
	to.Set(out)
	return nil
}

// assignStruct sets the fields that are there. One that has a default keeps it where it is not given.
func assignStruct(to reflect.Value, v any) error {
	if c, is := v.(protocol.Dataclass); is {
		v = c.Value
	}
	m, is := v.(map[string]any)
	if !is {
		return refused("a %s was given for %s", kindOf(v), to.Type())
	}
	fields, err := fieldsOf(to.Type())
	if err != nil {
		return err
	}
	for i := range fields {
		f := &fields[i]
		item, given := m[f.Name]
		if err := f.assign(to, item, given); err != nil {
			return err
		}
	}
	return nil
}
