package cabi

import (
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/baton-ipc/baton/dlpack"
)

func init() { dlpack.CallDeleter = call }

// call runs `void fn(void *self)`. Sound: fn is the deleter that the producer
// stored beside self, and self is C memory, which does not move.
func call(fn uintptr, self unsafe.Pointer) {
	purego.SyscallN(fn, uintptr(self))
}
