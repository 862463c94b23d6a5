// Package doctor looks at a machine for what Baton needs, and says of each thing
// how it is and what to do about it.
//
// # Ownership
//
// A check closes what it opens. It changes nothing: no directory is made, no
// limit raised.
//
// # Concurrency
//
// [Run] runs the checks one after the other, each for a bounded time; none depends on another.
//
// # Hostile peers
//
// What is read comes from the kernel or from the user's own directory. Numbers
// that cannot be read become a warning, never a panic.
//
// # Death
//
// Nothing outlives the process: the memfd, pidfd and sockets tried out go with it.
package doctor
