package npy

import (
	"fmt"
	"math"
)

// maxNesting bounds how deep a literal nests. Structured types nest; everything
// that is accepted needs two levels.
const maxNesting = 16

type kind uint8

const (
	kindInt kind = iota
	kindString
	kindBool
	kindNone
	kindTuple
	kindList
	kindDict
)

var kindNames = [...]string{"a number", "a string", "a truth value", "None", "a tuple", "a list", "a dictionary"}

// value is one literal of the subset of Python that headers are written in.
type value struct {
	kind  kind
	at    int
	text  string  // kindString: between the quotes, escapes left as they are
	num   int64   // kindInt
	wide  bool    // kindInt: does not fit 64 bits
	truth bool    // kindBool
	items []value // kindTuple, kindList; kindDict: keys and values in turn
}

// parser walks over a header's text. base is where the text starts in the file.
type parser struct {
	text []byte
	pos  int
	base int64
}

func (p *parser) fail(at int, format string, args ...any) error {
	return &HeaderError{p.base + int64(at), fmt.Sprintf(format, args...)}
}

// parseHeader understands the dictionary of a header; DataOffset is left to the
// caller.
func parseHeader(text []byte, base int64) (Header, error) {
	p := &parser{text: text, base: base}
	dict, err := p.value(0)
	if err != nil {
		return Header{}, err
	}
	p.space()
	if p.pos != len(p.text) {
		return Header{}, p.fail(p.pos, "something follows the dictionary")
	}
	if dict.kind != kindDict {
		return Header{}, p.fail(dict.at, "a dictionary is expected, found %s", kindNames[dict.kind])
	}

	var descr, order, shape *value
	for i := 0; i+1 < len(dict.items); i += 2 {
		key, val := &dict.items[i], &dict.items[i+1]
		var place **value
		switch {
		case key.kind != kindString:
			return Header{}, p.fail(key.at, "a key must be a string, found %s", kindNames[key.kind])
		case key.text == "descr":
			place = &descr
		case key.text == "fortran_order":
			place = &order
		case key.text == "shape":
			place = &shape
		default:
			return Header{}, p.fail(key.at, "unknown key %.60q", key.text)
		}
		if *place != nil {
			return Header{}, p.fail(key.at, "key %q is given twice", key.text)
		}
		*place = val
	}
	if descr == nil || order == nil || shape == nil {
		return Header{}, p.fail(dict.at, "one of the keys descr, fortran_order and shape is missing")
	}
	if order.kind != kindBool {
		return Header{}, p.fail(order.at, "fortran_order must be True or False, found %s", kindNames[order.kind])
	}
	d, err := p.dtype(descr)
	if err != nil {
		return Header{}, err
	}
	dims, err := p.shape(shape, d)
	if err != nil {
		return Header{}, err
	}
	return Header{DType: d.name, Shape: dims, FortranOrder: order.truth}, nil
}

func (p *parser) dtype(v *value) (dtype, error) {
	switch v.kind {
	case kindString:
		return byDescr(v.text)
	case kindList:
		return dtype{}, &DTypeError{Type: "a structured type", Kind: ErrDType, Reason: "its elements have several fields", Remedy: "save each field as an array of its own: numpy.save(file, a['field'])"}
	case kindTuple:
		return dtype{}, &DTypeError{Type: "a type with a shape or metadata", Kind: ErrDType, Reason: "its elements are arrays themselves or carry Python data", Remedy: "save numpy.ascontiguousarray(a).view(a.dtype.base)"}
	}
	return dtype{}, p.fail(v.at, "descr must be a string, found %s", kindNames[v.kind])
}

func (p *parser) shape(v *value, d dtype) ([]int64, error) {
	if v.kind != kindTuple {
		return nil, p.fail(v.at, "shape must be a tuple, found %s", kindNames[v.kind])
	}
	dims := make([]int64, 0, min(len(v.items), MaxDims+1))
	for i := range v.items {
		item := &v.items[i]
		switch {
		case item.kind != kindInt:
			return nil, p.fail(item.at, "a dimension must be a number, found %s", kindNames[item.kind])
		case item.wide:
			return nil, &SizeError{DType: d.name, Shape: dims, Problem: fmt.Sprintf("dimension %d of the file does not fit 64 bits", i)}
		}
		dims = append(dims, item.num)
	}
	if _, err := d.bytes(dims); err != nil {
		return nil, err
	}
	return dims, nil
}

