// Package machines brings storages of other hosts here, and gives those of this host to others. A host is a broker's
// instance. Hosts find each other by NATS, and move bytes over direct connections or over NATS.
//
// # Purpose
//
// The receiver pulls. It asks the source for a handle's storage on baton.<ns>.host.<instance>.fetch. The source takes a
// reference by the rules of one machine, and answers with the size, a ticket that is good once, and its data addresses.
// The receiver opens a [Passage], asks for ranges, checks the sum of each piece, and confirms; then the source lets its
// reference go. What was fetched is kept for a while, and shared by all that open it here.
//
// docs/protocol.md, Between hosts, has messages and frames, docs/machines.md what is promised.
//
// # Ownership
//
// The package has no shared memory of its own. [Memory] is an ordinary session of the broker in whose process this
// is: [Held] is a reference of it, [Filling] a tensor of it. A reference for another host ends when that one confirms, or
// after progressTime without a request. A tensor that was fetched is kept while it is used (kept.go).
//
// # Concurrency
//
// All methods of [Machines] may be called from any goroutine. Each fetch has one goroutine, and each passage of
// a source one. No lock is held over the network or a call of Memory, but the one of a kept storage.
//
// # Hostile input
//
// Another host may say anything. Its numbers are checked before they are used: a size against the handle and
// the limit before memory is taken, ranges against the storage, pieces against what was asked for. What a source gives
// is bounded (mostTransfers, mostOfPeer), and so is what a receiver has under way (gate.go). A host that may publish on
// the subjects of a namespace may read each storage that was made in that namespace and can be named by its numbers: NATS accounts
// say which may. Data addresses are numbers of the Internet protocol, at most mostAddresses. On a direct connection that is
// encrypted each end knows the other by the certificate that the directory has for it (certificate.go).
//
// # Death
//
// A host whose connection has broken and for which NATS knows no subscriber is lost after brokenTime, one that is silent on
// both ways after absentTime. While this host's own link to NATS is down nothing is known of other hosts. A host that ends leaves
// references that end with its passages or by progressTime; a receiver that ends leaves a tensor that has no
// name and no handle, which goes with its session.
package machines
