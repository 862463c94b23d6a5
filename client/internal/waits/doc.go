// Package waits is where goroutines of a session wait for messages, room and memory. A session
// has one bell: one of them sleeps in the futex and looks for the others when it is woken.
package waits
