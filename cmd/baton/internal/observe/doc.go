// Package observe shows a broker to operators over HTTP: /healthz, /readyz,
// /metrics and, where wanted, /debug/pprof.
//
// # Ownership
//
// A [Server] owns its listener, the socket file it made and its goroutines until
// Close.
//
// # Concurrency
//
// One goroutine starts, changes and closes a Server. Requests are served side by side; each asks the broker for its status, which
// takes the broker's mutex for a moment. Nothing is computed between requests.
//
// # Hostile peers
//
// Without a token and TLS the endpoint listens only on a Unix socket of mode 0600 or on
// loopback, and answers only to a Host that is an address or the machine's own name. It changes nothing.
// No name of a topic, name, session or tensor becomes a label: metrics show numbers, and their
// number is fixed. Connections are bounded: one without a request makes room for the next.
// Slow clients are cut off.
//
// # Death
//
// A socket file that a killed broker left behind is replaced by the next one, if
// nothing answers on it.
package observe
