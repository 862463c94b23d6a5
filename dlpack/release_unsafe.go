package dlpack

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// CallDeleter calls the C function fn with self as its only argument. It is nil
// unless the program imports the package dlpack/cabi, which sets it during
// initialisation; it must not be changed afterwards.
var CallDeleter func(fn uintptr, self unsafe.Pointer)

// Release ends a tensor by its deleter, which frees m. NULL, or a NULL deleter,
// is fine: there is nothing to do. ErrNoCaller if the deleter is a C function
// and the program cannot call C; then m is untouched and still the caller's.
// Works for any major version. Must be called once.
func Release(m *ManagedTensorVersioned) error {
	if m == nil {
		return nil
	}
	// Sound: m is the producer's structure and ours to end.
	return runDeleter(m.Deleter, unsafe.Pointer(m))
}

// ReleaseLegacy is Release for the legacy structure. Its only error is ErrNoCaller.
func ReleaseLegacy(m *ManagedTensor) error {
	if m == nil {
		return nil
	}
	// Sound: as in Release.
	return runDeleter(m.Deleter, unsafe.Pointer(m))
}

// runDeleter calls fn on self, without C where fn is one of our own.
func runDeleter(fn uintptr, self unsafe.Pointer) error {
	switch fn {
	case 0:
	case ownVersioned:
		raceRelease()
		runDeleterVersioned(self)
	case ownLegacy:
		raceRelease()
		runDeleterLegacy(self)
	default:
		if CallDeleter == nil {
			return ErrNoCaller
		}
		CallDeleter(fn, self)
	}
	return nil
}

func callable(fn uintptr) error {
	if fn == 0 || fn == ownVersioned || fn == ownLegacy || CallDeleter != nil {
		return nil
	}
	return ErrNoCaller
}

// Imported is a tensor of other code that this program holds. Its Release must
// be called; it is safe for concurrent use.
type Imported struct {
	View
	self    unsafe.Pointer
	deleter uintptr
	done    atomic.Bool
}

// Consume takes a tensor over. On success the tensor is the Imported's. On an
// error it has been released, whatever was wrong with it, except with
// ErrNoCaller and when m is NULL or misaligned: then nothing was called.
// Errors: as Check, and ErrNoCaller before anything else is looked at.
func Consume(m *ManagedTensorVersioned) (*Imported, error) {
	// Sound: only the address is looked at.
	if err := checkSelf(uintptr(unsafe.Pointer(m))); err != nil {
		return nil, err
	}
	// Sound: the deleter keeps its place in every major version.
	deleter, self := m.Deleter, unsafe.Pointer(m)
	if err := callable(deleter); err != nil {
		return nil, err
	}
	v, err := Check(m)
	if errors.Is(err, ErrVersion) {
		return nil, err // Check has called the deleter
	}
	return takeOver(v, err, deleter, self)
}

// ConsumeLegacy is Consume for the legacy structure. Errors are those of CheckLegacy, and
// ErrNoCaller.
func ConsumeLegacy(m *ManagedTensor) (*Imported, error) {
	// Sound: only the address is looked at.
	if err := checkSelf(uintptr(unsafe.Pointer(m))); err != nil {
		return nil, err
	}
	deleter, self := m.Deleter, unsafe.Pointer(m)
	if err := callable(deleter); err != nil {
		return nil, err
	}
	v, err := CheckLegacy(m)
	return takeOver(v, err, deleter, self)
}

func takeOver(v View, err error, deleter uintptr, self unsafe.Pointer) (*Imported, error) {
	if err != nil {
		if rerr := runDeleter(deleter, self); rerr != nil {
			return nil, fmt.Errorf("%w (and the tensor could not be released: %w)", err, rerr)
		}
		return nil, err
	}
	return &Imported{View: v, self: self, deleter: deleter}, nil
}

// Release calls the producer's deleter on the first call and does nothing on
// later ones. The bytes must not be used any more; Shape and Strides may.
func (t *Imported) Release() error {
	if t.done.Swap(true) {
		return nil
	}
	return runDeleter(t.deleter, t.self)
}
