// Package wire reads and writes control frames: a length, a count of
// descriptors, JSON, and the descriptors themselves (docs/protocol.md, Control
// frames).
//
// Ownership: descriptors of a received frame belong to the caller; those of a
// frame that was refused are closed here. Sending takes no ownership.
//
// Concurrency: one reader and one writer at a time for each Conn.
//
// Hostile peers: lengths are bounded before anything is allocated, and surplus
// or missing descriptors end the connection.
//
// Death: a peer's end is io.EOF, or io.ErrUnexpectedEOF within a frame.
package wire
