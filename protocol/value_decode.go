package protocol

import (
	"encoding/base64"
	"errors"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

const remedyTree = "the sender wrote what is not a Baton value: update it"

// DecodeTree builds a value from its tree; tensor gives the tensors by number,
// and its errors are returned as they are. It may have been called before
// DecodeTree fails, so a caller that takes references in it drops them then.
//
// Integers come back as int64, beyond it as *big.Int; floats as float64; a dict
// as map[string]any, and where a key is no string as Dict. Refused (CodeProtocol)
// is anything that the tree's rules do not make: unknown tags, keys besides
// those of a tag, double keys, integers beyond ±MaxSafeInt without a tag, text
// that is not UTF-8, nesting beyond MaxTreeDepth, an empty tree (DecodeValue).
func DecodeTree(tree []byte, tensor func(i int) (any, error)) (any, error) {
	if len(tree) > MaxBody {
		return nil, Errorf(CodeProtocol, remedyTree, "a value tree of %d bytes is longer than %d", len(tree), MaxBody)
	}
	d := &treeDecoder{r: jsonReader{data: tree}, tensor: tensor}
	v, err := d.value()
	if err == nil {
		err = d.r.end()
	}
	if err == nil {
		return v, nil
	}
	if d.tensorErr != nil {
		return nil, d.tensorErr
	}
	return nil, Errorf(CodeProtocol, remedyTree, "a value tree is malformed: %w", err)
}

type treeDecoder struct {
	r         jsonReader
	tensor    func(i int) (any, error)
	tensorErr error
}

func (d *treeDecoder) value() (any, error) {
	switch d.r.peek() {
	case '{':
		return d.object()
	case '[':
		return d.list()
	case '"':
		return d.r.text()
	case 't', 'f':
		return d.r.boolean()
	case 'n':
		return nil, d.r.word("null")
	}
	return d.number()
}

// deeper refuses nesting; the container that is next is not counted yet.
func (d *treeDecoder) deeper() error {
	if d.r.depth >= MaxTreeDepth {
		return d.r.fail("nested deeper than %d levels", MaxTreeDepth)
	}
	return nil
}

func (d *treeDecoder) number() (any, error) {
	from := d.r.at
	literal, float, err := d.r.number()
	if err != nil {
		return nil, err
	}
	if !float {
		d.r.at = from
		return d.r.integer()
	}
	f, err := strconv.ParseFloat(literal, 64)
	if err != nil { // out of range
		return nil, d.r.fail("%s is no float of 64 bits", shortened(literal))
	}
	return f, nil
}

func (d *treeDecoder) list() (any, error) {
	if err := d.deeper(); err != nil {
		return nil, err
	}
	out := []any{}
	err := d.r.array(func(int) error {
		v, err := d.value()
		out = append(out, v)
		return err
	})
	return out, err
}

// object reads a dict, or a tag by its keys in any order.
func (d *treeDecoder) object() (any, error) {
	if err := d.deeper(); err != nil {
		return nil, err
	}
	m := map[string]any{}
	err := d.r.object(func(key string) error {
		if _, twice := m[key]; twice {
			return d.r.fail("the key %q stands twice", shortened(key))
		}
		v, err := d.value()
		m[key] = v
		return err
	})
	if err != nil {
		return nil, err
	}
	tag, tagged := m["$"]
	if !tagged {
		return m, nil
	}
	v, err := d.tagged(tag, m)
	var wrong tagError
	if errors.As(err, &wrong) {
		return nil, d.r.fail("%s", wrong)
	}
	return v, err
}

// tagError says what is wrong with a tag.
type tagError string

func (e tagError) Error() string { return string(e) }

func (d *treeDecoder) tagged(tag any, m map[string]any) (any, error) {
	name, ok := tag.(string)
	if !ok {
		return nil, tagError("a tag that is no text")
	}
	members := 2
	_, typed := m["type"]
	switch {
	case name == "dataclass", name == "function" && m["name"] == nil:
		members = 3
	case name == "tuple" && typed:
		members = 4
	}
	if len(m) != members {
		return nil, tagError("tag " + strconv.Quote(shortened(name)) + " with members missing or besides it")
	}
	switch name {
	case "tensor":
		return d.tensorAt(m["i"])
	case "tuple": // of a class, perhaps, which is Python's
		class, _ := m["type"].(string)
		fields, _ := m["fields"].([]any)
		items, ok := m["v"].([]any)
		if ok && (!typed || IsTypeName(class) && len(fields) == len(items) && areTexts(fields)) {
			return ValueTuple(items), nil
		}
	case "bytes":
		return bytesTag(m["v"])
	case "int":
		return intTag(m["v"])
	case "float":
		return floatTag(m["v"])
	case "dict":
		return dictTag(m["v"])
	case "dataclass":
		class, text := m["type"].(string)
		fields, ok := m["v"].(map[string]any)
		if text && ok && IsTypeName(class) {
			return Dataclass{Type: class, Value: fields}, nil
		}
	case "function":
		return functionTag(m)
	}
	return nil, tagError("tag " + strconv.Quote(shortened(name)) + " is unknown or has a wrong value")
}

func functionTag(m map[string]any) (any, error) {
	var f ValueFunction
	var ok bool
	if len(m) == 2 {
		f.Name, ok = m["name"].(string)
	} else {
		var number int64
		f.Token, ok = m["token"].(string)
		number, _ = m["object"].(int64)
		f.Object = uint64(max(0, number))
	}
	if !ok || !f.isOne() {
		return nil, tagError("a function that has neither a name nor a token with a number")
	}
	return f, nil
}

func areTexts(all []any) bool {
	return !slices.ContainsFunc(all, func(v any) bool { _, is := v.(string); return !is })
}

func (d *treeDecoder) tensorAt(i any) (any, error) {
	n, ok := i.(int64)
	if !ok || n < 0 || n >= MaxTensors {
		return nil, tagError("a tensor without a number")
	}
	t, err := d.tensor(int(n))
	d.tensorErr = err
	return t, err
}

func bytesTag(v any) (any, error) {
	s, ok := v.(string)
	// The decoder skips line ends, which would give one value two forms.
	if !ok || strings.ContainsAny(s, "\r\n") {
		return nil, tagError("bytes that are not base64")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, tagError("bytes that are not base64")
	}
	return b, nil
}

func intTag(v any) (any, error) {
	s, _ := v.(string)
	digits := strings.TrimPrefix(s, "-")
	if digits == "" || len(digits) > MaxIntDigits || digits[0] == '0' {
		return nil, tagError("a tagged integer that is not written as one")
	}
	for i := 0; i < len(digits); i++ {
		if digits[i] < '0' || digits[i] > '9' {
			return nil, tagError("a tagged integer that is not written as one")
		}
	}
	n, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, tagError("a tagged integer that is not written as one")
	}
	if !n.IsInt64() {
		return n, nil
	}
	if i := n.Int64(); i > MaxSafeInt || i < -MaxSafeInt {
		return i, nil
	}
	return nil, tagError("a tagged integer that needs no tag")
}

