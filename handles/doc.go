// Package handles is about lifetime and nothing else: the refcounts in which
// references are counted, the entries and generations of storages, the free
// test, and the pool in which an owner recycles its storages.
//
// Truth about references is in the refcounts alone. Those of one holder are written by it alone; one
// 64-bit word stands for one storage and holds a sequence and a count. The
// writer of a place that names a storage (a slot, a name, a lease) pays for it in
// its own refcounts: up before naming, un-name before down.
//
// Ownership: a Pool owns the storages of the chunks granted to its session, and
// recycles each when no holder counts it. Refcounts and entries are views of files that
// a session owns.
//
// Concurrency: refcounts are changed by atomics from any thread of their session;
// a Pool has a lock of its own, held for no system call but that of a grant.
//
// Hostile peers: refcounts belong to one process, so one that breaks the protocol can only pin or
// lose its own references to memory that it may map anyway. Generations stand on
// pages that their owner alone writes.
//
// Death: the broker empties the refcounts of the dead and runs the free test in the
// place of a dead owner.
package handles
