package dlpack

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/baton-ipc/baton/protocol"
)

var dtypesByName = func() map[string]DType {
	m := make(map[string]DType, len(protocol.DTypeNames))
	for d, s := range protocol.DTypeNames {
		m[s] = DType{TypeCode(d.Code), d.Bits, 1}
	}
	return m
}()

// ParseDType reads the name of a type as ml_dtypes spells it ("float32",
// "bfloat16", "float8_e4m3fn"), followed by "xN" for N ≥ 2 lanes
// ("float32x4"). Each type has one spelling. Anything else gives a *DTypeError
// (ErrUnknownDType).
func ParseDType(s string) (DType, error) {
	if d, ok := dtypesByName[s]; ok {
		return d, nil
	}
	base, lanes, ok := cutLanes(s)
	d, known := dtypesByName[base]
	if !ok || !known {
		return DType{}, &DTypeError{Named: true, Text: s}
	}
	d.Lanes = lanes
	return d, nil
}

// cutLanes splits "float32x4" at the last x. The number has no sign and no
// leading zero, so that a name and its type stand for each other.
func cutLanes(s string) (string, uint16, bool) {
	i := strings.LastIndexByte(s, 'x')
	if i < 0 {
		return "", 0, false
	}
	digits := s[i+1:]
	n, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || n < 2 || digits[0] == '0' || digits[0] == '+' {
		return "", 0, false
	}
	return s[:i], uint16(n), true
}

// String gives the name that ParseDType reads, or the three numbers of a type
// that Check refuses.
func (d DType) String() string {
	name, ok := protocol.DTypeName(uint8(d.Code), d.Bits, d.Lanes)
	if !ok {
		return fmt.Sprintf("dtype(code=%d,bits=%d,lanes=%d)", d.Code, d.Bits, d.Lanes)
	}
	return name
}

// MarshalText writes the name; a type that Check refuses is an error.
func (d DType) MarshalText() ([]byte, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	return []byte(d.String()), nil
}

// UnmarshalText is ParseDType. After an error (a *DTypeError, ErrUnknownDType) the type is as
// before.
func (d *DType) UnmarshalText(b []byte) error {
	v, err := ParseDType(string(b))
	if err != nil {
		return err
	}
	*d = v
	return nil
}

func errPaddedLanes(d DType) error {
	return fmt.Errorf("%w: %s padded to bytes with %d lanes has no defined layout", ErrFlags, d, d.Lanes)
}
