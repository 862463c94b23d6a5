// Package client hands tensors to other processes of this machine, without
// copying them, through the user's Baton broker.
//
//	c, err := client.Connect(ctx)
//	t, err := c.Alloc(ctx, dlpack.Float32, []int64{1024, 1024})
//	x, err := client.Slice[float32](t) // fill it in place
//	topic, err := c.Topic(ctx, "batches")
//	err = topic.Send(ctx, t)
//	t.Release()
//
// Processes call functions of one another by name: Handle provides one, Call calls it.
//
// Ownership: a Tensor, Bundle or Message holds references until Release; Retain
// gives another holder. Slices made from a tensor die with its last Release. A
// send takes references of its own, so the sender releases its tensor as before
// and, having sent it, no longer writes it. Close ends a Client: what it sent
// is still received, and what was not released stays valid until it is.
//
// Concurrency: a Client, Topic, Queue, Function and Registration may be used from
// any number of goroutines at once; those that take from one Queue take turns, each
// until its context ends. A Reader and a Watch are for one goroutine at a time. A
// Tensor, Bundle or Message may be read from any goroutine until its last Release.
// WaitAny waits for whichever of several readers, watches and queues is ready first.
// A program ends where main returns, whatever goroutines a Client has. If main calls
// runtime.Goexit instead, the goroutines of an open Client keep the program running.
//
// Errors: ErrClosed, ErrInvalid and the others are those of package protocol, for errors.Is;
// errors.As gives a *protocol.Error with its code, remedy and details. Every call of a Client,
// and of what it has made, may fail with ErrClosed once the Client was closed, and with ErrSessionLost once a broker has ended the session. A call
// that needs a broker may fail with ErrBrokerLost or ErrTimeout if none answers. The comment
// of a function names its errors besides.
//
// Nil and zero values: a nil option, context, Client, receiver or Waitable is a mistake of the
// program, and panics, as in the standard library. A nil Tensor or Bundle that is sent, set or
// copied, and a nil function that is to be called, are ErrInvalid. A zero value of a type that a
// Client makes is of no use: a Tensor or a Queue gives ErrClosed, and others panic.
//
// Leaving and closing: Close ends one use of a Topic or Queue, and other processes go on;
// End closes it for all of them. Close of a Registration waits for calls that run.
//
// Hostile peers: whatever another process wrote is copied, checked, and refused
// with a typed error. Several processes writing one live tensor may tear each
// other's values; nothing else.
//
// Death: when another process dies, what it sent stays and what it held is
// dropped by the broker. When the broker dies, mapped memory is handed over as
// before, and the client reconnects by itself; calls that need the broker wait
// for it until their context ends, 30 s at most. The session is over when its broker was
// stopped, or another one does not know it. Then every call fails with ErrSessionLost, or
// with ErrPermissionDenied if its user may not use the broker any more. What is held can
// still be read, and Reopen begins anew.
package client
