package dlpack

import "unsafe"

// The deleters are C functions, `void f(T *self)`, written in assembly. They
//
//   - return at once when self or its context is NULL,
//   - return when ctx.live is 0, else set it to 0, so that a second call after
//     the first (TensorFlow makes one when it lacks the device) does nothing. A
//     plain load and store: two calls at the same moment are not caught, and
//     neither is one after the block was given out again.
//   - add ctx.delta to *ctx.word.
//     SYNC dlpack-drop: everything the holder did with the bytes is visible to
//     the storage's owner, whose free test reads the word before it gives the
//     bytes out again (acquire and release).
//   - push ctx on the pool's stack.
//     SYNC dlpack-stack: the block is the pool's from here on; the other end is
//     the swap in Pool.Reap.
//
// The stack is pushed to one by one and emptied as a whole, so a head that
// comes back between the load and the compare-and-swap is still the right one.

// deleterVersionedAddr gives the address of the deleter of a
// ManagedTensorVersioned. Taken in assembly, because a Go function value would
// be the address of a wrapper with Go's calling convention.
func deleterVersionedAddr() uintptr

// deleterLegacyAddr gives the address of the deleter of a ManagedTensor.
func deleterLegacyAddr() uintptr

// runDeleterVersioned calls the deleter from Go, in the C calling convention.
// Sound: the deleter uses no stack and only registers that Go assembly may use.
//
//go:noescape
func runDeleterVersioned(self unsafe.Pointer)

// runDeleterLegacy is the same for a ManagedTensor.
//
//go:noescape
func runDeleterLegacy(self unsafe.Pointer)

var (
	ownVersioned = deleterVersionedAddr()
	ownLegacy    = deleterLegacyAddr()
)
