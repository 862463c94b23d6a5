// Package termplot draws for the terminal: a line chart, pictures of digits,
// tables, bars, a progress bar, and numbers the way people read them.
//
// # Purpose
//
// Everything but the progress bar is a function from values and a Style to a
// string without a trailing newline; the caller prints it. A Style says how wide
// the output may be and whether colours and characters beyond ASCII may appear;
// Detect finds out.
//
// # Ownership
//
// Nothing is kept after a call. A Progress writes to the writer it was given until
// Close, and does not close that writer.
//
// # Concurrency
//
// All functions may be called from any goroutine. The methods of a Progress lock;
// other writers to the same terminal go through Progress.Println.
//
// # Hostile input
//
// Names, notes and labels may come from other processes. Control characters,
// text-direction marks and broken UTF-8 in them are replaced before anything is
// printed, so that a name cannot move the cursor or change what was shown before.
// NaN and infinities are left out of charts and drawn as empty bars.
//
// # Death
//
// The terminal is never put into another mode: the cursor stays visible and there
// is nothing to restore when the process is killed.
package termplot
