package dlpack_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
)

func TestDTypeItemSizeAndAlignment(t *testing.T) {
	lanes := func(d dlpack.DType, n uint16) dlpack.DType { d.Lanes = n; return d }
	for _, c := range []struct {
		d           dlpack.DType
		size, align int
		whole       bool
	}{
		{dlpack.Bool, 1, 1, true}, {dlpack.Int64, 8, 8, true}, {dlpack.Bfloat16, 2, 2, true},
		{dlpack.Complex32, 4, 2, true}, {dlpack.Complex64, 8, 4, true}, {dlpack.Complex128, 16, 8, true},
		{dlpack.Float8E8M0FNU, 1, 1, true}, {dlpack.Float4E2M1FN, 0, 1, false},
		{lanes(dlpack.Float4E2M1FN, 2), 1, 1, true}, {lanes(dlpack.Float6E3M2FN, 4), 3, 1, true},
		{lanes(dlpack.Float32, 4), 16, 4, true}, {dlpack.Handle64, 8, 8, true},
	} {
		n, whole := c.d.ItemSize()
		assert.Equal(t, c.whole, whole, "%v", c.d)
		assert.Equal(t, c.size, n, "%v", c.d)
		assert.Equal(t, c.align, c.d.Alignment(), "%v", c.d)
	}
}

func TestDTypeIsItsNameInJSON(t *testing.T) {
	b, err := json.Marshal(map[string]dlpack.DType{"d": dlpack.Float8E4M3FN})
	require.NoError(t, err)
	assert.JSONEq(t, `{"d":"float8_e4m3fn"}`, string(b))
	var m map[string]dlpack.DType
	require.NoError(t, json.Unmarshal([]byte(`{"d":"float32x4"}`), &m))
	assert.Equal(t, dlpack.DType{Code: dlpack.CodeFloat, Bits: 32, Lanes: 4}, m["d"])
	assert.ErrorIs(t, json.Unmarshal([]byte(`{"d":"float33"}`), &m), dlpack.ErrUnknownDType)
	_, err = json.Marshal(dlpack.DType{Code: 99, Bits: 8, Lanes: 1})
	assert.ErrorIs(t, err, dlpack.ErrUnknownDType)
}

func TestUnknownDTypeSaysWhatItWas(t *testing.T) {
	d := dlpack.DType{Code: dlpack.CodeFloat6E2M3FN, Bits: 8, Lanes: 1}
	assert.EqualError(t, d.Check(), "dlpack: unknown dtype: code 15, bits 8, lanes 1")
	assert.Equal(t, "dtype(code=15,bits=8,lanes=1)", d.String())
	_, err := dlpack.ParseDType("float128")
	assert.EqualError(t, err, `dlpack: unknown dtype: name "float128"`)
	_, err = dlpack.ParseDType("")
	assert.EqualError(t, err, `dlpack: unknown dtype: name ""`)
}

func FuzzParseDType(f *testing.F) {
	for _, s := range []string{"float32", "bfloat16", "float8_e4m3fn", "float4_e2m1fnx2", "complex64x3",
		"float32x65535", "float32x65536", "float32x+4", "x", "x2", "", "float32x\x00", "uint1x2x2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := dlpack.ParseDType(s)
		if err != nil {
			require.ErrorIs(t, err, dlpack.ErrUnknownDType)
			require.Zero(t, d)
			return
		}
		require.NoError(t, d.Check())
		require.Equal(t, s, d.String(), "one spelling for each type")
	})
}
