package client

import (
	"encoding"
	"errors"
	"reflect"
	"sync"

	"github.com/baton-ipc/baton/protocol"
)

// Go types that are carried as text, and those that cannot be carried.

var (
	marshalerType   = reflect.TypeFor[encoding.TextMarshaler]()
	unmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// textKnown has for the types that were seen whether they are carried as text: bool by reflect.Type.
var textKnown sync.Map

// isText tells whether values of a Go type are carried as text: it writes and reads itself as text (time.Time,
// netip.Addr, big.Float), and is none that has a kind of its own. A pointer to such a type is what it points to, or nil.
func isText(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Func, reflect.Chan:
		return false
	}
	if t.PkgPath() == "" || t == bigType.Elem() || t == dtypeType {
		return false
	}
	known, was := textKnown.Load(t)
	if !was {
		p := reflect.PointerTo(t)
		known = p.Implements(marshalerType) && p.Implements(unmarshalerType) && !isPromoted(t)
		textKnown.Store(t, known)
	}
	return known.(bool)
}

// isPromoted tells whether a struct may have its text from an embedded field: the text leaves the other fields out.
func isPromoted(t reflect.Type) bool {
	if t.Kind() != reflect.Struct {
		return false
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if p := reflect.PointerTo(f.Type); f.Anonymous && (p.Implements(marshalerType) || f.Type.Implements(marshalerType)) {
			return true
		}
	}
	return false
}

// textOf is the text that a value of such a type is.
func textOf(v reflect.Value) (string, error) {
	p := reflect.New(v.Type())
	if v.CanAddr() {
		p = v.Addr() // a copy may not do: of a number that others change
	} else {
		p.Elem().Set(v)
	}
	m, is := p.Interface().(encoding.TextMarshaler)
	if !is {
		return "", unsendable(v.Type())
	}
	text, err := m.MarshalText()
	if err != nil {
		return "", protocol.Errorf(protocol.CodeInvalid, "give one that has a text", "a value of the Go type %s has no text: %w", v.Type(), err)
	}
	return string(text), nil
}

// setText reads a value of such a type from its text.
func setText(to reflect.Value, v any) error {
	s, err := toString(v)
	if err != nil {
		return err
	}
	u, is := to.Addr().Interface().(encoding.TextUnmarshaler)
	if !is {
		return refused("a str was given for %s", to.Type())
	}
	if err := u.UnmarshalText([]byte(s)); err != nil {
		return refused("the str is no %s: %w", to.Type(), err)
	}
	return nil
}

// isOpaque tells whether a struct has fields, and none that is exported: no value of it could be carried.
func isOpaque(t reflect.Type) bool {
	if t.Kind() != reflect.Struct || isText(t) {
		return false
	}
	hidden := false
	for i := range t.NumField() {
		switch f := t.Field(i); {
		case f.IsExported():
			return false
		case f.Name != "_":
			hidden = true
		}
	}
	return hidden
}

// carried refuses types of which no value can be carried: those without exported fields, a chan, and lists and maps of one.
func carried(t reflect.Type) error {
	switch kind := uncarried(t, 0); {
	case kind == reflect.Func:
		return refused("a Go function is taken as *client.Function, and given as client.Func, not as %s", t)
	case kind != reflect.Invalid || isOpaque(t):
		return unsendable(t)
	}
	return nil
}

// uncarried is the kind in a type that keeps its values from being carried; Invalid: there is none.
func uncarried(t reflect.Type, depth int) reflect.Kind {
	if depth > protocol.MaxTreeDepth || isText(t) { // a type may be made of itself
		return reflect.Invalid
	}
	switch kind := t.Kind(); kind {
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.Uintptr, reflect.UnsafePointer:
		return kind
	case reflect.Map:
		if key := uncarried(t.Key(), depth+1); key != reflect.Invalid {
			return key
		}
		return uncarried(t.Elem(), depth+1)
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return uncarried(t.Elem(), depth+1)
	}
	return reflect.Invalid
}

// unsendable is the error of a value whose type cannot be carried.
func unsendable(t reflect.Type) error {
	if isOpaque(t) {
		return protocol.Errorf(protocol.CodeInvalid,
			"give a text or a number, such as t.Format(time.RFC3339Nano) or t.UnixNano() of a time; `baton:\"-\"` leaves a field out",
			"the Go type %s has unexported fields alone, and cannot be sent", t)
	}
	return protocol.Errorf(protocol.CodeInvalid, "use numbers, strings, tensors, and slices, maps and structs of these", "a value of the Go type %s cannot be sent", t)
}

// remedyOf is what an error about an argument says that is to be done.
func remedyOf(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) && e.Remedy != "" {
		return e.Remedy
	}
	return "give what the function takes"
}

// isError refuses Go errors, whose type no receiver has.
func isError(v any) error {
	if _, is := v.(error); !is {
		return nil
	}
	return protocol.Errorf(protocol.CodeInvalid, "give its text, err.Error(); a function returns its error as that",
		"a Go error (%T) cannot be sent as a value", v)
}
