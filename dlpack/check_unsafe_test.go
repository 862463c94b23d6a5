package dlpack_test

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
)

func TestCheckCopiesWhatATensorSays(t *testing.T) {
	recordDeleters(t)
	a := newArena(t)
	m := foreign(a)
	m.Version.Minor = 99
	m.Flags = dlpack.FlagReadOnly | 1<<50
	m.Tensor.ByteOffset = 8
	v, err := dlpack.Check(m)
	require.NoError(t, err, "unknown minor versions and flags are fine")
	assert.Equal(t, dlpack.View{Version: dlpack.Version{Major: 1, Minor: 99}, Device: dlpack.CPUDevice,
		DType: dlpack.Float32, Shape: []int64{3, 4}, Strides: []int64{4, 1}, Flags: dlpack.FlagReadOnly | 1<<50,
		Data: m.Tensor.Data, ByteOffset: 8, Span: 48}, v)
	assert.True(t, v.ReadOnly())
	assert.True(t, v.Contiguous())
	b, err := v.Bytes()
	require.NoError(t, err)
	require.Len(t, b, 48)
	assert.Equal(t, m.Tensor.Data+8, addr(&b[0]))
	assert.Equal(t, float32(3), *(*float32)(unsafe.Pointer(&b[0])))

	*at[int64](m.Tensor.Shape) = 1000
	assert.Equal(t, []int64{3, 4}, v.Shape, "a copy")
}

func TestCheckFillsMissingStrides(t *testing.T) {
	m := foreign(newArena(t))
	m.Tensor.Strides = 0
	v, err := dlpack.Check(m)
	require.NoError(t, err)
	assert.Equal(t, []int64{4, 1}, v.Strides)
}

func TestCheckAcceptsScalarsAndEmptyTensors(t *testing.T) {
	a := newArena(t)
	m := foreign(a)
	m.Tensor.NDim, m.Tensor.Shape, m.Tensor.Strides = 0, 0, 0
	v, err := dlpack.Check(m)
	require.NoError(t, err)
	assert.Equal(t, int64(4), v.Span)
	assert.Empty(t, v.Shape)

	m = foreign(a)
	*at[int64](m.Tensor.Shape) = 0
	m.Tensor.Data = 0
	v, err = dlpack.Check(m)
	require.NoError(t, err)
	assert.Zero(t, v.Span)
	b, err := v.Bytes()
	require.NoError(t, err)
	assert.Nil(t, b)
}

func TestCheckOfPaddedSubBytes(t *testing.T) {
	m := foreign(newArena(t))
	m.Tensor.DType = dlpack.Float4E2M1FN
	v, err := dlpack.Check(m)
	require.NoError(t, err)
	assert.Equal(t, int64(6), v.Span)
	m.Flags = dlpack.FlagSubbyteTypePadded
	v, err = dlpack.Check(m)
	require.NoError(t, err)
	assert.Equal(t, int64(12), v.Span)
}

func TestDeviceMemoryIsNotRead(t *testing.T) {
	m := foreign(newArena(t))
	m.Tensor.Device = dlpack.Device{Type: dlpack.CUDA, ID: 1}
	v, err := dlpack.Check(m)
	require.NoError(t, err)
	_, err = v.Bytes()
	assert.ErrorIs(t, err, dlpack.ErrDevice)
	assert.ErrorContains(t, err, "cuda:1")

	m.Tensor.Device.Type, m.Tensor.ByteOffset = dlpack.OpenCL, 3
	_, err = dlpack.Check(m)
	assert.NoError(t, err, "an opaque handle has no alignment")
}

