// Package sys is the one place that makes system calls: descriptors, shared
// memory files, mappings, futexes, pidfds, sockets that pass descriptors, and
// the limits of memory. Everything above it is portable Go.
//
// Ownership: an FD owns its descriptor and closes it once; a Mapping owns its
// address range. Nothing here closes or unmaps by itself.
//
// Concurrency: calls are safe from any goroutine; a Mapping must not be
// unmapped while it is read.
//
// Hostile peers: descriptors received from a socket are always CLOEXEC and are
// closed when a frame is refused. What a mapping holds may change at any time.
//
// Death: a descriptor or mapping ends with its process; a pidfd reports it.
package sys
