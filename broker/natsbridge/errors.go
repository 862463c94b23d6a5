package natsbridge

import "errors"

// Causes, for errors.Is. Most come inside a *protocol.Error with a remedy.
var (
	// ErrConfig: a setting is wrong or a file named by it cannot be used.
	ErrConfig = errors.New("wrong NATS settings")
	// ErrLocked: another living bridge, of a broker that runs or ends, has the runtime directory.
	ErrLocked = errors.New("the NATS of this runtime directory is in use")
	// ErrSilent: the server gave no answer while the bridge closed.
	ErrSilent = errors.New("the server does not answer: what it had not taken is lost")
	// ErrStuck: the connection has not ended with the bridge.
	ErrStuck = errors.New("its connection does not end: it waits for a file of its settings, or for the machine")
	// ErrPortTaken: the port asked for is in use.
	ErrPortTaken = errors.New("the port is in use")
	// ErrServer: the embedded server refused to start.
	ErrServer = errors.New("the embedded NATS server did not start")
	// ErrNotRunning: the runtime directory describes no living bridge.
	ErrNotRunning = errors.New("no NATS bridge runs")
	// ErrDisconnected: there is no connection to a NATS server now.
	ErrDisconnected = errors.New("not connected to NATS")
)