func (p *parser) space() {
	for p.pos < len(p.text) {
		switch p.text[p.pos] {
		case ' ', '\t', '\n', '\r', '\f':
			p.pos++
		default:
			return
		}
	}
}

// next skips space and returns the byte there without taking it; 0 at the end,
// which starts no literal.
func (p *parser) next() byte {
	p.space()
	if p.pos == len(p.text) {
		return 0
	}
	return p.text[p.pos]
}

func (p *parser) value(depth int) (value, error) {
	c := p.next()
	at := p.pos
	switch {
	case at == len(p.text):
		return value{}, p.fail(at, "it ends where a value is expected")
	case depth == maxNesting:
		return value{}, p.fail(at, "values are nested more than %d deep", maxNesting)
	case c == '{':
		return p.dict(depth)
	case c == '(':
		return p.sequence(kindTuple, ')', depth)
	case c == '[':
		return p.sequence(kindList, ']', depth)
	case c == '\'' || c == '"':
		return p.str()
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	}
	for p.pos < len(p.text) && isLetter(p.text[p.pos]) {
		p.pos++
	}
	switch word := string(p.text[at:p.pos]); word {
	case "True", "False":
		return value{kind: kindBool, at: at, truth: word == "True"}, nil
	case "None":
		return value{kind: kindNone, at: at}, nil
	}
	return value{}, p.fail(at, "no value can start with %q", c)
}

func isLetter(c byte) bool {
	return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
}

func (p *parser) dict(depth int) (value, error) {
	v := value{kind: kindDict, at: p.pos}
	p.pos++
	for p.next() != '}' {
		key, err := p.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		if p.next() != ':' {
			return value{}, p.fail(p.pos, "a colon is expected after a key")
		}
		p.pos++
		val, err := p.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		v.items = append(v.items, key, val)
		if _, err := p.separator('}'); err != nil {
			return value{}, err
		}
	}
	p.pos++
	return v, nil
}

// sequence parses a tuple or list. As in Python, one value in parentheses
// without a comma is that value, not a tuple.
func (p *parser) sequence(k kind, end byte, depth int) (value, error) {
	v := value{kind: k, at: p.pos}
	p.pos++
	comma := false
	for p.next() != end {
		item, err := p.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		v.items = append(v.items, item)
		if comma, err = p.separator(end); err != nil {
			return value{}, err
		}
	}
	p.pos++
	if k == kindTuple && len(v.items) == 1 && !comma {
		return v.items[0], nil
	}
	return v, nil
}

// separator takes a comma, or leaves end to be taken.
func (p *parser) separator(end byte) (comma bool, err error) {
	switch p.next() {
	case ',':
		p.pos++
		return true, nil
	case end:
		return false, nil
	}
	return false, p.fail(p.pos, "a comma or %q is expected", end)
}

const openString = "a string has no end"

func (p *parser) str() (value, error) {
	quote, at := p.text[p.pos], p.pos
	for i := at + 1; i < len(p.text); i++ {
		switch p.text[i] {
		case '\\':
			i++
		case quote:
			p.pos = i + 1
			return value{kind: kindString, at: at, text: string(p.text[at+1 : i])}, nil
		case '\n':
			return value{}, p.fail(at, openString)
		}
	}
	return value{}, p.fail(at, openString)
}

func (p *parser) number() (value, error) {
	v := value{kind: kindInt, at: p.pos}
	negative := p.text[p.pos] == '-'
	if negative {
		p.pos++
	}
	first := p.pos
	for p.pos < len(p.text) && p.text[p.pos] >= '0' && p.text[p.pos] <= '9' {
		digit := int64(p.text[p.pos] - '0')
		if v.num > (math.MaxInt64-digit)/10 {
			v.wide = true
		} else {
			v.num = v.num*10 + digit
		}
		p.pos++
	}
	if p.pos == first {
		return value{}, p.fail(v.at, "a minus sign without a number")
	}
	// Python 2 wrote long integers with an L behind them.
	if p.pos < len(p.text) && p.text[p.pos] == 'L' {
		p.pos++
	}
	if negative {
		v.num = -v.num
	}
	return v, nil
}
