package client

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"

	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/protocol"
)

// Methods are the functions that the methods of a value are provided as.
type Methods struct{ all []*Registration }

// HandleMethods provides the exported methods of a value as functions: those of the forms
//
//	func (v T) Name(ctx context.Context, in In) (Out, error)                 // as Handle
//	func (v T) Name(ctx context.Context, in In, send func(Part) error) error // as HandleStream
//
// under prefix/name, with the method's name in lower case. Others are left out. The options are those of each. If one
// cannot be registered none is.
func HandleMethods(c *Client, prefix string, v any, opts ...HandleOption) (*Methods, error) {
	g := &Methods{}
	of := reflect.ValueOf(v)
	for i := 0; of.IsValid() && i < of.NumMethod(); i++ {
		name := prefix + "/" + strings.ToLower(of.Type().Method(i).Name)
		r, is, err := handleMethod(c, name, of.Method(i), opts)
		if err != nil {
			over, cancel := context.WithCancel(context.Background())
			cancel() // nothing waits for calls that came meanwhile
			g.Close(over)
			return nil, err
		}
		if is {
			g.all = append(g.all, r)
		}
	}
	if len(g.all) == 0 {
		return nil, protocol.Errorf(protocol.CodeInvalid, "give it methods of the forms of Handle, or a pointer to it", "%T has no method that could be a function", v)
	}
	return g, nil
}

// Registrations lists them, by the names of the methods.
func (g *Methods) Registrations() []*Registration { return append([]*Registration(nil), g.all...) }

// Close ends all of them side by side, as Registration.Close ends one. The error joins those of
// all; with one, the others are closed all the same.
func (g *Methods) Close(ctx context.Context) error {
	failed := make([]error, len(g.all))
	var done sync.WaitGroup
	for i, r := range g.all {
		done.Go(func() { failed[i] = r.Close(ctx) })
	}
	done.Wait()
	return errors.Join(failed...)
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

// isSend tells whether a type is that of the function that sends parts.
func isSend(t reflect.Type) bool {
	return t.Kind() == reflect.Func && !t.IsVariadic() && t.NumIn() == 1 && t.NumOut() == 1 && t.Out(0) == errorType
}

// handleMethod provides a method, if it has a form that can be.
func handleMethod(c *Client, name string, f reflect.Value, opts []HandleOption) (_ *Registration, is bool, err error) {
	t := f.Type()
	if t.NumIn() < 2 || t.In(0) != contextType || t.IsVariadic() || t.NumOut() == 0 || t.Out(t.NumOut()-1) != errorType {
		return nil, false, nil
	}
	s, result := &signature.Signature{}, t.Out(0)
	switch {
	case t.NumIn() == 2 && t.NumOut() == 2:
	case t.NumIn() == 3 && t.NumOut() == 1 && isSend(t.In(2)):
		result, s.Parts = t.In(2).In(0), true
	default:
		return nil, false, nil
	}
	if err := protocol.CheckFunction(name); err != nil {
		return nil, false, err
	}
	if err := describeResult(s, result); err != nil {
		return nil, false, err
	}
	read, err := readerInto(t.In(1), s)
	if err != nil {
		return nil, false, err
	}
	r, err := provide(c, name, s, opts, func(k *callContext, r *received, parts *partsSender) (any, error) {
		in := reflect.New(t.In(1)).Elem()
		if err := read(r, in); err != nil {
			return nil, err
		}
		args := []reflect.Value{reflect.ValueOf(k), in}
		if s.Parts {
			args = append(args, reflect.MakeFunc(t.In(2), func(part []reflect.Value) []reflect.Value {
				failed := reflect.New(errorType).Elem()
				if err := parts.send(part[0].Interface()); err != nil {
					failed.Set(reflect.ValueOf(err))
				}
				return []reflect.Value{failed}
			}))
		}
		out := f.Call(args)
		failed, _ := out[len(out)-1].Interface().(error)
		if s.Parts || failed != nil {
			return nil, failed
		}
		return out[0].Interface(), nil
	})
	return r, true, err
}
