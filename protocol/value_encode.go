package protocol

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"math/big"
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

type treeEncoder struct {
	isTensor func(any) bool
	dst      []byte
	tensors  []NamedTensor
	path     []byte
	parts    int // of path
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

// shortenedPath keeps both ends of a path, which name it best.
func shortenedPath(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return s[:most/2] + "…" + s[len(s)-most/2:]
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
			e.tensor(len(e.tensors))
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
	if len(e.tensors) == MaxTensors {
		return e.fail("send fewer at once", "is one tensor more than the %d that a message holds", MaxTensors)
	}
	if len(e.path) > MaxTensorName {
		return e.fail("use shorter keys", "has a path of %d bytes, longer than %d", len(e.path), MaxTensorName)
	}
	if !utf8.Valid(e.path) {
		return e.fail("use UTF-8 in keys", "has a path that is not UTF-8")
	}
	e.tensors = append(e.tensors, NamedTensor{Name: string(e.path), Tensor: v})
	return nil
}

// scalar writes what holds no other values.
func (e *treeEncoder) scalar(v any) error {
	switch v := v.(type) {
	case nil:
		e.dst = append(e.dst, "null"...)
	case bool:
		e.dst = strconv.AppendBool(e.dst, v)
	case int:
		return e.int(int64(v))
	case int8:
		return e.int(int64(v))
	case int16:
		return e.int(int64(v))
	case int32:
		return e.int(int64(v))
	case int64:
		return e.int(v)
	case uint:
		return e.uint(uint64(v))
	case uint8:
		return e.uint(uint64(v))
	case uint16:
		return e.uint(uint64(v))
	case uint32:
		return e.uint(uint64(v))
	case uint64:
		return e.uint(v)
	case *big.Int:
		return e.bigInt(v)
	case float32:
		return e.float(float64(v))
	case float64:
		return e.float(v)
	case string:
		return e.text(v)
	case []byte:
		if base64.StdEncoding.EncodedLen(len(v)) > MaxBody {
			return e.tooLong()
		}
		return e.nest(1, func() error {
			e.dst = append(e.dst, `{"$":"bytes","v":"`...)
			e.dst = append(base64.StdEncoding.AppendEncode(e.dst, v), '"', '}')
			return nil
		})
	default:
		return e.fail("use nil, bool, integers, floats, string, []byte, []any, map[string]any, the types of this package, or tensors",
			"has the Go type %T, which cannot be sent", v)
	}
	return nil
}

func (e *treeEncoder) int(n int64) error {
	if n < -MaxSafeInt || n > MaxSafeInt {
		return e.tagged("int", strconv.FormatInt(n, 10))
	}
	e.dst = strconv.AppendInt(e.dst, n, 10)
	return nil
}

func (e *treeEncoder) uint(n uint64) error {
	if n > MaxSafeInt {
		return e.tagged("int", strconv.FormatUint(n, 10))
	}
	e.dst = strconv.AppendUint(e.dst, n, 10)
	return nil
}

func (e *treeEncoder) bigInt(n *big.Int) error {
	if n == nil {
		return e.fail("use nil", "is a nil *big.Int")
	}
	if n.IsInt64() {
		return e.int(n.Int64())
	}
	// A digit holds less than four bits: the text of a huge one is never made.
	if n.BitLen() > 4*MaxIntDigits {
		return e.fail("send it as bytes", "is an integer of more than %d digits", MaxIntDigits)
	}
	digits := n.String()
	if len(strings.TrimPrefix(digits, "-")) > MaxIntDigits {
		return e.fail("send it as bytes", "is an integer of more than %d digits", MaxIntDigits)
	}
	return e.tagged("int", digits)
}

// float writes a point or an exponent always: that is what tells it from an integer.
func (e *treeEncoder) float(f float64) error {
	switch {
	case math.IsNaN(f):
		return e.tagged("float", "nan")
	case math.IsInf(f, 1):
		return e.tagged("float", "inf")
	case math.IsInf(f, -1):
		return e.tagged("float", "-inf")
	case f != 0 && (math.Abs(f) < 1e-5 || math.Abs(f) >= 1e16):
		e.dst = strconv.AppendFloat(e.dst, f, 'e', -1, 64)
	default:
		from := len(e.dst)
		e.dst = strconv.AppendFloat(e.dst, f, 'f', -1, 64)
		if !slices.Contains(e.dst[from:], '.') {
			e.dst = append(e.dst, ".0"...)
		}
	}
	return nil
}

// tagged writes a tag whose value is plain text.
func (e *treeEncoder) tagged(tag, v string) error {
	return e.nest(1, func() error {
		e.dst = append(append(e.dst, `{"$":"`...), tag...)
		e.dst = append(append(append(e.dst, `","v":"`...), v...), '"', '}')
		return nil
	})
}

func (e *treeEncoder) text(s string) error {
	if len(s) > MaxBody {
		return e.tooLong()
	}
	if !utf8.ValidString(s) {
		return e.fail("send it as []byte", "is text that is not UTF-8")
	}
	e.dst = appendText(e.dst, s)
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
	if !isTypeName(c.Type) {
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

func isTypeName(s string) bool {
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
