package dlpack_test

import (
	"encoding/json"
	"os"
	"reflect"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/dlpack"
)

type layoutFile struct {
	Structs map[string]struct {
		Size, Align uintptr
		Fields      map[string]struct{ Offset, Width uintptr }
	}
	Version struct{ Major, Minor uint32 }
	Limits  struct {
		MaxDims int `json:"max_dims"`
	}
	Flags       map[string]string
	DeviceTypes map[string]dlpack.DeviceType `json:"device_types"`
	TypeCodes   map[string]dlpack.TypeCode   `json:"type_codes"`
	DTypes      map[string]struct {
		Code dlpack.TypeCode
		Bits uint8
	} `json:"dtypes"`
}

func readJSON(t *testing.T, file string, into any) {
	t.Helper()
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, into))
}

// goNames gives the Go type of each C structure and the Go field of each C field.
var goNames = map[string]struct {
	typ    reflect.Type
	fields map[string]string
}{
	"DLPackVersion": {reflect.TypeFor[dlpack.Version](), map[string]string{"major": "Major", "minor": "Minor"}},
	"DLDevice":      {reflect.TypeFor[dlpack.Device](), map[string]string{"device_type": "Type", "device_id": "ID"}},
	"DLDataType":    {reflect.TypeFor[dlpack.DType](), map[string]string{"code": "Code", "bits": "Bits", "lanes": "Lanes"}},
	"DLTensor": {reflect.TypeFor[dlpack.Tensor](), map[string]string{"data": "Data", "device": "Device", "ndim": "NDim",
		"dtype": "DType", "shape": "Shape", "strides": "Strides", "byte_offset": "ByteOffset"}},
	"DLManagedTensor": {reflect.TypeFor[dlpack.ManagedTensor](), map[string]string{"dl_tensor": "Tensor",
		"manager_ctx": "ManagerCtx", "deleter": "Deleter"}},
	"DLManagedTensorVersioned": {reflect.TypeFor[dlpack.ManagedTensorVersioned](), map[string]string{"version": "Version",
		"manager_ctx": "ManagerCtx", "deleter": "Deleter", "flags": "Flags", "dl_tensor": "Tensor"}},
	"DLPackExchangeAPIHeader": {reflect.TypeFor[dlpack.ExchangeAPIHeader](), map[string]string{"version": "Version",
		"prev_api": "PrevAPI"}},
	"DLPackExchangeAPI": {reflect.TypeFor[dlpack.ExchangeAPI](), map[string]string{"header": "Header",
		"managed_tensor_allocator":              "ManagedTensorAllocator",
		"managed_tensor_from_py_object_no_sync": "ManagedTensorFromPyObjectNoSync",
		"managed_tensor_to_py_object_no_sync":   "ManagedTensorToPyObjectNoSync",
		"dltensor_from_py_object_no_sync":       "DLTensorFromPyObjectNoSync",
		"current_work_stream":                   "CurrentWorkStream"}},
}

func TestStructuresHaveTheListedLayout(t *testing.T) {
	var f layoutFile
	readJSON(t, "testdata/layout.json", &f)
	require.Len(t, f.Structs, len(goNames))
	for cname, want := range f.Structs {
		g, ok := goNames[cname]
		require.True(t, ok, "unknown structure %s", cname)
		assert.Equal(t, want.Size, g.typ.Size(), "%s size", cname)
		assert.EqualValues(t, want.Align, g.typ.Align(), "%s alignment", cname)
		require.Equal(t, g.typ.NumField(), len(want.Fields), "%s fields", cname)
		for cfield, w := range want.Fields {
			fld, ok := g.typ.FieldByName(g.fields[cfield])
			require.True(t, ok, "unknown field %s.%s", cname, cfield)
			assert.Equal(t, w.Offset, fld.Offset, "%s.%s offset", cname, cfield)
			assert.Equal(t, w.Width, fld.Type.Size(), "%s.%s width", cname, cfield)
		}
	}
}

