// Package session is the life of a session: it opens the parts of the client, does what is due
// off the hot path, comes back to a broker, and goes the way to the end once it is closed or
// lost. It is the one package that knows all the others.
package session
