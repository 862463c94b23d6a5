package dlpack

import "github.com/baton-ipc/baton/protocol"

// TypeCode is DLDataTypeCode.
type TypeCode uint8

// The type codes of the header.
const (
	CodeInt               TypeCode = 0
	CodeUInt              TypeCode = 1
	CodeFloat             TypeCode = 2
	CodeOpaqueHandle      TypeCode = 3
	CodeBfloat            TypeCode = 4
	CodeComplex           TypeCode = 5
	CodeBool              TypeCode = 6
	CodeFloat8E3M4        TypeCode = 7
	CodeFloat8E4M3        TypeCode = 8
	CodeFloat8E4M3B11FNUZ TypeCode = 9
	CodeFloat8E4M3FN      TypeCode = 10
	CodeFloat8E4M3FNUZ    TypeCode = 11
	CodeFloat8E5M2        TypeCode = 12
	CodeFloat8E5M2FNUZ    TypeCode = 13
	CodeFloat8E8M0FNU     TypeCode = 14
	CodeFloat6E2M3FN      TypeCode = 15
	CodeFloat6E3M2FN      TypeCode = 16
	CodeFloat4E2M1FN      TypeCode = 17
)

// DType is DLDataType: what one element is. The zero value is no valid type.
type DType struct {
	Code TypeCode
	// Bits of one lane; of both parts together for a complex number.
	Bits uint8
	// Lanes is 1 except for vector elements.
	Lanes uint16
}

// Every scalar type that the header defines, by its name in ml_dtypes.
var (
	Bool = DType{CodeBool, 8, 1}

	Int1  = DType{CodeInt, 1, 1}
	Int2  = DType{CodeInt, 2, 1}
	Int4  = DType{CodeInt, 4, 1}
	Int8  = DType{CodeInt, 8, 1}
	Int16 = DType{CodeInt, 16, 1}
	Int32 = DType{CodeInt, 32, 1}
	Int64 = DType{CodeInt, 64, 1}

	Uint1  = DType{CodeUInt, 1, 1}
	Uint2  = DType{CodeUInt, 2, 1}
	Uint4  = DType{CodeUInt, 4, 1}
	Uint8  = DType{CodeUInt, 8, 1}
	Uint16 = DType{CodeUInt, 16, 1}
	Uint32 = DType{CodeUInt, 32, 1}
	Uint64 = DType{CodeUInt, 64, 1}

	Float16  = DType{CodeFloat, 16, 1}
	Float32  = DType{CodeFloat, 32, 1}
	Float64  = DType{CodeFloat, 64, 1}
	Bfloat16 = DType{CodeBfloat, 16, 1}

	Complex32  = DType{CodeComplex, 32, 1}
	Complex64  = DType{CodeComplex, 64, 1}
	Complex128 = DType{CodeComplex, 128, 1}

	Float8E3M4        = DType{CodeFloat8E3M4, 8, 1}
	Float8E4M3        = DType{CodeFloat8E4M3, 8, 1}
	Float8E4M3B11FNUZ = DType{CodeFloat8E4M3B11FNUZ, 8, 1}
	Float8E4M3FN      = DType{CodeFloat8E4M3FN, 8, 1}
	Float8E4M3FNUZ    = DType{CodeFloat8E4M3FNUZ, 8, 1}
	Float8E5M2        = DType{CodeFloat8E5M2, 8, 1}
	Float8E5M2FNUZ    = DType{CodeFloat8E5M2FNUZ, 8, 1}
	Float8E8M0FNU     = DType{CodeFloat8E8M0FNU, 8, 1}

	Float6E2M3FN = DType{CodeFloat6E2M3FN, 6, 1}
	Float6E3M2FN = DType{CodeFloat6E3M2FN, 6, 1}
	Float4E2M1FN = DType{CodeFloat4E2M1FN, 4, 1}

	// Handle64 is an address of some process: it names nothing in another one.
	Handle64 = DType{CodeOpaqueHandle, 64, 1}
)

// acceptedBits says for each code which widths it can have. It is
// protocol.DTypeNames in a form that costs no map look-up when exporting.
var acceptedBits = func() (t [CodeFloat4E2M1FN + 1][129]bool) {
	for d := range protocol.DTypeNames {
		t[d.Code][d.Bits] = true
	}
	return t
}()

// Check gives a *DTypeError (ErrUnknownDType) unless the code is one of the
// header's, the width is one of those that the code can have (6 bits for fp6,
// 4 for fp4, 8 for bool and fp8, 16 for bfloat16, …) and Lanes is not 0.
func (d DType) Check() error {
	if int(d.Code) >= len(acceptedBits) || d.Bits > 128 || !acceptedBits[d.Code][d.Bits] || d.Lanes == 0 {
		return &DTypeError{DType: d}
	}
	return nil
}

// ItemBits is the size of one element, all lanes, in bits, when packed.
func (d DType) ItemBits() int { return int(d.Bits) * int(d.Lanes) }

// ItemSize is the size of one element in bytes, and false for one that is not
// a whole number of bytes.
func (d DType) ItemSize() (int, bool) {
	b := d.ItemBits()
	return b / 8, b%8 == 0
}

// Alignment is what the address of an element must be a multiple of, in bytes:
// the size of one scalar, 1 for sub-byte types, at most 8.
func (d DType) Alignment() int {
	b := int(d.Bits)
	if d.Code == CodeComplex {
		b /= 2
	}
	return max(b/8, 1)
}

// slotBits is the size that one element takes in memory. Padding of vectors of
// sub-byte elements is not defined by the header and therefore refused.
func (d DType) slotBits(flags uint64) (uint64, error) {
	if err := d.Check(); err != nil {
		return 0, err
	}
	if d.Bits < 8 && flags&FlagSubbyteTypePadded != 0 {
		if d.Lanes != 1 {
			return 0, errPaddedLanes(d)
		}
		return 8, nil
	}
	return uint64(d.ItemBits()), nil
}
