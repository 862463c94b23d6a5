package protocol

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// EncodeTree writes a value as JSON and lists its tensors, in the order of
// their numbers. A value is nil, bool, any Go integer, *big.Int, float32,
// float64, string, []byte, []any, ValueTuple, map[string]any, Dict, Dataclass,
// or what isTensor says is a tensor. Maps are written in the order of their
// keys, so equal values give equal bytes. A tensor alone and a map of tensors
// give an empty tree: their names say all.
//
// Errors have CodeInvalid and name the path: a type that is none of these, text
// that is not UTF-8, nesting beyond MaxTreeDepth (what contains itself ends
// there), a tree beyond MaxBody, more than MaxTensors tensors.
func EncodeTree(v any, isTensor func(any) bool) (tree []byte, tensors []NamedTensor, err error) {
	if v != nil && isTensor(v) {
		return nil, []NamedTensor{{Tensor: v}}, nil
	}
	e := &treeEncoder{isTensor: isTensor}
	if tensors, flat, err := e.flat(v); flat || err != nil {
		return nil, tensors, err
	}
	if err := e.value(v); err != nil {
		return nil, nil, err
	}
	return e.dst, e.tensors, nil
}

// EncodeItems is EncodeTree for the array that the tree of a call is. Its tensors have the numbers
// from first on. Errors are those of EncodeTree.
func EncodeItems(items []any, first int, isTensor func(any) bool) (tree []byte, tensors []NamedTensor, err error) {
	e := &treeEncoder{isTensor: isTensor, first: first}
	if err := e.value(items); err != nil {
		return nil, nil, err
	}
	return e.dst, e.tensors, nil
}

type treeEncoder struct {
	isTensor func(any) bool
	first    int // number of the first tensor
	dst      []byte
	tensors  []NamedTensor
	path     []byte
	parts    int // of path
	names    int // bytes of all tensors' names
	depth    int // of the JSON
}

// flat lists the tensors of a map that holds nothing else; such a map needs no
// tree, unless a key is "", which would make its tensor an unnamed one.
func (e *treeEncoder) flat(v any) (tensors []NamedTensor, flat bool, err error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, false, nil
	}
	for key, x := range m {
		if key == "" || x == nil || !e.isTensor(x) {
			return nil, false, nil
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if err := e.in(key, func() error { return e.addTensor(m[key]) }); err != nil {
			return nil, false, err
		}
	}
	return e.tensors, true, nil
}

func (e *treeEncoder) fail(remedy, format string, args ...any) error {
	at := "the value"
	if len(e.path) > 0 {
		at = strconv.Quote(shortenedPath(string(e.path))) + " of the value"
	}
	return Errorf(CodeInvalid, remedy, "%s %s", at, fmt.Sprintf(format, args...))
}

// shortenedPath keeps the first and last steps of a long path, which name it best, and cuts no rune.
func shortenedPath(s string) string {
	const mostSteps, few, most = 12, 4, 120
	if steps := strings.Split(s, "/"); len(steps) > mostSteps {
		s = strings.Join(steps[:few], "/") + "/…/" + strings.Join(steps[len(steps)-few:], "/")
	}
	if len(s) <= most {
		return s
	}
	head, tail := most/2, len(s)-most/2
	for !utf8.RuneStart(s[head]) {
		head--
	}
	for !utf8.RuneStart(s[tail]) {
		tail++
	}
	return s[:head] + "…" + s[tail:]
}

// in runs f with one more part on the path.
func (e *treeEncoder) in(part string, f func() error) error {
	n := len(e.path)
	if e.parts > 0 { // not n > 0: the first part may be the key ""
		e.path = append(e.path, '/')
	}
	e.path = append(e.path, escapePath.Replace(part)...)
	e.parts++
	err := f()
	e.parts--
	e.path = e.path[:n]
	return err
}

func (e *treeEncoder) comma(i int) {
	if i > 0 {
		e.dst = append(e.dst, ',')
	}
}

// nest runs f some levels of JSON deeper.
func (e *treeEncoder) nest(levels int, f func() error) error {
	if e.depth += levels; e.depth > MaxTreeDepth {
		return e.fail("make it flatter; a value must not contain itself", "is nested deeper than %d levels of JSON", MaxTreeDepth)
	}
	err := f()
	e.depth -= levels
	return err
}

func (e *treeEncoder) value(v any) error {
	if len(e.dst) > MaxBody {
		return e.tooLong()
	}
	if v == nil {
		e.dst = append(e.dst, "null"...)
		return nil
	}
	if e.isTensor(v) {
		return e.nest(1, func() error {
			e.tensor(e.first + len(e.tensors))
			return e.addTensor(v)
		})
	}
	switch v := v.(type) {
	case map[string]any:
		return e.dict(v)
	case Dict:
		return e.pairs(v)
	case []any:
		return e.nest(1, func() error { return e.list(v) })
	case ValueTuple:
		return e.nest(2, func() error {
			e.dst = append(e.dst, `{"$":"tuple","v":`...)
			err := e.list(v)
			e.dst = append(e.dst, '}')
			return err
		})
	case Dataclass:
		return e.dataclass(v)
	case ValueFunction:
		return e.function(v)
	}
	return e.scalar(v)
}

func (e *treeEncoder) tooLong() error {
	return e.fail("put large values into tensors: they are handed over uncopied", "makes the description longer than %d bytes", MaxBody)
}

