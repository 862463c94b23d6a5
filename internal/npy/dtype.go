package npy

import (
	"fmt"
	"math"
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
	remedy := "convert the tensor to one of " + names() + " first, or view its bytes as uint8 (bfloat16 as uint16) and view them back after loading"
	return dtype{}, unsupported(ErrDType, strconv.Quote(name), "a .npy file cannot name this type", remedy)
}

// unsupported is the error for a type that is not read, or not written.
func unsupported(kind error, what, reason, remedy string) error {
	return fmt.Errorf("%w: %s: %s; %s", kind, what, reason, remedy)
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
		return dtype{}, unsupported(kind, fmt.Sprintf("%.60q", descr), reason, remedy)
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

// bytes are those that an array takes. A dimension of zero makes it none. The error matches
// ErrSize: a negative dimension, more than MaxDims, or a size that 64 bits cannot hold;
// dimensions of zero do not excuse the others from that.
func (d dtype) bytes(shape []int64) (int64, error) {
	if len(shape) > MaxDims {
		return 0, wrongSize(d.name, shape[:MaxDims], "%d dimensions, at most %d are possible; reshape the array", len(shape), MaxDims)
	}
	n, empty := d.size, false
	for _, v := range shape {
		switch {
		case v < 0:
			return 0, wrongSize(d.name, shape, "a dimension is negative")
		case v == 0:
			// The others are still multiplied: strides are made from them.
			empty = true
		case n > math.MaxInt64/v:
			return 0, wrongSize(d.name, shape, "the size in bytes does not fit 64 bits")
		default:
			n *= v
		}
	}
	if empty {
		n = 0
	}
	return n, nil
}
