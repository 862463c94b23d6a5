package protocol

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxSafeInt is the largest integer that every JSON reader keeps exactly.
const MaxSafeInt = 1<<53 - 1

// maxJSONDepth bounds the nesting of arrays and objects: that of a value, and
// what a tuple puts around it.
const maxJSONDepth = MaxTreeDepth + 8

// jsonReader reads JSON that another process wrote. It is stricter than
// encoding/json so that what one language accepts every other understands the
// same way: names match exactly, text is UTF-8 without lone surrogates, and a
// number is an integer or not by how it is written.
type jsonReader struct {
	data  []byte
	at    int
	depth int
}

type jsonError struct {
	at   int
	what string
}

func (e *jsonError) Error() string { return "JSON at byte " + strconv.Itoa(e.at) + ": " + e.what }

func (r *jsonReader) fail(format string, args ...any) error {
	return &jsonError{at: r.at, what: fmt.Sprintf(format, args...)}
}

// peek skips white space and returns the next byte, 0 at the end.
func (r *jsonReader) peek() byte {
	for r.at < len(r.data) {
		switch c := r.data[r.at]; c {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return c
		}
	}
	return 0
}

func (r *jsonReader) expect(c byte) error {
	if r.peek() != c || r.at >= len(r.data) {
		return r.fail("%q is missing", c)
	}
	r.at++
	return nil
}

// end refuses anything but white space after a value.
func (r *jsonReader) end() error {
	if r.peek(); r.at < len(r.data) {
		return r.fail("more after the value")
	}
	return nil
}

// object calls field for each key, which must read its value.
func (r *jsonReader) object(field func(key string) error) error {
	return r.container('{', '}', func(int) error {
		key, err := r.text()
		if err != nil {
			return err
		}
		if err := r.expect(':'); err != nil {
			return err
		}
		return field(key)
	})
}

// array calls item for each element, which must read it.
func (r *jsonReader) array(item func(i int) error) error {
	return r.container('[', ']', item)
}

func (r *jsonReader) container(begin, end byte, item func(i int) error) error {
	if err := r.expect(begin); err != nil {
		return err
	}
	if r.depth++; r.depth > maxJSONDepth {
		return r.fail("nested more than %d deep", maxJSONDepth)
	}
	defer func() { r.depth-- }()
	if r.peek() == end {
		r.at++
		return nil
	}
	for i := 0; ; i++ {
		if err := item(i); err != nil {
			return err
		}
		switch r.peek() {
		case ',':
			r.at++
		case end:
			r.at++
			return nil
		default:
			return r.fail("',' or %q is missing", end)
		}
	}
}

// word reads null, true or false.
func (r *jsonReader) word(w string) error {
	r.peek()
	if rest := r.data[r.at:]; len(rest) < len(w) || string(rest[:len(w)]) != w {
		return r.fail("%s is missing", w)
	}
	r.at += len(w)
	return nil
}

func (r *jsonReader) boolean() (bool, error) {
	if r.peek() == 't' {
		return true, r.word("true")
	}
	return false, r.word("false")
}

// null reads null if it is next.
func (r *jsonReader) null() (bool, error) {
	if r.peek() != 'n' {
		return false, nil
	}
	return true, r.word("null")
}

// raw reads any value and returns its bytes, which alias the input.
func (r *jsonReader) raw() ([]byte, error) {
	c := r.peek()
	from := r.at
	var err error
	switch c {
	case '{':
		err = r.object(func(string) error { _, err := r.raw(); return err })
	case '[':
		err = r.array(func(int) error { _, err := r.raw(); return err })
	case '"':
		_, err = r.text()
	case 'n':
		err = r.word("null")
	case 't', 'f':
		_, err = r.boolean()
	default:
		_, _, err = r.number()
	}
	return r.data[from:r.at:r.at], err
}

// number reads a number as it is written; float tells whether it has a point or exponent.
func (r *jsonReader) number() (literal string, float bool, err error) {
	r.peek()
	from := r.at
	if r.at < len(r.data) && r.data[r.at] == '-' {
		r.at++
	}
	if n, zero := r.digits(); n == 0 || zero && n > 1 {
		return "", false, r.fail("no value")
	}
	if r.at < len(r.data) && r.data[r.at] == '.' {
		float = true
		r.at++
		if n, _ := r.digits(); n == 0 {
			return "", false, r.fail("digits are missing")
		}
	}
	if r.at < len(r.data) && r.data[r.at]|0x20 == 'e' {
		float = true
		r.at++
		if r.at < len(r.data) && (r.data[r.at] == '+' || r.data[r.at] == '-') {
			r.at++
		}
		if n, _ := r.digits(); n == 0 {
			return "", false, r.fail("digits are missing")
		}
	}
	return string(r.data[from:r.at]), float, nil
}

