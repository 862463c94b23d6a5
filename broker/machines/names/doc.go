// Package names agrees with other hosts on what names are set to.
//
// # Purpose
//
// A namespace that spans hosts has a bucket of JetStream with an entry for each name. A set reads the entry through the
// leader and writes on top by compare-and-set. Each host reads the bucket in the order of its stream, and that order is
// the order of revisions: the number of a revision is its place there, below the epoch of the bucket (entry.go). A
// revision is visible where the stream has brought it, also on the host that has set it.
//
// The entry has no bytes. A host whose programs have the name open asks the host of the entry for the revision
// (bring.go), which describes it and holds its storages meanwhile (give.go), and fetches these as any other.
//
// docs/protocol.md, Between hosts, has entries and questions; docs/machines.md what is promised; decision 27 why.
//
// # Ownership
//
// The revisions that are held until hosts agree, and those that are published, are the broker's ([Local]). What is held
// here for another host ends when that one says so, asks for the next, or after holdTime.
//
// # Concurrency
//
// All methods of [Names] may be called from any goroutine. Each namespace has a goroutine that reads its bucket; each set
// and each name that comes have one of their own. The mutex of a namespace may be held while the broker is asked what
// stands here (Local.State), and never over the network. The broker's own mutex is held when Ended is called, and no
// other method.
//
// # Hostile input
//
// Another host may write any entry. Its numbers are those of the stream; its texts are bounded and printable. What it
// describes is checked as what a client sets.
//
// # Death
//
// A set whose answer is not known is asked about until it is, also by the next broker, which its client asks with the same
// number. A host that has ended leaves entries whose bytes other hosts may have; else they are lost until the next set.
package names
