package protocol

import "strconv"

// DTypeKey is DLPack's type code and the bits of one lane.
type DTypeKey struct{ Code, Bits uint8 }

// DTypeNames is the whole list of element types that a tensor may have, by the
// names of ml_dtypes (those of NumPy where it has the type). It stands here, and
// not in package dlpack, because the broker names types and knows no views.
var DTypeNames = map[DTypeKey]string{
	{6, 8}: "bool",
	{0, 1}: "int1", {0, 2}: "int2", {0, 4}: "int4", {0, 8}: "int8", {0, 16}: "int16", {0, 32}: "int32", {0, 64}: "int64",
	{1, 1}: "uint1", {1, 2}: "uint2", {1, 4}: "uint4",
	{1, 8}: "uint8", {1, 16}: "uint16", {1, 32}: "uint32", {1, 64}: "uint64",
	{2, 16}: "float16", {2, 32}: "float32", {2, 64}: "float64", {4, 16}: "bfloat16",
	{5, 32}: "complex32", {5, 64}: "complex64", {5, 128}: "complex128",
	{7, 8}: "float8_e3m4", {8, 8}: "float8_e4m3", {9, 8}: "float8_e4m3b11fnuz", {10, 8}: "float8_e4m3fn",
	{11, 8}: "float8_e4m3fnuz", {12, 8}: "float8_e5m2", {13, 8}: "float8_e5m2fnuz", {14, 8}: "float8_e8m0fnu",
	{15, 6}: "float6_e2m3fn", {16, 6}: "float6_e3m2fn", {17, 4}: "float4_e2m1fn",
	{3, 64}: "handle64",
}

// DTypeName returns a type's name, with "xN" for N lanes; false for a type that
// is not in the list.
func DTypeName(code, bits uint8, lanes uint16) (string, bool) {
	name, ok := DTypeNames[DTypeKey{code, bits}]
	if !ok || lanes == 0 {
		return "", false
	}
	if lanes > 1 {
		name += "x" + strconv.Itoa(int(lanes))
	}
	return name, true
}
