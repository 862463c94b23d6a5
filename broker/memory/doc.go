// Package memory is the broker's part for what sessions allocate in: segments, the
// chunks of storage indices over them, quotas, and what the reaper frees: memory of
// ended sessions, as soon as no holder counts it.
//
// Ownership: a [Memory] owns the descriptors of all segments until they are freed or
// [Memory.Close]. Sessions have an [Account] each; callers get duplicates of
// descriptors, those of memory that they may not write reopened for reading.
//
// Concurrency: all of it is called with the broker's mutex held. A session's
// [Client] is called with it as well.
//
// Hostile peers: of what owners write (entries, spilled messages) each number is
// copied once and checked. A client can fill tables and quotas and pin what it may
// map.
//
// Death: [Memory.Orphan] leaves the segments of a session to [Memory.ReclaimOrphans], and
// [Memory.End] empties its refcounts. Before that the broker's refcounts have counted what
// the session sent and named. Between the two a closed session may go on holding.
package memory
