// Package shm has the mechanics of shared memory, without policy: mapped
// regions and atomics on them, segments, lanes and their slots, group claims,
// bells. What a reference means is package handles' business; the rights of each side,
// the broker's.
//
// Ownership: a Region is a view of a mapping with another owner; it is
// valid as long as that mapping. A Segment owns its descriptor and mappings.
//
// Concurrency: everything that other processes see is changed by atomics.
// A Lane has one writing session, whose threads take turns by a lock of their
// own; any number of readers look at any time.
//
// Hostile peers: what stands on a page that another session writes may change
// between two looks. Every function here loads a word once, checks the local
// copy against the geometry that this process knows from its broker, and uses
// the copy. A Region refuses (panics on) an offset outside itself: that is a
// mistake of the caller, which must have checked.
//
// Death: a writer's death leaves its lane as it stood; a slot whose seq is 0 is
// invisible, so nothing is ever half sent.
package shm