func (r *jsonReader) digits() (n int, zero bool) {
	from := r.at
	for r.at < len(r.data) && r.data[r.at] >= '0' && r.data[r.at] <= '9' {
		r.at++
	}
	return r.at - from, from < r.at && r.data[from] == '0'
}

// integer reads a number of ±MaxSafeInt written without point or exponent.
func (r *jsonReader) integer() (int64, error) {
	literal, float, err := r.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(literal, 10, 64)
	if float || err != nil || n > MaxSafeInt || n < -MaxSafeInt || literal == "-0" {
		return 0, r.fail("%s is not an integer of ±(2^53-1)", shortened(literal))
	}
	return n, nil
}

// natural reads a number of 0 to MaxSafeInt written without point or exponent.
func (r *jsonReader) natural() (uint64, error) {
	n, err := r.integer()
	if err == nil && n < 0 {
		err = r.fail("%d is negative", n)
	}
	return uint64(n), err
}

// text reads a string.
func (r *jsonReader) text() (string, error) {
	if err := r.expect('"'); err != nil {
		return "", err
	}
	from := r.at
	for r.at < len(r.data) {
		switch c := r.data[r.at]; {
		case c == '"':
			s := r.data[from:r.at]
			if !utf8.Valid(s) {
				return "", r.fail("text that is not UTF-8")
			}
			r.at++
			return string(s), nil
		case c == '\\':
			return r.escaped(from)
		case c < 0x20:
			return "", r.fail("a control character in text")
		}
		r.at++
	}
	return "", r.fail("text without an end")
}

// escaped goes on with a string that began at from and has an escape at r.at.
func (r *jsonReader) escaped(from int) (string, error) {
	out := append([]byte(nil), r.data[from:r.at]...)
	for r.at < len(r.data) {
		c := r.data[r.at]
		switch {
		case c == '"':
			if !utf8.Valid(out) {
				return "", r.fail("text that is not UTF-8")
			}
			r.at++
			return string(out), nil
		case c == '\\':
			char, err := r.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, char)
		case c < 0x20:
			return "", r.fail("a control character in text")
		default:
			out = append(out, c)
			r.at++
		}
	}
	return "", r.fail("text without an end")
}

// escape reads what stands after a backslash; \u halves come in pairs.
func (r *jsonReader) escape() (rune, error) {
	if r.at+1 >= len(r.data) {
		return 0, r.fail("text without an end")
	}
	c := r.data[r.at+1]
	if c == 'u' {
		char, err := r.hex4()
		if err != nil || !utf16.IsSurrogate(char) {
			return char, err
		}
		if r.at < len(r.data) && r.data[r.at] == '\\' {
			low, err := r.hex4()
			if err != nil {
				return 0, err
			}
			if pair := utf16.DecodeRune(char, low); pair != utf8.RuneError {
				return pair, nil
			}
		}
		return 0, r.fail("half of a surrogate pair in text")
	}
	r.at += 2
	switch c {
	case '"', '\\', '/':
		return rune(c), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	}
	return 0, r.fail("unknown escape in text")
}

// hex4 reads \uXXXX.
func (r *jsonReader) hex4() (rune, error) {
	if len(r.data)-r.at < 6 || r.data[r.at+1] != 'u' {
		return 0, r.fail("unknown escape in text")
	}
	var n rune
	for _, c := range r.data[r.at+2 : r.at+6] {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, r.fail("unknown escape in text")
		}
	}
	r.at += 6
	return n, nil
}

// appendText appends s, which is valid UTF-8, as a JSON string.
func appendText(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// shortened keeps outside text in a message short.
func shortened(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// RandomNumber returns a number of 1 to MaxSafeInt that cannot be guessed.
func RandomNumber() uint64 {
	var random [8]byte
	rand.Read(random[:])
	return max(binary.LittleEndian.Uint64(random[:])>>11, 1)
}