func TestConstantsHaveTheListedValues(t *testing.T) {
	var f layoutFile
	readJSON(t, "testdata/layout.json", &f)
	assert.EqualValues(t, dlpack.VersionMajor, f.Version.Major)
	assert.EqualValues(t, dlpack.VersionMinor, f.Version.Minor)
	assert.Equal(t, dlpack.Version{Major: 1, Minor: 3}, dlpack.CurrentVersion)
	assert.Equal(t, dlpack.MaxDims, f.Limits.MaxDims)

	flags := map[string]string{
		"DLPACK_FLAG_BITMASK_READ_ONLY":              strconv.FormatUint(dlpack.FlagReadOnly, 10),
		"DLPACK_FLAG_BITMASK_IS_COPIED":              strconv.FormatUint(dlpack.FlagIsCopied, 10),
		"DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED": strconv.FormatUint(dlpack.FlagSubbyteTypePadded, 10),
	}
	assert.Equal(t, flags, f.Flags)

	assert.Equal(t, map[string]dlpack.DeviceType{
		"kDLCPU": dlpack.CPU, "kDLCUDA": dlpack.CUDA, "kDLCUDAHost": dlpack.CUDAHost, "kDLOpenCL": dlpack.OpenCL,
		"kDLVulkan": dlpack.Vulkan, "kDLMetal": dlpack.Metal, "kDLVPI": dlpack.VPI, "kDLROCM": dlpack.ROCM,
		"kDLROCMHost": dlpack.ROCMHost, "kDLExtDev": dlpack.ExtDev, "kDLCUDAManaged": dlpack.CUDAManaged,
		"kDLOneAPI": dlpack.OneAPI, "kDLWebGPU": dlpack.WebGPU, "kDLHexagon": dlpack.Hexagon,
		"kDLMAIA": dlpack.MAIA, "kDLTrn": dlpack.Trn,
	}, f.DeviceTypes)

	assert.Equal(t, map[string]dlpack.TypeCode{
		"kDLInt": dlpack.CodeInt, "kDLUInt": dlpack.CodeUInt, "kDLFloat": dlpack.CodeFloat,
		"kDLOpaqueHandle": dlpack.CodeOpaqueHandle, "kDLBfloat": dlpack.CodeBfloat,
		"kDLComplex": dlpack.CodeComplex, "kDLBool": dlpack.CodeBool,
		"kDLFloat8_e3m4": dlpack.CodeFloat8E3M4, "kDLFloat8_e4m3": dlpack.CodeFloat8E4M3,
		"kDLFloat8_e4m3b11fnuz": dlpack.CodeFloat8E4M3B11FNUZ, "kDLFloat8_e4m3fn": dlpack.CodeFloat8E4M3FN,
		"kDLFloat8_e4m3fnuz": dlpack.CodeFloat8E4M3FNUZ, "kDLFloat8_e5m2": dlpack.CodeFloat8E5M2,
		"kDLFloat8_e5m2fnuz": dlpack.CodeFloat8E5M2FNUZ, "kDLFloat8_e8m0fnu": dlpack.CodeFloat8E8M0FNU,
		"kDLFloat6_e2m3fn": dlpack.CodeFloat6E2M3FN, "kDLFloat6_e3m2fn": dlpack.CodeFloat6E3M2FN,
		"kDLFloat4_e2m1fn": dlpack.CodeFloat4E2M1FN,
	}, f.TypeCodes)
}

func TestDTypesAreTheListedOnes(t *testing.T) {
	var f layoutFile
	readJSON(t, "testdata/layout.json", &f)
	byType := map[dlpack.DType]string{}
	for name, w := range f.DTypes {
		d, err := dlpack.ParseDType(name)
		require.NoError(t, err)
		assert.Equal(t, dlpack.DType{Code: w.Code, Bits: w.Bits, Lanes: 1}, d, name)
		assert.Equal(t, name, d.String())
		byType[d] = name
	}
	// Of all codes and widths exactly the listed ones are accepted.
	for code := range 256 {
		for bits := range 256 {
			d := dlpack.DType{Code: dlpack.TypeCode(code), Bits: uint8(bits), Lanes: 1}
			err := d.Check()
			if byType[d] != "" {
				assert.NoError(t, err, "%v", d)
				continue
			}
			var de *dlpack.DTypeError
			require.ErrorAs(t, err, &de, "%v", d)
			require.ErrorIs(t, err, dlpack.ErrUnknownDType)
			require.Equal(t, d, de.DType)
		}
	}
	assert.ErrorIs(t, dlpack.DType{Code: dlpack.CodeFloat, Bits: 32}.Check(), dlpack.ErrUnknownDType, "no lanes")
	assert.ErrorIs(t, dlpack.DType{}.Check(), dlpack.ErrUnknownDType, "zero value")
}

func TestVersionsAreOrdered(t *testing.T) {
	v := func(a, b uint32) dlpack.Version { return dlpack.Version{Major: a, Minor: b} }
	assert.True(t, v(1, 2).Less(v(1, 3)))
	assert.True(t, v(1, 9).Less(v(2, 0)))
	assert.False(t, v(1, 3).Less(v(1, 3)))
	assert.False(t, v(2, 0).Less(v(1, 9)))
	assert.Equal(t, "1.3", dlpack.CurrentVersion.String())
}

func TestDeviceNames(t *testing.T) {
	assert.Equal(t, "cpu:0", dlpack.CPUDevice.String())
	assert.Equal(t, "cuda:3", dlpack.Device{Type: dlpack.CUDA, ID: 3}.String())
	assert.Equal(t, "device(-7)", dlpack.DeviceType(-7).String())
	assert.True(t, dlpack.CUDAHost.HostReadable())
	assert.False(t, dlpack.CUDA.HostReadable())
}
