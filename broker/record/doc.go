// Package record is the broker file: typed views of its records, and the only code
// that writes their words.
//
// A view (File.Session, File.Segment, …) stands for one record of a table. Load
// copies it, Store writes it whole, and the other methods change single words.
// Store writes the word that tells whether the record is used (a serial or an id)
// last, and Free clears that word first, so that a reader, and a successor that
// finds what a killed broker left, sees a record whole or not at all.
//
// Ownership: the package owns nothing. The caller keeps the file mapped while a
// view is used, and has reserved the pages of a record before it stores there.
//
// Concurrency: words that clients read are atomic. Only one broker writes, under
// its own lock.
//
// Hostile peers: clients map the file for reading only. Only a broker has written it.
//
// Death: a broker may be killed between any two stores. A successor must have the
// same layout number; it refuses records that make no sense.
package record
