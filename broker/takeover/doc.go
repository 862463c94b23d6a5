// Package takeover decides what a new broker repairs of what the previous broker left: a
// pure function ([Plan]) from facts to a list of repairs. It knows no sockets, no
// processes and no clock.
//
// The facts are what a broker wrote (records, its own refcounts), what the dead wrote (lanes
// without a writer), and what is known of the rest: for each session whether
// its process is alive, dead or unknown and whether it is back, for each file whether
// it was handed over. Of living sessions only what the broker wrote is used, since
// the rest changes meanwhile. So the function never decides that memory is free: that
// is a request ([Reclaim]), which runs a double collect over the refcounts when it is applied.
//
// Repairs are applied in order, and each is safe by itself: after any of them the
// broker may die, and its successor plans anew from what it finds: more files, more
// deaths. Applying a plan twice changes nothing, and more facts never undo a repair. A
// file that comes while a broker serves is used without a plan (docs/decisions/0012).
//
// Ownership, concurrency: values only.
//
// Hostile peers: what stands in lanes of dead sessions is not trusted. A message counts only if
// every storage that it names lies in a chunk that is still granted; all else is emptied.
//
// Death: a dead session is ended only when its file is here or can come no more; an
// absent or unknown one keeps everything.
package takeover
