package npy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/npy"
)

// counting gives the elements 0, 1, …, n-1 of each type as bytes.
func counting(t *testing.T, dtype string, n int) []byte {
	t.Helper()
	var b []byte
	app := func(v any) {
		var err error
		b, err = binary.Append(b, binary.LittleEndian, v)
		require.NoError(t, err)
	}
	half := []uint16{0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500} // 0 to 5 in float16
	for i := range n {
		switch dtype {
		case "bool":
			app(i != 0)
		case "int8":
			app(int8(i))
		case "int16":
			app(int16(i))
		case "int32":
			app(int32(i))
		case "int64":
			app(int64(i))
		case "uint8":
			app(uint8(i))
		case "uint16":
			app(uint16(i))
		case "uint32":
			app(uint32(i))
		case "uint64":
			app(uint64(i))
		case "float16":
			app(half[i])
		case "float32":
			app(float32(i))
		case "float64":
			app(float64(i))
		case "complex64":
			app(complex(float32(i), 0))
		case "complex128":
			app(complex(float64(i), 0))
		default:
			t.Fatalf("no values for %s", dtype)
		}
	}
	return b
}

func TestWriteEqualsNumPySave(t *testing.T) {
	for _, dtype := range []string{
		"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
		"float16", "float32", "float64", "complex64", "complex128",
	} {
		var out bytes.Buffer
		require.NoError(t, npy.Write(&out, dtype, []int64{2, 3}, counting(t, dtype, 6)))
		assert.Equal(t, sample(t, "accept-"+dtype+".npy"), out.Bytes(), dtype)
	}
}

func TestWriteEqualsNumPySaveInEveryShape(t *testing.T) {
	for _, name := range []string{"scalar", "vector", "empty", "dims", "full-header"} {
		whole := sample(t, "accept-"+name+".npy")
		h, err := read(whole)
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, npy.Write(&out, h.DType, h.Shape, whole[h.DataOffset:]))
		assert.Equal(t, whole, out.Bytes(), name)
	}
}

func TestWriteStridedKeepsFortranOrder(t *testing.T) {
	whole := sample(t, "accept-fortran.npy")
	h, err := read(whole)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, npy.WriteStrided(&out, h.DType, h.Shape, h.Strides(), whole[h.DataOffset:]))
	assert.Equal(t, whole, out.Bytes())
}

func TestWriteStridedGathersElements(t *testing.T) {
	bytesUpTo := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i)
		}
		return b
	}
	for name, c := range map[string]struct {
		shape, strides []int64
		data           []byte
		want           []byte
	}{
		"every second column": {[]int64{2, 2}, []int64{4, 2}, bytesUpTo(8), []byte{0, 2, 4, 6}},
		"middle axis swapped": {[]int64{2, 2, 2}, []int64{1, 4, 2}, bytesUpTo(8), []byte{0, 2, 4, 6, 1, 3, 5, 7}},
		"broadcast":           {[]int64{3, 2}, []int64{0, 1}, bytesUpTo(2), []byte{0, 1, 0, 1, 0, 1}},
		"one column":          {[]int64{3, 1}, []int64{2, math.MaxInt64}, bytesUpTo(6), []byte{0, 2, 4}},
		"one row":             {[]int64{1, 3}, []int64{math.MaxInt64, 2}, bytesUpTo(5), []byte{0, 2, 4}},
		"spare bytes behind":  {[]int64{3}, []int64{1}, bytesUpTo(9), []byte{0, 1, 2}},
		"nothing":             {[]int64{0, 3}, []int64{math.MaxInt64, 7}, nil, []byte{}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, npy.WriteStrided(&out, "uint8", c.shape, c.strides, c.data))
			h, err := npy.ReadHeader(&out)
			require.NoError(t, err)
			assert.Equal(t, c.shape, h.Shape)
			assert.False(t, h.FortranOrder)
			assert.Equal(t, c.want, out.Bytes())
		})
	}
}

