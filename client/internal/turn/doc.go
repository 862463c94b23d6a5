// Package turn is a lock that is waited for with a context: under some the broker is asked,
// and a goroutine that waits behind such a call has a deadline of its own.
package turn
