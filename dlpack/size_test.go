package dlpack_test

import (
	"math"
	"math/big"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
)

type sizeCase struct {
	Name, DType, Error string
	Shape, Strides     []string
	Bytes, Span        string
	Contiguous         bool
}

var sizeErrors = map[string]error{
	"overflow": dlpack.ErrOverflow, "negative_dim": dlpack.ErrNegativeDim, "ndim": dlpack.ErrNDim,
	"negative_stride": dlpack.ErrNegativeStride, "stride_count": dlpack.ErrStrideCount,
	"unknown_dtype": dlpack.ErrUnknownDType,
}

func int64s(t *testing.T, s []string) []int64 {
	t.Helper()
	if s == nil {
		return nil
	}
	v := make([]int64, len(s))
	for i := range s {
		n, err := strconv.ParseInt(s[i], 10, 64)
		require.NoError(t, err)
		v[i] = n
	}
	return v
}

func TestSizesAreTheListedOnes(t *testing.T) {
	var f struct{ Cases []sizeCase }
	readJSON(t, "testdata/sizes.json", &f)
	require.NotEmpty(t, f.Cases)
	for _, c := range f.Cases {
		t.Run(c.Name, func(t *testing.T) {
			shape, strides := int64s(t, c.Shape), int64s(t, c.Strides)
			d, err := dlpack.ParseDType(c.DType)
			if err == nil {
				_, err = d.SpanBytes(shape, strides)
			}
			if c.Error != "" {
				require.Contains(t, sizeErrors, c.Error)
				require.ErrorIs(t, err, sizeErrors[c.Error])
				return
			}
			require.NoError(t, err)
			n, err := d.NumBytes(shape)
			require.NoError(t, err)
			assert.Equal(t, c.Bytes, strconv.FormatInt(n, 10))
			span, err := d.SpanBytes(shape, strides)
			require.NoError(t, err)
			assert.Equal(t, c.Span, strconv.FormatInt(span, 10))
			assert.Equal(t, c.Contiguous, dlpack.IsContiguous(shape, strides))

			compact, err := dlpack.CompactStrides(shape)
			require.NoError(t, err)
			assert.True(t, dlpack.IsContiguous(shape, compact))
			span, err = d.SpanBytes(shape, compact)
			require.NoError(t, err)
			assert.Equal(t, n, span)
		})
	}
}

func TestAxisErrorNamesAxisAndValue(t *testing.T) {
	_, err := dlpack.Float32.NumBytes([]int64{3, -5})
	var ae *dlpack.AxisError
	require.ErrorAs(t, err, &ae)
	assert.Equal(t, 1, ae.Axis)
	assert.Equal(t, int64(-5), ae.Value)
	assert.EqualError(t, err, "dlpack: negative extent: -5 at axis 1")
}

func TestNumElementsCounts(t *testing.T) {
	n, err := dlpack.NumElements([]int64{3, 4, 5})
	require.NoError(t, err)
	assert.Equal(t, int64(60), n)
	n, err = dlpack.NumElements(nil)
	require.NoError(t, err)
	assert.Equal(t, int64(1), n)
	n, err = dlpack.NumElements([]int64{3, 0})
	require.NoError(t, err)
	assert.Zero(t, n)
	_, err = dlpack.NumElements(make([]int64, 65))
	assert.ErrorIs(t, err, dlpack.ErrNDim)
	_, err = dlpack.CompactStrides(make([]int64, 65))
	assert.ErrorIs(t, err, dlpack.ErrNDim)
	_, err = dlpack.CompactStrides([]int64{-1})
	assert.ErrorIs(t, err, dlpack.ErrNegativeDim)
	_, err = dlpack.Uint8.NumBytes(make([]int64, 65))
	assert.ErrorIs(t, err, dlpack.ErrNDim)
	_, err = dlpack.DType{}.NumBytes(nil)
	assert.ErrorIs(t, err, dlpack.ErrUnknownDType)
}

func TestCompactStridesOfEmptyAxesCountOne(t *testing.T) {
	s, err := dlpack.CompactStrides([]int64{2, 0, 3})
	require.NoError(t, err)
	assert.Equal(t, []int64{3, 3, 1}, s)
}

func TestIsContiguousRefusesOtherLengths(t *testing.T) {
	assert.False(t, dlpack.IsContiguous([]int64{2, 3}, []int64{1}))
	assert.False(t, dlpack.IsContiguous([]int64{-2}, []int64{1}))
}

func TestPaddedSubByteElementsTakeAByte(t *testing.T) {
	n, err := dlpack.Float4E2M1FN.NumBytesPadded([]int64{5})
	require.NoError(t, err)
	assert.Equal(t, int64(5), n)
	n, err = dlpack.Float32.NumBytesPadded([]int64{5})
	require.NoError(t, err)
	assert.Equal(t, int64(20), n, "padding concerns sub-byte types alone")
	pairs := dlpack.Float4E2M1FN
	pairs.Lanes = 2
	_, err = pairs.NumBytesPadded([]int64{5})
	assert.ErrorIs(t, err, dlpack.ErrFlags)
}