func TestWriteStridedGathersMoreThanOneChunk(t *testing.T) {
	const rows, cols = 300, 301
	data := make([]byte, rows*cols*8)
	for i := range rows * cols {
		binary.LittleEndian.PutUint64(data[i*8:], uint64(i))
	}
	// A matrix cut into blocks of seven columns: neither C nor Fortran order.
	var out bytes.Buffer
	require.NoError(t, npy.WriteStrided(&out, "uint64", []int64{cols / 7, rows, 7}, []int64{7, cols, 1}, data))
	h, err := npy.ReadHeader(&out)
	require.NoError(t, err)
	require.EqualValues(t, h.NBytes(), out.Len())
	for block := range cols / 7 {
		for row := range rows {
			for col := range 7 {
				require.EqualValues(t, row*cols+block*7+col, binary.LittleEndian.Uint64(out.Next(8)))
			}
		}
	}
}

func TestWriteRefusesTypesNumPyCannotName(t *testing.T) {
	for dtype, remedy := range map[string]string{
		"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float4_e2m1fn": "uint8", "int4": "uint8", "handle": "float32", "": "float32",
	} {
		var out bytes.Buffer
		err := npy.Write(&out, dtype, []int64{1}, []byte{0, 0})
		require.ErrorIs(t, err, npy.ErrDType, dtype)
		assert.ErrorContains(t, err, remedy)
		assert.ErrorIs(t, npy.WriteStrided(&out, dtype, []int64{1}, []int64{1}, []byte{0, 0}), npy.ErrDType)
		assert.Zero(t, out.Len())
	}
}

func TestWriteRefusesDataThatDoesNotFit(t *testing.T) {
	var out bytes.Buffer
	assert.ErrorIs(t, npy.Write(&out, "float32", []int64{2}, make([]byte, 7)), npy.ErrSize)
	assert.ErrorIs(t, npy.Write(&out, "float32", []int64{2}, make([]byte, 9)), npy.ErrSize)
	assert.ErrorIs(t, npy.Write(&out, "float32", []int64{-2}, nil), npy.ErrSize)
	assert.ErrorIs(t, npy.Write(&out, "float32", []int64{1 << 62, 1 << 62}, nil), npy.ErrSize)

	strided := func(shape, strides []int64, n int) error {
		return npy.WriteStrided(&out, "uint16", shape, strides, make([]byte, n))
	}
	assert.ErrorIs(t, strided([]int64{2, 2}, []int64{1}, 8), npy.ErrSize)
	assert.ErrorIs(t, strided([]int64{2, 2}, []int64{-1, 1}, 8), npy.ErrSize)
	assert.ErrorIs(t, strided([]int64{2, 2}, []int64{3, 1}, 9), npy.ErrSize)
	assert.ErrorIs(t, strided([]int64{2}, []int64{math.MaxInt64}, 8), npy.ErrSize)
	assert.ErrorIs(t, strided([]int64{3, 3}, []int64{math.MaxInt64 / 2, math.MaxInt64 / 2}, 8), npy.ErrSize)
	assert.ErrorIs(t, strided([]int64{1}, []int64{1}, 1), npy.ErrSize)
	assert.Zero(t, out.Len())
	assert.NoError(t, strided([]int64{2, 2}, []int64{3, 1}, 10))
}

// failing takes room bytes and then gives its error.
type failing struct {
	room int
	err  error
}

func (f *failing) Write(p []byte) (int, error) {
	if len(p) > f.room {
		return f.room, f.err
	}
	f.room -= len(p)
	return len(p), nil
}

func TestWritePassesOnErrorsOfTheWriter(t *testing.T) {
	full := errors.New("disk full")
	data := make([]byte, 40)
	for _, room := range []int{0, 127, 128, 167} {
		assert.ErrorIs(t, npy.Write(&failing{room, full}, "uint8", []int64{40}, data), full, "%d", room)
	}
	for _, room := range []int{0, 128, 147} {
		assert.ErrorIs(t, npy.WriteStrided(&failing{room, full}, "uint8", []int64{20}, []int64{2}, data), full, "%d", room)
	}
	assert.NoError(t, npy.Write(io.Discard, "uint8", []int64{40}, data))
}
