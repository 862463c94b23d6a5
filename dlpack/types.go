package dlpack

import "fmt"

// Version is DLPackVersion.
type Version struct {
	Major uint32
	Minor uint32
}

// The version that this package writes and understands. A minor version only
// adds enumeration values, so every 1.x is read.
const (
	VersionMajor = 1
	VersionMinor = 3
)

// CurrentVersion is stamped into every exported tensor.
var CurrentVersion = Version{Major: VersionMajor, Minor: VersionMinor}

// String gives "major.minor".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Less orders versions by major, then minor number.
func (v Version) Less(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// Flag bits of ManagedTensorVersioned.Flags (DLPACK_FLAG_BITMASK_*). Unknown
// bits are kept when reading and refused when exporting.
const (
	// FlagReadOnly: the consumer must not write.
	FlagReadOnly uint64 = 1 << 0
	// FlagIsCopied: the producer made a copy, so no other owner sees writes.
	FlagIsCopied uint64 = 1 << 1
	// FlagSubbyteTypePadded: each element of a sub-byte type takes a whole
	// byte. Without it such elements are packed, first element in the low bits.
	FlagSubbyteTypePadded uint64 = 1 << 2
)

const knownFlags = FlagReadOnly | FlagIsCopied | FlagSubbyteTypePadded

// MaxDims is the largest number of dimensions that is accepted, in both
// directions. NumPy and PyTorch have the same limit.
const MaxDims = 64

// Tensor is DLTensor: a view of memory with another owner.
type Tensor struct {
	// Data is the address of the memory, or an opaque handle on devices that
	// have no addresses. NULL when there are no elements.
	Data   uintptr
	Device Device
	// NDim is the number of dimensions; 0 is a scalar.
	NDim  int32
	DType DType
	// Shape is the address of NDim int64 extents, in elements.
	Shape uintptr
	// Strides is the address of NDim int64 strides, in elements. NULL means
	// compact and row-major (producers before 1.2).
	Strides uintptr
	// ByteOffset is added to Data to find the first element.
	ByteOffset uint64
}

// ManagedTensor is DLManagedTensor, the legacy structure without version and
// flags: it cannot say that memory is read-only.
type ManagedTensor struct {
	Tensor     Tensor
	ManagerCtx uintptr
	// Deleter is a C function `void (*)(DLManagedTensor *self)` or NULL.
	Deleter uintptr
}

// ManagedTensorVersioned is DLManagedTensorVersioned. Version, ManagerCtx and
// Deleter keep their places in every future major version; nothing else does.
type ManagedTensorVersioned struct {
	Version    Version
	ManagerCtx uintptr
	// Deleter is a C function `void (*)(DLManagedTensorVersioned *self)` or NULL.
	Deleter uintptr
	// Flags holds the Flag bits.
	Flags  uint64
	Tensor Tensor
}

// Names of the Python capsules and attributes that carry these structures.
const (
	CapsuleLegacy        = "dltensor"
	CapsuleLegacyUsed    = "used_dltensor"
	CapsuleVersioned     = "dltensor_versioned"
	CapsuleVersionedUsed = "used_dltensor_versioned"
	CapsuleExchangeAPI   = "dlpack_exchange_api"
	// AttrExchangeAPI is the type attribute that holds a capsule (1.3);
	// AttrExchangeAPI12 held a Python int (1.2).
	AttrExchangeAPI   = "__dlpack_c_exchange_api__"
	AttrExchangeAPI12 = "__c_dlpack_exchange_api__"
)
