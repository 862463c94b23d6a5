package protocol

import (
	"encoding/base64"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