func floatTag(v any) (any, error) {
	switch v {
	case "nan":
		return math.NaN(), nil
	case "inf":
		return math.Inf(1), nil
	case "-inf":
		return math.Inf(-1), nil
	}
	return nil, tagError("a tagged float that is not nan, inf or -inf")
}

// dictTag makes a map of pairs whose keys are all text, else a Dict.
func dictTag(v any) (any, error) {
	pairs, ok := v.([]any)
	if !ok {
		return nil, tagError("a dict that is no list of pairs")
	}
	out := make(Dict, len(pairs))
	seen := make(map[string]struct{}, len(pairs))
	texts := make(map[string]any, len(pairs))
	e := treeEncoder{isTensor: func(any) bool { return false }}
	for i, p := range pairs {
		pair, ok := p.([]any)
		if !ok || len(pair) != 2 || !isKey(pair[0]) {
			return nil, tagError("a dict that is no list of pairs")
		}
		out[i] = DictItem{Key: pair[0], Value: pair[1]}
		e.dst = e.dst[:0]
		if err := e.key(pair[0]); err != nil {
			return nil, err
		}
		if _, twice := seen[string(e.dst)]; twice {
			return nil, tagError("a dict with a key that stands twice")
		}
		seen[string(e.dst)] = struct{}{}
		if key, ok := pair[0].(string); ok {
			texts[key] = pair[1]
		}
	}
	if len(texts) == len(out) {
		return texts, nil
	}
	return out, nil
}

func isKey(v any) bool {
	switch v := v.(type) {
	case nil, bool, int64, *big.Int, float64, string, []byte:
		return true
	case ValueTuple:
		for _, p := range v {
			if !isKey(p) {
				return false
			}
		}
		return true
	}
	return false
}
