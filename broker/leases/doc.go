// Package leases is the broker's part for leases. A lease keeps storages for a handle on its
// way; the broker's refcounts count them.
//
// Ownership: a lease holds its storages until it expires, is claimed once, is
// released by the session that made it, or ends with that session.
//
// Concurrency: all of it is called with the broker's mutex held.
//
// Hostile peers: a lease has a number that cannot be guessed. A session can fill the
// table.
//
// Death: a claim that was answered is known to the next broker. A lease for a time outlives its
// session. A pickled handle's lease goes on for a while, so that the handle can arrive
// ([Leases.EndOf]).
package leases