var badTensors = map[string]struct {
	change func(*dlpack.Tensor)
	want   error
}{
	"ndim -1":       {func(x *dlpack.Tensor) { x.NDim = -1 }, dlpack.ErrNDim},
	"ndim 65":       {func(x *dlpack.Tensor) { x.NDim = 65 }, dlpack.ErrNDim},
	"ndim minimum":  {func(x *dlpack.Tensor) { x.NDim = math.MinInt32 }, dlpack.ErrNDim},
	"null shape":    {func(x *dlpack.Tensor) { x.Shape = 0 }, dlpack.ErrNullShape},
	"odd shape":     {func(x *dlpack.Tensor) { x.Shape++ }, dlpack.ErrMisaligned},
	"odd strides":   {func(x *dlpack.Tensor) { x.Strides += 4 }, dlpack.ErrMisaligned},
	"last strides":  {func(x *dlpack.Tensor) { x.Strides = math.MaxUint64 - 7 }, dlpack.ErrMisaligned},
	"null data":     {func(x *dlpack.Tensor) { x.Data = 0 }, dlpack.ErrNullData},
	"odd data":      {func(x *dlpack.Tensor) { x.Data += 2 }, dlpack.ErrMisaligned},
	"odd offset":    {func(x *dlpack.Tensor) { x.ByteOffset = 1 }, dlpack.ErrMisaligned},
	"offset wraps":  {func(x *dlpack.Tensor) { x.ByteOffset = math.MaxUint64 - 3 }, dlpack.ErrOverflow},
	"data at end":   {func(x *dlpack.Tensor) { x.Data = math.MaxUint64 - 7 }, dlpack.ErrOverflow},
	"negative":      {func(x *dlpack.Tensor) { *at[int64](x.Shape) = -3 }, dlpack.ErrNegativeDim},
	"neg. stride":   {func(x *dlpack.Tensor) { *at[int64](x.Strides) = -4 }, dlpack.ErrNegativeStride},
	"shape":         {func(x *dlpack.Tensor) { *at[int64](x.Shape) = 1 << 62 }, dlpack.ErrOverflow},
	"stride":        {func(x *dlpack.Tensor) { *at[int64](x.Strides) = 1 << 62 }, dlpack.ErrOverflow},
	"code":          {func(x *dlpack.Tensor) { x.DType.Code = 18 }, dlpack.ErrUnknownDType},
	"bits":          {func(x *dlpack.Tensor) { x.DType.Bits = 31 }, dlpack.ErrUnknownDType},
	"lanes":         {func(x *dlpack.Tensor) { x.DType.Lanes = 0 }, dlpack.ErrUnknownDType},
	"fp6 of 8 bits": {func(x *dlpack.Tensor) { x.DType = dlpack.DType{Code: 15, Bits: 8, Lanes: 1} }, dlpack.ErrUnknownDType},
	"no device":     {func(x *dlpack.Tensor) { x.Device.Type = 0 }, dlpack.ErrDevice},
}

func TestBadTensorsAreRefusedAndReleasedByConsume(t *testing.T) {
	a := newArena(t)
	for name, c := range badTensors {
		t.Run(name, func(t *testing.T) {
			calls := recordDeleters(t)
			m := foreign(a)
			c.change(&m.Tensor)
			_, err := dlpack.Check(m)
			assert.ErrorIs(t, err, c.want)
			assert.Empty(t, *calls, "check leaves the tensor to the caller")
			_, err = dlpack.Consume(m)
			assert.ErrorIs(t, err, c.want)
			assert.Equal(t, []deleterCall{{foreignDeleter, addr(m)}}, *calls)

			old := put(a, dlpack.ManagedTensor{Tensor: m.Tensor, Deleter: foreignDeleter + 1})
			_, err = dlpack.CheckLegacy(old)
			assert.ErrorIs(t, err, c.want)
			_, err = dlpack.ConsumeLegacy(old)
			assert.ErrorIs(t, err, c.want)
			assert.Equal(t, deleterCall{foreignDeleter + 1, addr(old)}, (*calls)[1])
			assert.Len(t, *calls, 2)
		})
	}
}

