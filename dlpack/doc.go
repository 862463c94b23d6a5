// Package dlpack holds the structures of DLPack 1.3 and what a Go program does
// with them: build one that C code can release, check one that C code made,
// consume it, release it.
//
// # Layout
//
// Version, Device, DType, Tensor, ManagedTensor (legacy),
// ManagedTensorVersioned, ExchangeAPIHeader and ExchangeAPI have the layout of
// the C header on 64-bit little-endian machines. testdata/layout.json lists
// sizes, offsets, constants and dtype names; testdata/sizes.json lists sizes
// and refusals of shapes. Every language checks itself against both files.
// Addresses are uintptr fields: they belong to C or to mapped memory, and the
// garbage collector must neither follow nor verify them.
//
// # Ownership
//
// Pool.Export gives a *ManagedTensorVersioned, Pool.ExportLegacy a
// *ManagedTensor. Its holder calls its deleter exactly once: C through
// the function pointer, Go through Release or ReleaseLegacy. The deleter drops
// the reference that the caller of Export took (it adds Spec.Delta to
// Spec.Word) and gives the block back to the pool. The pool keeps its memory
// mapped until the process ends, because C code may call a deleter at any time.
// The tensor's bytes are the caller's: they, and the word, stay mapped until
// the deleter has run. They must not lie on the Go heap.
//
// Consume takes ownership of a tensor made by other code and gives an Imported, whose
// Release calls the producer's deleter once. Check only looks.
//
// # Calling C
//
// Releasing other code's tensor means calling a C function. This package does
// not import anything that could, so that programs stay static. A program that
// meets C imports the package dlpack/cabi for its side effect. Without it such
// a release gives ErrNoCaller and changes nothing. Tensors made by this package
// need no C: their deleter is recognised by its address and run directly.
//
// # Concurrency
//
// All functions may be called from any goroutine. The deleter is a few lines of
// assembly in the C calling convention: it may run on any thread, also one that
// Go did not start, takes no lock, makes no system call, needs no stack and no
// Go runtime, and accepts NULL. An Imported may be released from any goroutine.
//
// # What a hostile peer can do
//
// DLPack structures hold addresses of one process and never cross a process
// boundary, so no other process writes them. A tensor from other code in this
// process is range-checked before use (extents, strides, overflow, NULL,
// alignment, version), but an address cannot be verified: code in the same
// process is trusted with it.
//
// # Death
//
// Pool memory is private and goes with the process. References that blocks
// held are in the holder's refcounts, which are dropped whole when the process
// is dead. A child made by a raw fork inherits the blocks but not the words
// (pages that a session writes are not inherited); it must not call deleters
// of tensors that it inherited.
package dlpack
