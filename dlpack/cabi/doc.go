// Package cabi lets a Go program call the deleters of tensors that C code made.
// Import it for its side effect:
//
//	import _ "github.com/baton-ipc/baton/dlpack/cabi"
//
// It sets dlpack.CallDeleter during initialisation and owns nothing.
//
// A program that imports it is linked dynamically, also with CGO_ENABLED=0,
// because the purego library needs the C library's loader. Only programs that
// share a process with C code (and so are dynamic anyway) should; the broker's
// binary does not.
//
// The deleter runs on the thread of the calling goroutine, on a C stack, for as
// long as it likes: other goroutines go on. It must not be trusted less than
// the rest of the process: a crash in it is a crash of the process.
package cabi
