// Package termtext writes for the terminal: tables, foreign text made safe, and numbers the
// way people read them.
//
// # Purpose
//
// Everything is a function from values and a Style to a string without a trailing
// newline; the caller prints it. A Style says how wide the output may be and whether
// colours and characters beyond ASCII may appear; Detect finds out.
//
// # Ownership
//
// Nothing is kept after a call.
//
// # Concurrency
//
// All functions may be called from any goroutine.
//
// # Hostile input
//
// Names, notes and labels may come from other processes. Control characters,
// text-direction marks and broken UTF-8 in them are replaced before anything is
// printed, so that a name cannot move the cursor or change what was shown before.
//
// # Death
//
// The terminal is never put into another mode: the cursor stays visible and there
// is nothing to restore when the process is killed.
package termtext
