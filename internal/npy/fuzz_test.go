package npy_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/npy"
)

// FuzzReadHeader: any bytes give an error or a header that can be trusted, and
// what is written from that header reads back equal.
func FuzzReadHeader(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.npy"))
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, name := range files {
		b, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte("PK\x03\x04"))
	f.Add(file(3, "{'descr': '<f4', 'fortran_order': True, 'shape': (9223372036854775807, 2), }"))
	f.Add(file(2, "((((((((((((((((((((((((((((("))
	f.Add(file(1, `{"descr": [("\'", "<f4", (2,)), None, -1L], "fortran_order": {1: 2}, 'shape': (), }`))

	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		h, err := npy.ReadHeader(r)
		if err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.Equal(t, h.DataOffset, int64(len(b)-r.Len()), "reads up to the data and no further")
		n := h.NBytes()
		require.GreaterOrEqual(t, n, int64(0))
		require.Len(t, h.Strides(), len(h.Shape))
		for _, s := range h.Strides() {
			require.Positive(t, s)
		}
		if n > 1<<16 {
			return
		}
		data := make([]byte, n)
		if npy.ReadFull(r, data) != nil {
			return
		}
		var out bytes.Buffer
		require.NoError(t, npy.WriteStrided(&out, h.DType, h.Shape, h.Strides(), data))
		back, err := npy.ReadHeader(&out)
		require.NoError(t, err)
		require.Equal(t, h.DType, back.DType)
		require.Equal(t, h.Shape, back.Shape)
		require.Equal(t, data, append([]byte{}, out.Bytes()...))
	})
}

// FuzzWriteStrided: whatever shape and strides are passed, elements outside the
// data are never touched, and an accepted array has the size it claims.
func FuzzWriteStrided(f *testing.F) {
	f.Add(int64(2), int64(3), int64(3), int64(1), 6)
	f.Add(int64(2), int64(3), int64(1), int64(2), 6)
	f.Add(int64(2), int64(2), int64(1<<62), int64(1<<62), 8)
	f.Add(int64(1), int64(2), int64(1<<63-1), int64(2), 3)
	f.Add(int64(0), int64(-1), int64(0), int64(0), 0)
	f.Fuzz(func(t *testing.T, rows, cols, rowStride, colStride int64, size int) {
		if size < 0 || size > 1<<16 || rows > 1<<8 || cols > 1<<8 {
			return
		}
		var out bytes.Buffer
		shape := []int64{rows, cols}
		if npy.WriteStrided(&out, "uint16", shape, []int64{rowStride, colStride}, make([]byte, size)) != nil {
			require.Zero(t, out.Len())
			return
		}
		h, err := npy.ReadHeader(&out)
		require.NoError(t, err)
		require.Equal(t, shape, h.Shape)
		require.EqualValues(t, rows*cols*2, out.Len())
	})
}