func TestNullAndMisalignedStructuresAreNotTouched(t *testing.T) {
	calls := recordDeleters(t)
	_, err := dlpack.Check(nil)
	assert.ErrorIs(t, err, dlpack.ErrNullTensor)
	_, err = dlpack.CheckLegacy(nil)
	assert.ErrorIs(t, err, dlpack.ErrNullTensor)
	_, err = dlpack.Consume(nil)
	assert.ErrorIs(t, err, dlpack.ErrNullTensor)
	_, err = dlpack.ConsumeLegacy(nil)
	assert.ErrorIs(t, err, dlpack.ErrNullTensor)
	_, err = dlpack.Check(at[dlpack.ManagedTensorVersioned](0x1001))
	assert.ErrorIs(t, err, dlpack.ErrMisaligned)
	_, err = dlpack.Consume(at[dlpack.ManagedTensorVersioned](0x1001))
	assert.ErrorIs(t, err, dlpack.ErrMisaligned)
	_, err = dlpack.CheckLegacy(at[dlpack.ManagedTensor](0x1001))
	assert.ErrorIs(t, err, dlpack.ErrMisaligned)
	_, err = dlpack.ConsumeLegacy(at[dlpack.ManagedTensor](0x1001))
	assert.ErrorIs(t, err, dlpack.ErrMisaligned)
	assert.Empty(t, *calls)
}

func TestAnotherMajorVersionIsReleasedAndRefused(t *testing.T) {
	for _, major := range []uint32{0, 2, math.MaxUint32} {
		for name, use := range map[string]func(*dlpack.ManagedTensorVersioned) error{
			"check":   func(m *dlpack.ManagedTensorVersioned) error { _, err := dlpack.Check(m); return err },
			"consume": func(m *dlpack.ManagedTensorVersioned) error { _, err := dlpack.Consume(m); return err },
		} {
			t.Run(name, func(t *testing.T) {
				calls := recordDeleters(t)
				m := foreign(newArena(t))
				m.Version = dlpack.Version{Major: major, Minor: 7}
				err := use(m)
				var ve *dlpack.VersionError
				require.ErrorAs(t, err, &ve)
				assert.Equal(t, m.Version, ve.Got)
				assert.ErrorIs(t, err, dlpack.ErrVersion)
				assert.Equal(t, []deleterCall{{foreignDeleter, addr(m)}}, *calls)
			})
		}
	}
}

func TestNullDeleterIsFine(t *testing.T) {
	calls := recordDeleters(t)
	a := newArena(t)
	m := foreign(a)
	m.Deleter = 0
	x, err := dlpack.Consume(m)
	require.NoError(t, err)
	require.NoError(t, x.Release())
	m.Version.Major = 2
	_, err = dlpack.Consume(m)
	assert.ErrorIs(t, err, dlpack.ErrVersion)
	require.NoError(t, dlpack.Release(m))
	require.NoError(t, dlpack.ReleaseLegacy(put(a, dlpack.ManagedTensor{Tensor: m.Tensor})))
	assert.Empty(t, *calls)
}

func TestImportedIsReleasedOnce(t *testing.T) {
	calls := recordDeleters(t)
	m := foreign(newArena(t))
	x, err := dlpack.Consume(m)
	require.NoError(t, err)
	assert.Equal(t, []int64{3, 4}, x.Shape)
	assert.Empty(t, *calls)
	require.NoError(t, x.Release())
	require.NoError(t, x.Release())
	assert.Equal(t, []deleterCall{{foreignDeleter, addr(m)}}, *calls)
}

func TestWithoutAWayToCallCNothingIsTaken(t *testing.T) {
	require.Nil(t, dlpack.CallDeleter, "this test program must not import cabi")
	a := newArena(t)
	m := foreign(a)
	_, err := dlpack.Consume(m)
	assert.ErrorIs(t, err, dlpack.ErrNoCaller)
	assert.ErrorContains(t, err, "dlpack/cabi", "the remedy")
	assert.ErrorIs(t, dlpack.Release(m), dlpack.ErrNoCaller)
	_, err = dlpack.Check(m)
	assert.NoError(t, err, "looking needs no C")

	m.Version.Major = 2
	_, err = dlpack.Check(m)
	assert.ErrorIs(t, err, dlpack.ErrVersion)
	assert.ErrorIs(t, err, dlpack.ErrNoCaller)

	old := put(a, dlpack.ManagedTensor{Tensor: m.Tensor, Deleter: foreignDeleter})
	_, err = dlpack.ConsumeLegacy(old)
	assert.ErrorIs(t, err, dlpack.ErrNoCaller)
	assert.ErrorIs(t, dlpack.ReleaseLegacy(old), dlpack.ErrNoCaller)
}