func TestViewPastItsStorageIsRefused(t *testing.T) {
	f := dlpack.Float32
	require.NoError(t, f.CheckView([]int64{4, 4}, nil, 0, 64))
	require.NoError(t, f.CheckView([]int64{4}, []int64{4}, 12, 64))
	require.NoError(t, f.CheckView([]int64{0}, nil, 64, 64))

	err := f.CheckView([]int64{4, 4}, nil, 4, 64)
	var be *dlpack.BoundsError
	require.ErrorAs(t, err, &be)
	assert.Equal(t, dlpack.BoundsError{Offset: 4, Bytes: 64, Storage: 64}, *be)
	assert.ErrorIs(t, err, dlpack.ErrOutOfStorage)

	assert.ErrorIs(t, f.CheckView([]int64{4}, []int64{4}, 16, 64), dlpack.ErrOutOfStorage)
	assert.ErrorIs(t, f.CheckView([]int64{0}, nil, 65, 64), dlpack.ErrOutOfStorage)
	assert.ErrorIs(t, f.CheckView([]int64{1}, nil, math.MaxUint64-1, 64), dlpack.ErrOutOfStorage)
	assert.ErrorIs(t, f.CheckView([]int64{1}, nil, 2, 64), dlpack.ErrMisaligned)
	assert.NoError(t, dlpack.Float4E2M1FN.CheckView([]int64{3}, nil, 1, 3))
	assert.ErrorIs(t, f.CheckView([]int64{1}, []int64{-1}, 0, 64), dlpack.ErrNegativeStride)
}

// bigSpan computes what SpanBytes and NumBytes must give, without bounds.
func bigSpan(bits int64, shape, strides []int64) (bytes, span *big.Int, fits bool) {
	limit := big.NewInt(math.MaxInt64)
	product, last, empty := big.NewInt(1), new(big.Int), false
	fits = true
	for i, d := range shape {
		empty = empty || d == 0
		product.Mul(product, big.NewInt(max(d, 1)))
		last.Add(last, new(big.Int).Mul(big.NewInt(max(d-1, 0)), big.NewInt(strides[i])))
	}
	size := func(n *big.Int) *big.Int {
		b := new(big.Int).Mul(n, big.NewInt(bits))
		b.Add(b, big.NewInt(7)).Rsh(b, 3)
		fits = fits && n.Cmp(new(big.Int).Add(limit, big.NewInt(1))) <= 0 && b.Cmp(limit) <= 0
		return b
	}
	bytes, span = size(product), size(new(big.Int).Add(last, big.NewInt(1)))
	fits = fits && product.Cmp(limit) <= 0
	if empty {
		return new(big.Int), new(big.Int), fits
	}
	return bytes, span, fits
}

func FuzzSpanBytes(f *testing.F) {
	f.Add(uint8(2), uint8(32), uint16(1), int64(3), int64(4), int64(5), int64(20), int64(5), int64(1), uint64(0), uint64(240))
	f.Add(uint8(17), uint8(4), uint16(1), int64(3), int64(1), int64(5), int64(5), int64(5), int64(1), uint64(1), uint64(9))
	f.Add(uint8(0), uint8(1), uint16(65535), int64(1<<62), int64(2), int64(0), int64(0), int64(1), int64(9), uint64(1), uint64(1<<63))
	f.Add(uint8(5), uint8(128), uint16(2), int64(1<<31), int64(1<<31), int64(1), int64(1<<40), int64(1), int64(1<<62), uint64(7), uint64(math.MaxUint64))
	f.Add(uint8(9), uint8(8), uint16(1), int64(-1), int64(2), int64(3), int64(-1), int64(math.MinInt64), int64(1), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, code, bits uint8, lanes uint16, a, b, c, sa, sb, sc int64, offset, storage uint64) {
		d := dlpack.DType{Code: dlpack.TypeCode(code), Bits: bits, Lanes: lanes}
		shape, strides := []int64{a, b, c}, []int64{sa, sb, sc}
		span, err := d.SpanBytes(shape, strides)
		inside := d.CheckView(shape, strides, offset, storage)
		if err != nil {
			assert.Error(t, inside)
			return
		}
		require.GreaterOrEqual(t, min(a, b, c, sa, sb, sc), int64(0))
		bytes, want, fits := bigSpan(int64(d.ItemBits()), shape, strides)
		require.True(t, fits)
		require.Equal(t, want.String(), strconv.FormatInt(span, 10))
		n, err := d.NumBytes(shape)
		require.NoError(t, err)
		require.Equal(t, bytes.String(), strconv.FormatInt(n, 10))
		if inside == nil {
			end := new(big.Int).Add(new(big.Int).SetUint64(offset), want)
			require.LessOrEqual(t, end.Cmp(new(big.Int).SetUint64(storage)), 0)
		}
	})
}

// FuzzSpanBytesRefusals looks at the other direction: what fits is not refused.
func FuzzSpanBytesRefusals(f *testing.F) {
	f.Add(uint64(3), uint64(4), uint64(1), uint64(3), uint8(0))
	f.Add(uint64(1<<62), uint64(2), uint64(0), uint64(0), uint8(1))
	f.Add(uint64(math.MaxInt64), uint64(1), uint64(1), uint64(1), uint8(2))
	f.Add(uint64(2), uint64(0), uint64(math.MaxInt64), uint64(1), uint8(3))
	f.Fuzz(func(t *testing.T, a, b, sa, sb uint64, pick uint8) {
		types := []dlpack.DType{dlpack.Uint8, dlpack.Int1, dlpack.Float6E2M3FN, dlpack.Complex128, dlpack.Bfloat16}
		d := types[int(pick)%len(types)]
		shape := []int64{int64(a >> 1), int64(b >> 1)}
		strides := []int64{int64(sa >> 1), int64(sb >> 1)}
		_, err := d.SpanBytes(shape, strides)
		_, _, fits := bigSpan(int64(d.ItemBits()), shape, strides)
		require.Equal(t, fits, err == nil, "%v %v %v: %v", d, shape, strides, err)
		if err != nil {
			require.ErrorIs(t, err, dlpack.ErrOverflow)
		}
	})
}
