package dlpack

import (
	"fmt"
	"unsafe"
)

// ExchangeAPIHeader is DLPackExchangeAPIHeader, the part of a table that keeps
// its place in every version.
type ExchangeAPIHeader struct {
	Version Version
	// PrevAPI is the address of the header of a table of an older version, or
	// NULL.
	PrevAPI uintptr
}

// ExchangeAPI is DLPackExchangeAPI: the C functions by which a Python framework
// gives and takes tensors without Python calls. A table is static: no caller frees
// it. Every function returns 0, or -1 on failure, and none synchronises a
// stream. A producer may leave entries NULL.
type ExchangeAPI struct {
	Header ExchangeAPIHeader
	// ManagedTensorAllocator makes a tensor with the dtype, shape and device of
	// a prototype. Needs no interpreter.
	//	int (*)(DLTensor *prototype, DLManagedTensorVersioned **out, void *error_ctx,
	//	        void (*SetError)(void *error_ctx, const char *kind, const char *message))
	ManagedTensorAllocator uintptr
	// ManagedTensorFromPyObjectNoSync exports an object; the result is owned by
	// the caller. On failure a Python exception is set.
	//	int (*)(void *py_object, DLManagedTensorVersioned **out)
	ManagedTensorFromPyObjectNoSync uintptr
	// ManagedTensorToPyObjectNoSync makes an object and takes the tensor over.
	//	int (*)(DLManagedTensorVersioned *tensor, void **out_py_object)
	ManagedTensorToPyObjectNoSync uintptr
	// DLTensorFromPyObjectNoSync fills a tensor that is borrowed until control
	// returns to the producer.
	//	int (*)(void *py_object, DLTensor *out)
	DLTensorFromPyObjectNoSync uintptr
	// CurrentWorkStream gives the stream that the framework works on; NULL on
	// the CPU.
	//	int (*)(DLDeviceType device_type, int32_t device_id, void **out_stream)
	CurrentWorkStream uintptr
}

// ExchangeEntry names a function of the table by its C field name.
type ExchangeEntry string

// The entries, in the order of the table.
const (
	EntryAllocator            ExchangeEntry = "managed_tensor_allocator"
	EntryFromPyObject         ExchangeEntry = "managed_tensor_from_py_object_no_sync"
	EntryToPyObject           ExchangeEntry = "managed_tensor_to_py_object_no_sync"
	EntryDLTensorFromPyObject ExchangeEntry = "dltensor_from_py_object_no_sync"
	EntryCurrentWorkStream    ExchangeEntry = "current_work_stream"
)

// ExchangeEntries are all entries of the table.
var ExchangeEntries = []ExchangeEntry{EntryAllocator, EntryFromPyObject, EntryToPyObject,
	EntryDLTensorFromPyObject, EntryCurrentWorkStream}

// maxExchangeChain bounds the walk. Each table is of a lower version than the
// one before, so a chain that keeps to that is far shorter.
const maxExchangeChain = 64

// SelectExchangeAPI walks the prev_api chain from the newest table, whose
// address is in the capsule AttrExchangeAPI (or in the integer
// AttrExchangeAPI12), to the first one of our major version. Of tables of other
// major versions only the header is read. The table is static and must not be
// freed. Errors: ErrNullTensor for a NULL first table; ErrMisaligned;
// *VersionError (ErrVersion) when no table is of our major version;
// ErrExchangeChain when a table is not older than the one before.
func SelectExchangeAPI(newest unsafe.Pointer) (*ExchangeAPI, error) {
	addr := uintptr(newest)
	var before Version
	for i := 0; addr != 0; i++ {
		if addr%8 != 0 {
			return nil, fmt.Errorf("%w: exchange table at %#x", ErrMisaligned, addr)
		}
		// Sound as far as the producer told the truth: the address is not NULL,
		// aligned, and of a static table in C memory.
		h := *(*ExchangeAPIHeader)(addrPointer(addr))
		if i > 0 && !h.Version.Less(before) || i == maxExchangeChain {
			return nil, fmt.Errorf("%w: %s after %s at position %d", ErrExchangeChain, h.Version, before, i)
		}
		if h.Version.Major == VersionMajor {
			return (*ExchangeAPI)(addrPointer(addr)), nil
		}
		before, addr = h.Version, h.PrevAPI
	}
	if newest == nil {
		return nil, fmt.Errorf("%w: exchange table", ErrNullTensor)
	}
	return nil, &VersionError{Got: before}
}

// Entry gives the address of one function. ErrExchangeEntry if it is NULL or
// not an entry of the table.
func (t *ExchangeAPI) Entry(e ExchangeEntry) (uintptr, error) {
	var fn uintptr
	switch e {
	case EntryAllocator:
		fn = t.ManagedTensorAllocator
	case EntryFromPyObject:
		fn = t.ManagedTensorFromPyObjectNoSync
	case EntryToPyObject:
		fn = t.ManagedTensorToPyObjectNoSync
	case EntryDLTensorFromPyObject:
		fn = t.DLTensorFromPyObjectNoSync
	case EntryCurrentWorkStream:
		fn = t.CurrentWorkStream
	}
	if fn == 0 {
		return 0, fmt.Errorf("%w: %.64q is NULL or unknown in version %s", ErrExchangeEntry, string(e), t.Header.Version)
	}
	return fn, nil
}

// Missing lists the entries that are NULL, nil if there are none.
func (t *ExchangeAPI) Missing() []ExchangeEntry {
	var missing []ExchangeEntry
	for _, e := range ExchangeEntries {
		if _, err := t.Entry(e); err != nil {
			missing = append(missing, e)
		}
	}
	return missing
}
