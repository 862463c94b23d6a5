// Package sessionfiles is the shared files that a session maps: the broker's, its own, the bells, and
// those of its peers. It asks no broker: what is to be mapped comes from its callers.
//
// A mapping lives as long as anything refers to it. Lanes, refcounts and bells are views that do
// not: code that looks through one keeps the mapping reachable to the end of the look.
//
// What another process writes in these files is copied, checked and then used. The records of
// the broker are read here alone.
package sessionfiles
