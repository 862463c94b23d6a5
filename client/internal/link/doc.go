// Package link is a session's way to its broker: it finds the broker, or starts one, makes
// requests from any goroutine, and reports events. It knows what it takes to ask the next
// broker where one goes away, and nothing of what is asked.
//
// A request is answered, fails, or ends with its context. One that a broker carried out
// after its caller had given up is undone.
package link
