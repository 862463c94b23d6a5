package client

import (
	"math/big"

	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/protocol"
)

// fit refuses arguments that do not fit what the function takes, and makes those what it takes that are a
// little else.
func (m *callMessage) fit(s *signature.Signature) error {
	if s.Parameters == nil {
		return nil
	}
	parameters := *s.Parameters
	args := m.record.Args
	direct := len(args) == len(parameters)
	for i := 0; direct && i < len(args); i++ { // mostly each is given by its position, or by name in their order
		a, p := &args[i], &parameters[i]
		here := a.Name == "" && p.By != signature.ByName || a.Name == p.Name && p.By != signature.ByPosition
		direct = here && !p.Many && p.Types.Has(plainTypes[a.Code])
	}
	if direct {
		return nil
	}
	var room [16]bool
	given := append(room[:0], make([]bool, len(parameters))...)
	for i := range args {
		a := &args[i]
		at := -1
		if a.Name == "" {
			if at = s.Positional(i); at < 0 {
				return refused("%d arguments by position are too many; the function takes %s", i+1, s)
			}
		} else if at = s.Named(a.Name); at < 0 {
			if s.IsPositional(a.Name) {
				return refused("the parameter %s is given by position alone, and here by name; the function takes %s", a.Name, s)
			}
			return refused("there is no parameter %s; the function takes %s", a.Name, s)
		}
		p := &parameters[at]
		if given[at] && !p.Many {
			return refused("the parameter %s is given twice; the function takes %s", p.Name, s)
		}
		given[at] = true
		if err := m.fitOne(a, p); err != nil {
			return refused("the parameter %s %w; the function takes %s", p.Name, err, s)
		}
	}
	for i, is := range given {
		if p := &parameters[i]; !is && !p.Optional && !p.Many {
			return refused("the parameter %s is not given; the function takes %s", p.Name, s)
		}
	}
	return nil
}

// plainTypes is what takes an argument of a code as it is; that of a tree is looked for there.
var plainTypes = [...]signature.Types{
	protocol.ArgNone: signature.None, protocol.ArgInt: signature.Int | signature.Int64, protocol.ArgBool: signature.Bool,
	protocol.ArgFloat: signature.Float, protocol.ArgTensor: signature.Tensor, protocol.ArgTree: 0, protocol.ArgStr: signature.Str,
	protocol.ArgBytes: signature.Bytes, protocol.ArgDType: signature.DType, protocol.ArgDevice: signature.Device,
}

// given is the value of an argument.
func (m *callMessage) given(a *protocol.CallArg) any {
	switch a.Code {
	case protocol.ArgTensor:
		return m.tensors[a.N]
	case protocol.ArgTree:
		v := m.nested[a.N]
		if u, is := v.(uint64); is {
			return new(big.Int).SetUint64(u)
		}
		return v
	}
	return scalarArg(a)
}

// typesOf is what takes a value as it is.
func typesOf(v any) signature.Types {
	switch v.(type) {
	case *big.Int:
		return signature.Int
	case []any:
		return signature.List
	case *Callback, *Function, protocol.ValueFunction:
		return signature.Function
	case protocol.ValueTuple:
		return signature.Tuple
	case map[string]any, protocol.Dict:
		return signature.Dict
	}
	return signature.Any // a dataclass
}

// fitOne makes an argument one that a parameter takes, or says why it is none.
func (m *callMessage) fitOne(a *protocol.CallArg, p *signature.Parameter) error {
	if p.Types.Has(plainTypes[a.Code]) {
		return nil
	}
	v := m.given(a)
	if a.Code == protocol.ArgTree && p.Types.Has(typesOf(v)) {
		return nil
	}
	if p.Types.Has(signature.Bool | signature.Int | signature.Int64 | signature.Float) {
		n, err := scalarOf(v)
		if err != nil {
			return err
		}
		if n, fits := fitNumber(n, p.Types); fits {
			return m.replace(a, n)
		}
	}
	if n, is := v.(*big.Int); is {
		return refused("is %s, and the int %s does not fit", p.Type, n)
	}
	return refused("is %s, and a %s is given", p.Type, kindOf(v))
}

// fitNumber is the number that takes the place of another one: a bool of an integer, an integer of a float.
func fitNumber(v any, types signature.Types) (any, bool) {
	integer := types.Has(signature.Int | signature.Int64)
	switch v := v.(type) {
	case bool:
		switch n, _ := toInt64(v); {
		case types.Has(signature.Bool):
			return v, true
		case integer:
			return n, true
		case types.Has(signature.Float):
			return float64(n), true
		}
	case int64:
		if integer {
			return v, true
		}
		if types.Has(signature.Float) {
			return float64(v), true
		}
	case *big.Int:
		if types.Has(signature.Int) {
			return v, true
		}
		if f, err := toFloat(v); err == nil && types.Has(signature.Float) {
			return f, true
		}
	case float64:
		return v, types.Has(signature.Float)
	}
	return nil, false
}

// replace puts a number in the place of an argument. A tensor or an item that it was stays in the message, and
// nothing names it: without it others had other numbers.
func (m *callMessage) replace(a *protocol.CallArg, v any) error {
	number, plain := argOf(v)
	if !plain {
		if a.Code == protocol.ArgTree {
			return nil // it is one already
		}
		number = protocol.CallArg{Code: protocol.ArgTree, N: uint32(len(m.nested))}
		m.nested = append(m.nested, v)
	}
	number.Name = a.Name
	*a = number
	return nil
}
