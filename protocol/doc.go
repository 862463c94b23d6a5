// Package protocol holds what every Baton client and broker agree on: the
// layout of the shared structures, the control messages, error codes, handles,
// tuples, the value tree, and the grammar of names. docs/protocol.md says the
// same in prose; testdata/v1 says it in bytes that every language checks.
//
// Ownership: values here are plain data; nothing is mapped, opened or freed.
//
// Concurrency: all functions are pure. Values may be shared once built.
//
// Hostile peers: every decoder takes bytes that another process wrote. It
// checks each number before use, allocates no more than the input justifies,
// and returns a typed error; it never panics.
//
// Death: nothing here outlives or depends on a process.
package protocol