func TestOwnTensorsRoundTripWithoutC(t *testing.T) {
	require.Nil(t, dlpack.CallDeleter, "this test program must not import cabi")
	a, p := newArena(t), newPool(t)
	word := put(a, uint64(1))
	s := spec(a, 3, 4)
	s.Word, s.Delta, s.Cookie, s.Flags = word, drop, 11, dlpack.FlagReadOnly
	m, err := p.Export(s)
	require.NoError(t, err)
	x, err := dlpack.Consume(m)
	require.NoError(t, err)
	assert.True(t, x.ReadOnly())
	assert.Equal(t, int64(48), x.Span)
	require.NoError(t, x.Release())
	assert.Equal(t, uint64(1<<20), *word)
	assert.Equal(t, []uint64{11}, reap(p))

	old, err := p.ExportLegacy(spec(a, 5))
	require.NoError(t, err)
	x, err = dlpack.ConsumeLegacy(old)
	require.NoError(t, err)
	require.NoError(t, x.Release())
	assert.Equal(t, 1, p.Reap(nil))
}

// FuzzCheck writes arbitrary numbers into everything but the addresses: the
// answer is an error, or a span that lies where the tensor says.
func FuzzCheck(f *testing.F) {
	f.Add(int32(2), uint32(1|32<<8|1<<16), int32(1), uint64(0), uint64(0), int64(3), int64(4), int64(4), int64(1), true)
	f.Add(int32(2), uint32(17|4<<8|1<<16), int32(1), uint64(4), uint64(3), int64(3), int64(5), int64(5), int64(1), false)
	f.Add(int32(1), uint32(2|32<<8|1<<16), int32(7), uint64(1), uint64(9), int64(0), int64(0), int64(0), int64(0), true)
	f.Add(int32(-1), uint32(0xffffffff), int32(-1), uint64(0), uint64(math.MaxUint64), int64(-1), int64(1<<62), int64(-1), int64(1<<62), false)
	f.Fuzz(func(t *testing.T, ndim int32, dtype uint32, device int32, flags, offset uint64, d0, d1, s0, s1 int64, strided bool) {
		a := newArena(t)
		if ndim > 2 && ndim <= dlpack.MaxDims {
			ndim %= 3 // the arrays have two numbers
		}
		x := dlpack.Tensor{
			Data: addr(put(a, [64]byte{})), Device: dlpack.Device{Type: dlpack.DeviceType(device)}, NDim: ndim,
			DType: dlpack.DType{Code: dlpack.TypeCode(dtype), Bits: uint8(dtype >> 8), Lanes: uint16(dtype >> 16)},
			Shape: addr(put(a, [2]int64{d0, d1})), ByteOffset: offset,
		}
		if strided {
			x.Strides = addr(put(a, [2]int64{s0, s1}))
		}
		v, err := dlpack.Check(put(a, dlpack.ManagedTensorVersioned{Version: dlpack.CurrentVersion, Flags: flags, Tensor: x}))
		if err != nil {
			return
		}
		require.Len(t, v.Shape, int(ndim))
		require.Len(t, v.Strides, int(ndim))
		require.GreaterOrEqual(t, v.Span, int64(0))
		require.NoError(t, v.DType.Check())
		if v.Span > 0 && v.Device.Type.HostReadable() {
			first := uint64(v.Data) + v.ByteOffset
			require.GreaterOrEqual(t, first, v.ByteOffset, "the address does not wrap")
			require.GreaterOrEqual(t, first+uint64(v.Span), first, "nor does the end")
			require.Zero(t, first%uint64(v.DType.Alignment()))
		}
	})
}
