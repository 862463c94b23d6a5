// Package crashpoint lets a test kill a process between two instructions of the
// protocol. Code that changes what other processes see calls [At] with a name
// from [Points] at each step. Built with the tag crashpoint, a process whose
// environment says BATON_CRASH_AT=name (or name:n, the n-th time) kills itself
// there with SIGKILL; without the tag At is empty and is inlined away.
//
// The package owns nothing, may be called from any goroutine, and reads nothing
// that another process can write. It may kill its caller.
package crashpoint
