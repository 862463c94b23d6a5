package dlpack

import "fmt"

// DeviceType is DLDeviceType. It is an open set: unknown values are kept as
// they are.
type DeviceType int32

// The device types of the header. TPU, TPUHost and Ascend come after 1.3.
const (
	CPU         DeviceType = 1
	CUDA        DeviceType = 2
	CUDAHost    DeviceType = 3
	OpenCL      DeviceType = 4
	Vulkan      DeviceType = 7
	Metal       DeviceType = 8
	VPI         DeviceType = 9
	ROCM        DeviceType = 10
	ROCMHost    DeviceType = 11
	ExtDev      DeviceType = 12
	CUDAManaged DeviceType = 13
	OneAPI      DeviceType = 14
	WebGPU      DeviceType = 15
	Hexagon     DeviceType = 16
	MAIA        DeviceType = 17
	Trn         DeviceType = 18
	TPU         DeviceType = 19
	TPUHost     DeviceType = 20
	Ascend      DeviceType = 21
)

var deviceNames = map[DeviceType]string{
	CPU: "cpu", CUDA: "cuda", CUDAHost: "cuda_host", OpenCL: "opencl", Vulkan: "vulkan",
	Metal: "metal", VPI: "vpi", ROCM: "rocm", ROCMHost: "rocm_host", ExtDev: "ext_dev",
	CUDAManaged: "cuda_managed", OneAPI: "oneapi", WebGPU: "webgpu", Hexagon: "hexagon",
	MAIA: "maia", Trn: "trn", TPU: "tpu", TPUHost: "tpu_host", Ascend: "ascend",
}

// String gives the lower-case name, or "device(N)" for an unknown type.
func (t DeviceType) String() string {
	if s, ok := deviceNames[t]; ok {
		return s
	}
	return fmt.Sprintf("device(%d)", int32(t))
}

// HostReadable says whether the CPU can read and write the memory directly.
func (t DeviceType) HostReadable() bool {
	switch t {
	case CPU, CUDAHost, ROCMHost, CUDAManaged:
		return true
	}
	return false
}

// hasAddresses says whether Tensor.Data is an address, to which an offset can
// be added and which has an alignment. On the others it is an opaque handle.
func (t DeviceType) hasAddresses() bool {
	switch t {
	case CPU, CUDA, CUDAHost, ROCM, ROCMHost, CUDAManaged, OneAPI:
		return true
	}
	return false
}

// Device is DLDevice.
type Device struct {
	Type DeviceType
	ID   int32
}

// CPUDevice is the device of ordinary memory, shared memory included.
var CPUDevice = Device{Type: CPU}

// String gives "type:id".
func (d Device) String() string { return fmt.Sprintf("%s:%d", d.Type, d.ID) }