// tensor writes the mark of tensor i.
func (e *treeEncoder) tensor(i int) {
	e.dst = append(strconv.AppendInt(append(e.dst, `{"$":"tensor","i":`...), int64(i), 10), '}')
}

func (e *treeEncoder) addTensor(v any) error {
	if e.first+len(e.tensors) >= MaxTensors {
		return e.fail("send fewer at once", "is one tensor more than the %d that a message holds", MaxTensors)
	}
	if len(e.path) > MaxTensorName {
		return e.fail("use shorter keys", "has a path of %d bytes, longer than %d", len(e.path), MaxTensorName)
	}
	if !utf8.Valid(e.path) {
		return e.fail("use UTF-8 in keys", "has a path that is not UTF-8")
	}
	// A long key above many tensors stands in each of their names.
	if e.names += len(e.path); e.names > MaxBody {
		return e.tooLong()
	}
	e.tensors = append(e.tensors, NamedTensor{Name: string(e.path), Tensor: v})
	return nil
}

func (e *treeEncoder) list(items []any) error {
	e.dst = append(e.dst, '[')
	for i, v := range items {
		e.comma(i)
		if err := e.in(strconv.Itoa(i), func() error { return e.value(v) }); err != nil {
			return err
		}
	}
	e.dst = append(e.dst, ']')
	return nil
}

func (e *treeEncoder) dict(m map[string]any) error {
	if _, tag := m["$"]; !tag {
		return e.nest(1, func() error { return e.object(m) })
	}
	d := make(Dict, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		d = append(d, DictItem{key, m[key]})
	}
	return e.pairs(d)
}

func (e *treeEncoder) object(m map[string]any) error {
	e.dst = append(e.dst, '{')
	for i, key := range slices.Sorted(maps.Keys(m)) {
		e.comma(i)
		err := e.in(key, func() error {
			if err := e.text(key); err != nil {
				return err
			}
			e.dst = append(e.dst, ':')
			return e.value(m[key])
		})
		if err != nil {
			return err
		}
	}
	e.dst = append(e.dst, '}')
	return nil
}

func (e *treeEncoder) dataclass(c Dataclass) error {
	if !IsTypeName(c.Type) {
		return e.fail("name it module:qualname", "is a dataclass of type %q", shortened(c.Type))
	}
	if _, tag := c.Value["$"]; tag {
		return e.fail("rename it", "is a dataclass with a field named $")
	}
	return e.nest(2, func() error {
		e.dst = append(appendText(append(e.dst, `{"$":"dataclass","type":`...), c.Type), `,"v":`...)
		err := e.object(c.Value)
		e.dst = append(e.dst, '}')
		return err
	})
}

func (e *treeEncoder) function(f ValueFunction) error {
	if !f.isOne() {
		return e.fail("give a function that is registered, or that of this call", "is no function: %q", shortened(f.Name))
	}
	return e.nest(1, func() error {
		if f.Token == "" {
			e.dst = append(appendText(append(e.dst, `{"$":"function","name":`...), f.Name), '}')
			return nil
		}
		e.dst = strconv.AppendUint(append(e.dst, `{"$":"function","object":`...), f.Object, 10)
		e.dst = append(append(append(e.dst, `,"token":"`...), f.Token...), '"', '}')
		return nil
	})
}

// isOne tells whether it has a name, or else a token and a number.
func (f ValueFunction) isOne() bool {
	if f.Token == "" {
		return f.Object == 0 && CheckFunction(f.Name) == nil
	}
	token, err := hex.DecodeString(f.Token)
	return err == nil && len(token) == 16 && f.Token == strings.ToLower(f.Token) && f.Name == "" &&
		f.Object > 0 && f.Object <= MaxSafeInt
}

// IsTypeName tells whether it may be the name of a dataclass: module:Class.
func IsTypeName(s string) bool {
	module, name, ok := strings.Cut(s, ":")
	return ok && module != "" && name != "" && len(s) <= MaxTypeName && utf8.ValidString(s)
}

// pairs writes a dict that no JSON object can be.
func (e *treeEncoder) pairs(d Dict) error {
	return e.nest(3, func() error {
		seen := make(map[string]struct{}, len(d))
		e.dst = append(e.dst, `{"$":"dict","v":[`...)
		for i, item := range d {
			e.comma(i)
			e.dst = append(e.dst, '[')
			from := len(e.dst)
			if err := e.key(item.Key); err != nil {
				return err
			}
			key := string(e.dst[from:])
			if _, twice := seen[key]; twice {
				return e.fail("give each key once", "has the key %s twice", shortened(key))
			}
			seen[key] = struct{}{}
			part, text := item.Key.(string)
			if !text {
				part = key
			}
			e.dst = append(e.dst, ',')
			if err := e.in(part, func() error { return e.value(item.Value) }); err != nil {
				return err
			}
			e.dst = append(e.dst, ']')
		}
		e.dst = append(e.dst, ']', '}')
		return nil
	})
}

// key writes the key of a dict.
func (e *treeEncoder) key(v any) error {
	parts, ok := v.(ValueTuple)
	if !ok {
		return e.scalar(v)
	}
	return e.nest(2, func() error {
		e.dst = append(e.dst, `{"$":"tuple","v":[`...)
		for i, p := range parts {
			e.comma(i)
			if err := e.key(p); err != nil {
				return err
			}
		}
		e.dst = append(e.dst, ']', '}')
		return nil
	})
}
