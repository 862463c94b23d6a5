// Package signature is what a function takes and gives, as its description in the broker's record says
// (docs/protocol.md, Functions): written where it is registered, looked at where it is called, before
// anything is sent. It knows kinds of values and no values. What it reads another process wrote: it is
// checked, and never changed once it was read.
package signature
