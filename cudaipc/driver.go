package cudaipc

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/baton-ipc/baton/protocol"
)

// Driver is the loaded driver with the GPUs that this process may see.
type Driver struct {
	api     *api
	devices []*Device
	version int
}

// Option configures Open.
type Option func(*options)

type options struct{ library string }

// WithLibrary names the driver's library; by default the loader finds it.
func WithLibrary(path string) Option { return func(o *options) { o.library = path } }

// Open loads the driver and lists the GPUs. No context is made on any of them
// before it is used. Errors: ErrUnsupported without a driver; what cuInit says
// otherwise, such as ErrNoDevice.
func Open(opts ...Option) (*Driver, error) {
	o := options{library: LibraryName}
	for _, f := range opts {
		f(&o)
	}
	a, err := load(o.library)
	if err != nil {
		return nil, err
	}
	if err := a.init.call(0); err != nil {
		return nil, err
	}
	d := &Driver{api: a}
	version, err := a.getInt(&a.driverVersion)
	if err != nil {
		return nil, err
	}
	d.version = int(version)
	n, err := a.getInt(&a.deviceCount)
	if err != nil {
		return nil, err
	}
	for i := range n {
		device, err := d.find(i)
		if err != nil {
			return nil, err
		}
		d.devices = append(d.devices, device)
	}
	return d, nil
}

func (d *Driver) find(index int32) (*Device, error) {
	number, err := d.api.getInt(&d.api.deviceGet, uintptr(index))
	if err != nil {
		return nil, err
	}
	uuid, err := d.api.getUUID(number)
	if err != nil {
		return nil, err
	}
	name, err := d.api.getName(number)
	if err != nil {
		return nil, err
	}
	device := &Device{api: d.api, Index: int(index), UUID: uuid, Name: name, number: number}
	for _, a := range []struct {
		attribute uintptr
		has       *bool
	}{
		{attributeVMM, &device.vmm}, {attributePosixFD, &device.posixFD},
		{attributeReadOnlyRegister, &device.readOnlyRegister}, {attribute64BitMemOps, &device.values},
	} {
		n, err := d.api.getInt(&d.api.deviceAttribute, a.attribute, uintptr(number))
		// A driver that does not know the attribute is too old for what it describes.
		if err != nil && !errors.Is(err, protocol.ErrInvalid) && !errors.Is(err, protocol.ErrUnsupported) {
			return nil, err
		}
		*a.has = err == nil && n != 0
	}
	return device, nil
}

// Version is the newest CUDA version that the driver supports: 12040 is 12.4.
func (d *Driver) Version() int { return d.version }

// Devices lists the GPUs as CUDA_VISIBLE_DEVICES shows them.
func (d *Driver) Devices() []*Device { return d.devices }

// Device finds the GPU that a user names: "cuda" (the first), "cuda:1" (as this process counts
// them), "cuda:GPU-…" or "cuda:MIG-…" (by UUID). Errors: ErrInvalid for what names no GPU,
// ErrNotFound for one that this process does not see.
func (d *Driver) Device(name string) (*Device, error) {
	rest, ok := strings.CutPrefix(name, "cuda")
	which, numbered := strings.CutPrefix(rest, ":")
	if instance, ok := strings.CutPrefix(which, instancePrefix); ok && numbered {
		which = uuidPrefix + instance
	}
	if numbered && strings.HasPrefix(which, uuidPrefix) {
		return d.ByUUID(which)
	}
	if rest == "" {
		which = "0"
	}
	i, err := strconv.ParseUint(which, 10, 31)
	if !ok || err != nil || rest != "" && !numbered {
		return nil, protocol.Errorf(protocol.CodeInvalid, "use cuda, cuda:0 or cuda:GPU-…", "%q names no GPU", name)
	}
	if int(i) < len(d.devices) {
		return d.devices[i], nil
	}
	return nil, protocol.Errorf(protocol.CodeNotFound, "check CUDA_VISIBLE_DEVICES", "there is no %s: this process sees %d GPUs", name, len(d.devices))
}

// ByUUID finds a GPU by what names it in all processes. ErrNotFound: this process does not see it.
func (d *Driver) ByUUID(uuid string) (*Device, error) {
	for _, device := range d.devices {
		if device.UUID.String() == uuid {
			return device, nil
		}
	}
	return nil, protocol.Errorf(protocol.CodeNotFound, "make it visible with CUDA_VISIBLE_DEVICES", "this process does not see the GPU %s", uuid)
}

// UUID names a GPU in all processes of a machine.
type UUID [16]byte

const (
	uuidPrefix = "GPU-"
	// What nvidia-smi puts before the UUID of a part of a GPU that is divided (MIG). The
	// driver gives the part's UUID in the place of the GPU's, and no prefix.
	instancePrefix = "MIG-"
)

// String gives the form of nvidia-smi: GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return fmt.Sprintf("%s%s-%s-%s-%s-%s", uuidPrefix, h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

// Device is one GPU. Its context is made at the first call that needs one.
type Device struct {
	Index int // as this process counts
	UUID  UUID
	Name  string

	api    *api
	number int32 // CUdevice

	vmm, posixFD, readOnlyRegister, values bool

	context atomic.Uintptr // 0: not yet retained
}

// Attributes of a device that decide what can be done (CU_DEVICE_ATTRIBUTE_…).
const (
	attributeVMM              = 102
	attributePosixFD          = 103
	attributeReadOnlyRegister = 113
	attribute64BitMemOps      = 122
)

// Slabs tells whether the device can share memory by descriptors.
func (d *Device) Slabs() bool { return d.vmm && d.posixFD }

// Values tells whether its streams can write and wait for 64-bit values.
func (d *Device) Values() bool { return d.values }

// ReadOnlyRegister tells whether it can reach host memory that may not be written.
func (d *Device) ReadOnlyRegister() bool { return d.readOnlyRegister }
