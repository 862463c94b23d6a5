package npy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/npy"
)

func sample(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return b
}

// file builds a .npy file of the given version around a header's text.
func file(major byte, text string) []byte {
	b := []byte{0x93, 'N', 'U', 'M', 'P', 'Y', major, 0}
	if major == 1 {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
	} else {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	}
	return append(b, text...)
}

func read(b []byte) (npy.Header, error) { return npy.ReadHeader(bytes.NewReader(b)) }

func TestReadHeaderOfNumPyFiles(t *testing.T) {
	for name, want := range map[string]npy.Header{
		"float32":     {DType: "float32", Shape: []int64{2, 3}, DataOffset: 128},
		"fortran":     {DType: "float32", Shape: []int64{2, 3}, FortranOrder: true, DataOffset: 128},
		"scalar":      {DType: "float32", Shape: []int64{}, DataOffset: 128},
		"vector":      {DType: "int64", Shape: []int64{5}, DataOffset: 128},
		"empty":       {DType: "float32", Shape: []int64{0, 3}, DataOffset: 128},
		"full-header": {DType: "int8", Shape: []int64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 200}, DataOffset: 192},
		"version-1":   {DType: "float32", Shape: []int64{2, 3}, DataOffset: 128},
		"version-2":   {DType: "float32", Shape: []int64{2, 3}, DataOffset: 128},
		"version-3":   {DType: "float32", Shape: []int64{2, 3}, DataOffset: 128},
	} {
		t.Run(name, func(t *testing.T) {
			raw := sample(t, "accept-"+name+".npy")
			// A reader that gives one byte at a time finds calls that trust short reads.
			r := iotest.OneByteReader(bytes.NewReader(raw))
			h, err := npy.ReadHeader(r)
			require.NoError(t, err)
			assert.Equal(t, want, h)
			require.Equal(t, int64(len(raw))-h.DataOffset, h.NBytes())

			data := make([]byte, h.NBytes())
			require.NoError(t, npy.ReadFull(r, data))
			assert.Equal(t, raw[h.DataOffset:], data)
		})
	}
}

func TestReadHeaderAcceptsWhatNumPyReads(t *testing.T) {
	for text, want := range map[string]string{
		`{'shape': (3, ), 'descr': '<f4', 'fortran_order': False}`:           "float32",
		`{"descr":"<i8","fortran_order":True,"shape":(3,4)}`:                 "int64",
		"{'descr': '|u1',\n\t'fortran_order': False, 'shape': (3L, 8L), }\n": "uint8",
		`  {'descr': 'f8', 'fortran_order': False, 'shape': ()}`:             "float64",
		`{'descr': '=c8', 'fortran_order': False, 'shape': (1,)}`:            "complex64",
		`{'descr': '>b1', 'fortran_order': False, 'shape': (1,)}`:            "bool",
		`{'descr': '<f2', 'fortran_order': False, 'shape': ( 0,1 , ) , }`:    "float16",
	} {
		h, err := read(file(1, text))
		require.NoError(t, err, text)
		assert.Equal(t, want, h.DType, text)
	}
}

func TestHeaderStrides(t *testing.T) {
	h := npy.Header{DType: "int8", Shape: []int64{2, 3, 4}}
	assert.Equal(t, []int64{12, 4, 1}, h.Strides())
	h.FortranOrder = true
	assert.Equal(t, []int64{1, 2, 6}, h.Strides())
	h.Shape = []int64{2, 0, 4}
	assert.Equal(t, []int64{1, 2, 2}, h.Strides())
	assert.Empty(t, npy.Header{DType: "int8"}.Strides())
}

func TestReadHeaderRefusesNumPyFilesItCannotCarry(t *testing.T) {
	for name, want := range map[string]struct {
		kind   error
		remedy string
	}{
		"big-endian":  {npy.ErrByteOrder, "newbyteorder('<')"},
		"objects":     {npy.ErrPickle, "allow_pickle=False"},
		"bfloat16":    {npy.ErrDType, "view('uint16')"},
		"float8-e4m3": {npy.ErrDType, "view('uint8')"},
		"float8-e5m2": {npy.ErrDType, "view('uint8')"},
		"longdouble":  {npy.ErrDType, "float64"},
		"text":        {npy.ErrDType, "frombuffer"},
		"bytes":       {npy.ErrDType, "frombuffer"},
		"datetime":    {npy.ErrDType, "view('int64')"},
		"structured":  {npy.ErrDType, "each field"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(sample(t, "refuse-"+name+".npy"))
			require.ErrorIs(t, err, want.kind)
			assert.ErrorContains(t, err, want.remedy)
		})
	}
}

