package client

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"

	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/protocol"
)

// callField is a field of a struct that is a parameter, or the item of a dict.
type callField struct {
	signature.Parameter
	index    int
	fallback any  // the default, decoded
	text     bool // its type is carried as text
}

// fieldsKnown has the fields of the structs that were seen: []callField, or an error.
var fieldsKnown sync.Map

// fieldsOf lists the exported fields of a struct, by the tag `baton:"name,optional"` or
// `baton:"name,default=JSON"`; without a name by that of the field in lower case. `baton:"-"` leaves one out. A
// pointer is optional, but for *Tensor, *big.Int and *Function, which are so by the option; then they take nil as well.
func fieldsOf(t reflect.Type) ([]callField, error) {
	if known, ok := fieldsKnown.Load(t); ok {
		fields, _ := known.([]callField)
		err, _ := known.(error)
		return fields, err
	}
	fields, err := readFields(t)
	if err != nil {
		fieldsKnown.Store(t, err)
	} else {
		fieldsKnown.Store(t, fields)
	}
	return fields, err
}

func readFields(t reflect.Type) ([]callField, error) {
	if isOpaque(t) {
		return nil, unsendable(t)
	}
	fields := []callField{}
	seen := map[string]bool{}
	for i := range t.NumField() {
		sf := t.Field(i)
		tag, _ := sf.Tag.Lookup("baton")
		if !sf.IsExported() || tag == "-" {
			continue
		}
		name, options, _ := strings.Cut(tag, ",")
		if name == "" {
			name = strings.ToLower(sf.Name)
		}
		isValue := sf.Type == tensorType || sf.Type == bigType || sf.Type == functionType
		f := callField{index: i, text: isText(sf.Type), Parameter: signature.Parameter{Name: name, Type: typeText(sf.Type), Optional: sf.Type.Kind() == reflect.Pointer && !isValue}}
		if err := carried(sf.Type); err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalid, remedyOf(err), "field %s of %s: %w", sf.Name, t, err)
		}
		if text, is := strings.CutPrefix(options, "default="); is {
			f.Optional, f.Default = true, json.RawMessage(text)
			v, err := f.decoded()
			f.fallback = v
			if err == nil && !(isValue && v == nil) {
				err = assign(reflect.New(sf.Type).Elem(), v)
			}
			if err != nil {
				return nil, protocol.Errorf(protocol.CodeInvalid, "write it as JSON of the field's type", "the default of field %s of %s: %w", sf.Name, t, err)
			}
		} else if options == "optional" {
			f.Optional = true
		} else if options != "" {
			return nil, protocol.Errorf(protocol.CodeInvalid, "use optional or default=JSON", "field %s of %s has the option %q", sf.Name, t, options)
		}
		if isValue && f.Optional && f.fallback == nil {
			f.Type += "|none"
		}
		if seen[name] {
			return nil, protocol.Errorf(protocol.CodeInvalid, "name one of them by a tag", "two fields of %s have the name %q", t, name)
		}
		seen[name] = true
		fields = append(fields, f)
	}
	return fields, nil
}

// decoded reads the default.
func (f *callField) decoded() (any, error) {
	return protocol.DecodeTree(f.Default, func(int) (any, error) { return nil, protocol.ErrInvalid })
}

// otherwise is the value where none is given. What a function may change is made anew for each call.
func (f *callField) otherwise() (any, error) {
	switch f.fallback.(type) {
	case nil, bool, int64, float64, string:
		return f.fallback, nil
	}
	return f.decoded()
}

// assign sets the field of a struct.
func (f *callField) assign(to reflect.Value, v any, given bool) error {
	if !given {
		if !f.Optional {
			return refused("the parameter %s is not given", f.Name)
		}
		var err error
		if v, err = f.otherwise(); v == nil || err != nil {
			return err
		}
	} else if v == nil && f.Optional {
		return nil
	}
	if err := assign(to.Field(f.index), v); err != nil {
		return refused("the parameter %s: %w", f.Name, err)
	}
	return nil
}

// typeText is the kind that callers may give for a Go type.
func typeText(t reflect.Type) string {
	switch t {
	case tensorType:
		return "tensor"
	case bigType:
		return "int"
	case functionType:
		return "function"
	case dtypeType:
		return "dtype"
	case deviceType:
		return "device"
	case tupleType:
		return "tuple"
	case dictType:
		return "dict"
	}
	if isText(t) {
		return "str"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return "int64"
	case reflect.Uint, reflect.Uint64:
		return "int"
	case reflect.Float32, reflect.Float64:
		return "float"
	case reflect.String:
		return "str"
	case reflect.Slice, reflect.Array:
		if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
			return "bytes"
		}
		return "list"
	case reflect.Map, reflect.Struct:
		return "dict"
	case reflect.Pointer:
		if of := typeText(t.Elem()); of != "any" {
			return of + "|none"
		}
	}
	return "any"
}
