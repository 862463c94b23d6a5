// Command baton is the broker and its operator's tools: one static
// binary.
//
// # Purpose
//
// A file per command, named after it. `serve` and `run` hold a broker, made in
// daemon.go; `demo` starts one; all others are clients. They share
// app.go (streams, connections), rows.go (the text of listings) and errors.go (the
// text of a failure, and the exit status). A command adds itself by register.
//
// # Ownership
//
// Each command closes what it opens before it returns; main only turns the error
// into a status. The session of a command ends with it, so that nothing that it
// has looked at stays held. What `set` published belongs to the broker.
//
// # Concurrency
//
// A command runs in one goroutine; `serve` adds those of the broker, of NATS and
// of the HTTP endpoint, all ended before it returns.
//
// # Hostile peers
//
// Names, senders and descriptions come from other processes. They are printed
// through termtext, which replaces what could move the cursor, or as JSON.
//
// # Death
//
// A killed command leaves nothing but, of `get`, a temporary file beside the one
// to be written and, of `run`, a directory that the next `run` removes. A killed
// `serve` is taken over by the next one.
package main