func TestReadHeaderRefusesMalformedHeaders(t *testing.T) {
	deep := strings.Repeat("(", 40_000)
	for _, text := range []string{
		"", "   ", "{", "}", "{}", "()", "3", "'x'", "None", deep, "[" + deep, strings.Repeat("{1:", 10_000),
		`{'descr': '<f4', 'fortran_order': False, 'shape': (3,)`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': (3,), } x`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }` + "\x00",
		`{'descr': '<f4', 'fortran_order': False, 'shape': 3}`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': (3)}`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': [3]}`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': (3 4)}`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': (3.5,)}`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': ('3',)}`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': (-,)}`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': (,)}`,
		`{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}`,
		`{'descr': '<f4', 'fortran_order': false, 'shape': (3,)}`,
		`{'descr': '<f4', 'fortran_order': False}`,
		`{'descr': '<f4', 'shape': (3,)}`,
		`{'fortran_order': False, 'shape': (3,)}`,
		`{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}`,
		`{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (3,)}`,
		`{1: '<f4', 'fortran_order': False, 'shape': (3,)}`,
		`{'descr' '<f4', 'fortran_order': False, 'shape': (3,)}`,
		`{'descr': 4, 'fortran_order': False, 'shape': (3,)}`,
		`{'descr': '<f4, 'fortran_order': False, 'shape': (3,)}`,
		`{'descr': '<f4\`,
		"{'descr': '<f4\n', 'fortran_order': False, 'shape': (3,)}",
	} {
		_, err := read(file(2, text))
		if assert.ErrorIs(t, err, npy.ErrHeader, "%.60q", text) {
			var at int
			_, scanned := fmt.Sscanf(err.Error(), npy.ErrHeader.Error()+" at byte %d:", &at)
			require.NoError(t, scanned, err.Error())
			assert.True(t, 12 <= at && at <= 12+len(text)+1, "%.60q: %v", text, err)
		}
	}
}

func TestReadHeaderRefusesUnknownTypes(t *testing.T) {
	for _, descr := range []string{"", "<", "f", "<f", "<f-4", "<f+4", "<f3", "<f0", "<i16", "<z4", "float32", "<f99999999999999999999", "b2", "|b"} {
		_, err := read(file(1, fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (3,), }", descr)))
		assert.ErrorIs(t, err, npy.ErrDType, descr)
	}
}

func TestReadHeaderRefusesSizesBeyond64Bits(t *testing.T) {
	for _, shape := range []string{
		"(9223372036854775807,)",
		"(4294967296, 4294967296)",
		"(0, 4611686018427387904, 4611686018427387904)",
		"(99999999999999999999,)",
		"(-99999999999999999999,)",
		"(-1,)", "(3, -9223372036854775808)",
		"(" + strings.Repeat("1, ", npy.MaxDims+1) + ")",
	} {
		_, err := read(file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': "+shape+", }"))
		assert.ErrorIs(t, err, npy.ErrSize, shape)
	}
}

func TestReadHeaderRefusesHeaderLongerThanItReads(t *testing.T) {
	b := file(2, "")
	binary.LittleEndian.PutUint32(b[8:], 1<<32-1)
	_, err := read(b)
	require.ErrorIs(t, err, npy.ErrHeader)
	assert.ErrorContains(t, err, "4294967295 bytes")
}

func TestReadHeaderRefusesOtherFiles(t *testing.T) {
	for _, b := range []string{"", "\x93", "\x93NUMP", "PK\x03\x04 and so on", "\x94NUMPY\x01\x00", "{'descr': '<f4'}"} {
		_, err := read([]byte(b))
		assert.ErrorIs(t, err, npy.ErrNotNPY, "%q", b)
	}
	_, err := read([]byte("PK\x03\x04 and so on"))
	assert.ErrorContains(t, err, "npz")
}

func TestReadHeaderRefusesUnknownVersions(t *testing.T) {
	for _, v := range [][2]byte{{0, 0}, {1, 1}, {4, 0}, {255, 255}} {
		_, err := read([]byte{0x93, 'N', 'U', 'M', 'P', 'Y', v[0], v[1], 0, 0, 0, 0})
		require.ErrorIs(t, err, npy.ErrVersion)
		assert.ErrorContains(t, err, fmt.Sprintf("%d.%d:", v[0], v[1]))
	}
}

func TestReadOfFileCutShortAnywhere(t *testing.T) {
	for _, name := range []string{"accept-version-1.npy", "accept-version-2.npy"} {
		whole := sample(t, name)
		for n := 6; n < len(whole); n++ {
			r := bytes.NewReader(whole[:n])
			h, err := npy.ReadHeader(r)
			if err == nil {
				err = npy.ReadFull(r, make([]byte, h.NBytes()))
			}
			require.ErrorIs(t, err, npy.ErrTruncated, "%s, %d bytes", name, n)
			var got, want int
			_, err = fmt.Sscanf(err.Error(), npy.ErrTruncated.Error()+": %d of %d bytes", &got, &want)
			require.NoError(t, err)
			require.Less(t, got, want)
		}
	}
}

func TestReadPassesOnErrorsOfTheReader(t *testing.T) {
	broken := errors.New("disk on fire")
	whole := sample(t, "accept-version-2.npy")
	for n := range whole {
		r := io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken))
		h, err := npy.ReadHeader(r)
		if err == nil {
			err = npy.ReadFull(r, make([]byte, h.NBytes()))
		}
		require.ErrorIs(t, err, broken, "%d bytes", n)
		require.NotErrorIs(t, err, npy.ErrTruncated)
		require.NotErrorIs(t, err, npy.ErrNotNPY)
	}
}
