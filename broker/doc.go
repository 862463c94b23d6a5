// Package broker is the daemon's core: sessions, connections and requests, and what
// happens when a process or the broker itself ends. It speaks docs/protocol.md on a
// Unix socket and is in the path of no hand-over. All other state is in packages below it,
// the components: record, alarm, sessionfiles, memory, topics and leases. Each is tested alone and
// imports only those before it (docs/architecture.md).
//
// Ownership: a [Broker] owns every connection, and through its components every shared
// file and its own mapping of it; [Broker.Serve] frees them when it returns. A client
// gets duplicates of descriptors, those of files that it may not write reopened for
// reading.
//
// Concurrency: one mutex guards all state, that of the components too. Each connection has a
// goroutine that carries out its requests in order and one that writes; a third waits for
// the end of the process. A client that does not read its replies blocks its own goroutines
// and no others, because nothing is sent with the mutex held.
//
// Hostile peers: every number of a request and of a page that a client can write
// is copied once and checked. A client can fill tables and quotas, spoil its own
// lanes and pin what it may map; it cannot make the broker panic, count a
// reference wrongly in another holder's refcounts, or free what another holds.
//
// Death: dead means that the pidfd is readable; a closed socket alone leaves a
// session as it is. The lanes of the dead are adopted before their refcounts are
// emptied, so that no count is ever too low. The broker's own death leaves its
// file with the clients that map it; the next broker takes over from there (recover.go).
package broker
