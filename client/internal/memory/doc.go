// Package memory is what a session has and holds: the segments that it allocates in, those of
// others that it is attached to, the counts in its refcounts, and the files that it keeps for the next
// broker.
//
// Its entry points are few. Fill allocates, Take takes a message from a lane, Open holds what a handle
// names; each counts up in the refcounts before it looks again, and a Holding counts down with its
// last release. Trim unmaps what the broker has taken back. What it needs of parts above it,
// Lanes, Devices and Later say.
package memory
