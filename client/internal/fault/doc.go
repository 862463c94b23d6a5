// Package fault makes the errors that all parts of the client return, and tells what an
// error of the protocol means to them.
package fault
