package protocol_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// fieldValues is a structure's content as the vectors have it.
type fieldValues map[string]any

// read takes the fields of a structure out of its bytes, which may end early:
// what is missing is zero.
func (s *structSpec) read(b []byte) fieldValues {
	if len(b) < s.Size {
		b = append(append([]byte(nil), b...), make([]byte, s.Size-len(b))...)
	}
	out := fieldValues{}
	for _, f := range s.Fields {
		out[f.Name] = f.read(b[f.Offset : f.Offset+f.Width])
	}
	return out
}

func (f *fieldSpec) read(b []byte) any {
	switch {
	case f.Type == "char":
		return strings.TrimRight(string(b), "\x00")
	case f.Type == "u8" && f.Count > 1:
		return hex.EncodeToString(b)
	}
	if s := structNamed(f.Type); s != nil {
		if f.Count == 1 {
			return map[string]any(s.read(b))
		}
		some := map[string]any{}
		for i := range f.Count {
			if x := b[i*s.Size : (i+1)*s.Size]; !zero(x) {
				some[strconv.Itoa(i)] = map[string]any(s.read(x))
			}
		}
		return some
	}
	w := widthOf(f.Type)
	if f.Count == 1 {
		return number(f.Type, b)
	}
	list := []any{}
	for i := range f.Count {
		list = append(list, number(f.Type, b[i*w:]))
	}
	return list
}

func number(typ string, b []byte) any {
	switch typ {
	case "u8":
		return json.Number(strconv.FormatUint(uint64(b[0]), 10))
	case "u16":
		return json.Number(strconv.FormatUint(uint64(binary.LittleEndian.Uint16(b)), 10))
	case "u32":
		return json.Number(strconv.FormatUint(uint64(binary.LittleEndian.Uint32(b)), 10))
	case "i32":
		return json.Number(strconv.FormatInt(int64(int32(binary.LittleEndian.Uint32(b))), 10))
	case "u64":
		return strconv.FormatUint(binary.LittleEndian.Uint64(b), 10)
	case "i64":
		return strconv.FormatInt(int64(binary.LittleEndian.Uint64(b)), 10)
	}
	panic("unknown type " + typ)
}

// write puts values into the bytes of a structure; a name that is no field of it
// is a mistake of the caller.
func (s *structSpec) write(b []byte, values fieldValues) {
	left := len(values)
	for _, f := range s.Fields {
		v, ok := values[f.Name]
		if !ok {
			continue
		}
		left--
		f.write(b[f.Offset:f.Offset+f.Width], v)
	}
	if left != 0 {
		panic(fmt.Sprintf("%s has no such field: %v", s.Name, values))
	}
}

func (f *fieldSpec) write(b []byte, v any) {
	switch v := v.(type) {
	case string:
		copy(b, v)
	case [16]byte:
		copy(b, v[:])
	case []uint64:
		for i, n := range v {
			binary.LittleEndian.PutUint64(b[8*i:], n)
		}
	case []uint32:
		for i, n := range v {
			binary.LittleEndian.PutUint32(b[4*i:], n)
		}
	case fieldValues:
		structNamed(f.Type).write(b, v)
	case map[int]fieldValues:
		s := structNamed(f.Type)
		for i, x := range v {
			s.write(b[i*s.Size:(i+1)*s.Size], x)
		}
	case uint64:
		putNumber(b, v)
	case int:
		putNumber(b, uint64(int64(v)))
	default:
		panic(fmt.Sprintf("%s: cannot write %T", f.Name, v))
	}
}

func putNumber(b []byte, n uint64) {
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
}

func zero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
