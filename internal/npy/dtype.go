package npy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// MaxDims is the largest number of dimensions of an array: NumPy's own limit.
const MaxDims = 64

// dtype ties Baton's name of an element type to NumPy's kind letter and size.
type dtype struct {
	name string
	kind byte
	size int64
}

var dtypes = [...]dtype{
	{"bool", 'b', 1},
	{"int8", 'i', 1}, {"int16", 'i', 2}, {"int32", 'i', 4}, {"int64", 'i', 8},
	{"uint8", 'u', 1}, {"uint16", 'u', 2}, {"uint32", 'u', 4}, {"uint64", 'u', 8},
	{"float16", 'f', 2}, {"float32", 'f', 4}, {"float64", 'f', 8},
	{"complex64", 'c', 8}, {"complex128", 'c', 16},
}

// descr is the text NumPy stores for the type: one byte has no order.
func (d dtype) descr() string {
	order := byte('<')
	if d.size == 1 {
		order = '|'
	}
	return string([]byte{order, d.kind}) + strconv.FormatInt(d.size, 10)
}

// byName finds the type that Baton calls name.
func byName(name string) (dtype, error) {
	for _, d := range dtypes {
		if d.name == name {
			return d, nil
		}
	}
	e := &DTypeError{Type: strconv.Quote(name), Kind: ErrDType}
	switch {
	case name == "bfloat16":
		e.Type, e.Reason = name, "a .npy file cannot name this type"
		e.Remedy = "convert the tensor to float32 first, or view it as uint16 and view it back after loading"
	case strings.HasPrefix(name, "float8_") || strings.HasPrefix(name, "float6_") || strings.HasPrefix(name, "float4_") ||
		name == "int4" || name == "uint4" || name == "int2" || name == "uint2":
		e.Type, e.Reason = name, "a .npy file cannot name this type"
		e.Remedy = "convert the tensor to float32 or int8 first, or view its bytes as uint8 and view them back after loading"
	default:
		e.Reason = "not a type that a .npy file can hold"
		e.Remedy = "convert the tensor to one of " + names() + " first"
	}
	return dtype{}, e
}

func names() string {
	all := make([]string, len(dtypes))
	for i, d := range dtypes {
		all[i] = d.name
	}
	return strings.Join(all, ", ")
}

// byDescr finds the type that NumPy's array-protocol string means.
func byDescr(descr string) (dtype, error) {
	refuse := func(kind error, reason, remedy string) (dtype, error) {
		return dtype{}, &DTypeError{Type: fmt.Sprintf("%.60q", descr), Kind: kind, Reason: reason, Remedy: remedy}
	}
	unknown := func() (dtype, error) {
		return refuse(ErrDType, "not an element type of NumPy that Baton carries", "convert the array with a.astype(...) to one of "+names())
	}

	order, rest := byte('='), descr
	if rest != "" && strings.IndexByte("<>|=", rest[0]) >= 0 {
		order, rest = rest[0], rest[1:]
	}
	if rest == "" {
		return unknown()
	}
	kind := rest[0]
	switch kind {
	case 'O':
		return refuse(ErrPickle, "loading them could run code of the file's author", "save an array of numbers: numpy.save(file, a, allow_pickle=False)")
	case 'S', 'a', 'U', 'T':
		return refuse(ErrDType, "text", "encode it as bytes and save numpy.frombuffer(data, 'uint8')")
	case 'M', 'm':
		return refuse(ErrDType, "dates and time spans", "save a.view('int64') and keep the unit beside it")
	}
	size, err := strconv.ParseInt(rest[1:], 10, 64)
	if err != nil || size <= 0 || rest[1] < '0' || rest[1] > '9' {
		return unknown()
	}
	switch {
	case kind == 'V' || (kind == 'f' && size == 1):
		return refuse(ErrDType, "raw bytes: NumPy has no name for the type they had (bfloat16, float8 and int4 of ml_dtypes end like this)",
			fmt.Sprintf("save a.view('uint%d') and view the tensor as its own type after loading", 8*min(size, 8)))
	case (kind == 'f' || kind == 'c') && size > 8 && !(kind == 'c' && size == 16):
		return refuse(ErrDType, "wider than any type of DLPack", "convert the array with a.astype('float64') or a.astype('complex128')")
	}
	for _, d := range dtypes {
		if d.kind != kind || d.size != size {
			continue
		}
		if order == '>' && size > 1 {
			return refuse(ErrByteOrder, "Baton hands bytes over as they are and its machines are little-endian",
				"save a.astype(a.dtype.newbyteorder('<'))")
		}
		return d, nil
	}
	return unknown()
}

// ItemSize returns the bytes of one element of the type Baton calls dtype, or an
// error that matches ErrDType.
func ItemSize(dtype string) (int64, error) {
	d, err := byName(dtype)
	return d.size, err
}

// Size returns the bytes an array takes. A dimension of zero makes it zero. The
// error matches ErrDType for a type that .npy cannot hold, ErrSize for a negative
// dimension, more than MaxDims, or a size that 64 bits cannot hold; dimensions
// of zero do not excuse the others from that.
func Size(dtype string, shape []int64) (int64, error) {
	d, err := byName(dtype)
	if err != nil {
		return 0, err
	}
	return d.bytes(shape)
}

func (d dtype) bytes(shape []int64) (int64, error) {
	if len(shape) > MaxDims {
		return 0, &SizeError{DType: d.name, Shape: slices.Clone(shape[:MaxDims]), Problem: fmt.Sprintf("%d dimensions, at most %d are possible; reshape the array", len(shape), MaxDims)}
	}
	n, empty := d.size, false
	for _, v := range shape {
		switch {
		case v < 0:
			return 0, &SizeError{DType: d.name, Shape: slices.Clone(shape), Problem: "a dimension is negative"}
		case v == 0:
			// The others are still multiplied: strides are made from them.
			empty = true
		case n > math.MaxInt64/v:
			return 0, &SizeError{DType: d.name, Shape: slices.Clone(shape), Problem: "the size in bytes does not fit 64 bits"}
		default:
			n *= v
		}
	}
	if empty {
		return 0, nil
	}
	return n, nil
}
