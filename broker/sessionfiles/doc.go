// Package sessionfiles is the part of the broker that has the shared files: it makes and
// maps them, and keeps the file of each session, also one that an ended session leaves behind.
//
// Ownership: a [Store] owns every file and its own mapping of it; [Store.Close]
// frees them. Callers get duplicates of descriptors.
//
// Concurrency: all of it is called with the broker's mutex held.
//
// Hostile peers: a client can write all of its own session file. What is read
// there is copied once and checked by the caller.
//
// Death: the files of a dead session stay while a chunk or a lane of it is in use
// ([SessionFile.Use]); then they are closed.
package sessionfiles
