package protocol

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of values.
const (
	// MaxTreeDepth bounds the nesting of arrays and objects in a tree, those of
	// tags included. JSON readers of other languages stop not far above it.
	MaxTreeDepth = 100
	// MaxIntDigits bounds an integer; Python refuses to read much longer ones.
	MaxIntDigits = 4096
	// MaxTypeName bounds the name of a dataclass.
	MaxTypeName = 512
	// MaxTensorName bounds a tensor's path, so that any description holds it.
	MaxTensorName = maxDesc - DescShape - 16*MaxNdim
)

// ValueTuple is a Python tuple: a list that stays one through other languages.
type ValueTuple []any

// Dict is a dict whose keys are not all strings, in its own order. Keys are
// nil, bool, integers, floats, strings, []byte and ValueTuples of these.
type Dict []DictItem

// DictItem is one item of a Dict.
type DictItem struct{ Key, Value any }

// Dataclass is an instance of a Python dataclass: "module:qualname" and its fields.
type Dataclass struct {
	Type  string
	Value map[string]any
}

// ValueFunction is a function as a value: a registered one by its name, or one of the sender's, by the token of
// the private topic in which it is called and its number there, which lives as long as the call that it was
// given to.
type ValueFunction struct {
	Name   string
	Token  string // 32 hexadecimal digits
	Object uint64
}

// NamedTensor is a leaf of a value that is a tensor. Name is its path: keys and
// positions joined by '/', with '~' as "~0" and '/' as "~1"; a key that is no
// string stands as its JSON in the tree.
type NamedTensor struct {
	Name   string
	Tensor any
}

var (
	escapePath   = strings.NewReplacer("~", "~0", "/", "~1")
	unescapePath = strings.NewReplacer("~0", "~", "~1", "/")
)

// TensorPath joins keys and positions to a tensor's name.
func TensorPath(parts ...string) string {
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escapePath.Replace(p)
	}
	return strings.Join(escaped, "/")
}

// TensorKey undoes TensorPath for a path of one part: the key of a flat dict.
func TensorKey(path string) string { return unescapePath.Replace(path) }

// flatKeys gives the keys of the dict that a message without a tree is, or nil
// where the one unnamed tensor is the value itself.
func flatKeys(code Code, names []string) ([]string, error) {
	if len(names) == 1 && names[0] == "" {
		return nil, nil
	}
	keys := make([]string, len(names))
	seen := make(map[string]struct{}, len(names))
	for i, name := range names {
		if name == "" {
			return nil, Errorf(code, "name every tensor, or send a value", "tensor %d of %d has no name", i, len(names))
		}
		if !utf8.ValidString(name) {
			return nil, Errorf(code, "use UTF-8", "the name of tensor %d is not UTF-8", i)
		}
		for at := 0; at < len(name); at++ {
			if name[at] == '~' && !strings.HasPrefix(name[at+1:], "0") && !strings.HasPrefix(name[at+1:], "1") {
				return nil, Errorf(code, "write ~ as ~0", "the name %q of tensor %d has a ~ that is no ~0 or ~1", shortened(name), i)
			}
		}
		keys[i] = unescapePath.Replace(name)
		if _, twice := seen[keys[i]]; twice {
			return nil, Errorf(code, "give each tensor its own name", "two tensors are named %q", shortened(keys[i]))
		}
		seen[keys[i]] = struct{}{}
	}
	return keys, nil
}

// TreeOf writes out the tree that a message without one stands for: of one
// unnamed tensor that tensor, else a dict of the named ones. CodeInvalid where
// names are absent, double or wrongly escaped.
func TreeOf(names []string) ([]byte, error) {
	keys, err := flatKeys(CodeInvalid, names)
	if err != nil {
		return nil, err
	}
	e := &treeEncoder{}
	if keys == nil {
		e.tensor(0)
		return e.dst, nil
	}
	if slices.Contains(keys, "$") {
		e.dst = append(e.dst, `{"$":"dict","v":[`...)
		for i, key := range keys {
			e.comma(i)
			e.dst = append(appendText(append(e.dst, '['), key), ',')
			e.tensor(i)
			e.dst = append(e.dst, ']')
		}
		return append(e.dst, ']', '}'), nil
	}
	e.dst = append(e.dst, '{')
	for i, key := range keys {
		e.comma(i)
		e.dst = append(appendText(e.dst, key), ':')
		e.tensor(i)
	}
	return append(e.dst, '}'), nil
}

// DecodeValue builds the value of a message from its tree and its tensors'
// names; it is DecodeTree where there is a tree, and TreeOf's rule where not. Names
// that are none have CodeProtocol; errors of tensor are returned as they are.
func DecodeValue(tree []byte, names []string, tensor func(i int) (any, error)) (any, error) {
	if len(tree) > 0 {
		return DecodeTree(tree, tensor)
	}
	keys, err := flatKeys(CodeProtocol, names)
	if err != nil {
		return nil, err
	}
	if keys == nil {
		return tensor(0)
	}
	out := make(map[string]any, len(keys))
	for i, key := range keys {
		if out[key], err = tensor(i); err != nil {
			return nil, err
		}
	}
	return out, nil
}
