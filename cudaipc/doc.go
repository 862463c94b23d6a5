// Package cudaipc gives GPU memory to several processes, by NVIDIA's driver
// library, which it loads when a program asks for it: no CUDA toolkit is needed to
// build, and a program on a machine without a driver gets a clear error from Open
// and nothing else changes.
//
// It is for programs that opt in. Importing it makes a binary dynamic, so neither
// the broker nor the client nor the command does: a program that wants GPU tensors
// hands what Open returns to client.WithDevices.
//
// # Ownership
//
// A Driver and its Devices live as long as the process. A device's primary
// context, the one that other CUDA code in the process uses too, is retained at the
// first use and kept. A Slab is the driver's memory: its Close gives up this
// process's handle, a Mapping's Close its address; the memory itself lives until
// the last handle, mapping and descriptor in any process is gone. A descriptor
// from Export is the caller's, and so is one given to Import.
//
// # Concurrency
//
// All methods may be called from any goroutine. Contexts belong to threads: each
// call locks its thread, makes the context current and puts back what was there.
//
// # Errors
//
// Each error is a *[protocol.Error] whose cause is the driver's [Result], if the driver gave
// one. Besides the errors that its comment names, a call may fail with ErrOutOfMemory; with
// ErrConflict while a stream of the device is captured into a graph; and with ErrInternal,
// once a kernel has failed: then the device's context is lost, and each later call fails alike.
//
// # A hostile peer
//
// A descriptor that is no memory of this driver's, or of a GPU that this process
// does not see, is an error. A process with the descriptor of a slab can map it
// writable: read-only is a guard against mistakes.
//
// # Death
//
// What a process has of the driver's ends with it. Memory opened by a legacy
// handle ends with the process that allocated it, whichever process has it open.
package cudaipc
