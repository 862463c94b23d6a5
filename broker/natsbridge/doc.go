// Package natsbridge connects a broker to NATS: a server embedded in the
// process, or the operator's own server or cluster. It publishes what the broker
// gives it, tells whether there is a subscriber, and mirrors names in JetStream
// key-value buckets. It knows nothing of topics, tensors or sessions.
//
// # Embedded
//
// Without Config.Join the bridge starts a server on 127.0.0.1 that only the
// holder of an nkey may use. The runtime directory (0700) then holds
//
//	nats.lock   held by the living bridge: two servers never share the directory; the
//	            port of the last one
//	nats.seed   the random nkey seed, 0600; kept for the next life unless others
//	            could read it
//	nats.json   how to connect (see [Info]), 0600, written whole, removed at Close
//	nats/       JetStream's store, for streams that users make; ours are in memory
//
// The bridge's own connection has a key that exists in the process only. An nkey only signs
// the server's nonce: a process that takes the port of a broker that is
// down gets a signature and no secret. The last port of a broker that has ended is
// taken again when it is free, so that NATS clients find its successor by themselves.
// Every five seconds the bridge checks that the files are there, and makes again what was
// removed.
//
// # Joined
//
// With Config.Join the operator's credentials and TLS files are used as they are.
// An unreachable server is no error: Start succeeds, Status tells, connecting goes
// on in the background until it is closed. On the server the bridge needs the
// rights in [Permissions].
//
// # Names
//
// Bucket baton-<ns> has a key for each name, '/' written as '.', with the value
// that the broker gave and headers that name its writer. A value that is too large
// for a message is replaced by what the broker gave to stand for it, and the bridge
// answers for the value itself. The bucket is made at the first name. It is a copy: it is rebuilt when it is lost or the connection was,
// and what the same owner left behind in an earlier life is removed when the broker has
// set all names that it took over (NamesTold). Removed keys leave a purge marker, which the
// server drops after ten minutes where it can (2.11 and later).
//
// A stream in memory makes the embedded server tick ten times a second. So there is no
// bucket in it before a client could look at one: each client waits in its CONNECT (authenticator)
// until the bridge knows each name that was set before (Config.Tell), and the
// buckets hold it (show). A minute after the last client has left they are removed (removeBuckets),
// unless they hold something of others. The sequences of each bucket begin after those of
// the one before.
//
// Brokers that share a namespace share the bucket. Each write says which message of its
// key it expects to be the last, so that none overwrites what it has not seen. foundLocked
// decides which broker owns a key, and owner whether that broker is gone. docs/decisions/0018 has
// the reasons.
//
// # Service
//
// The broker is the NATS service "baton", of the micro package: PING, INFO, STATS, and
// an endpoint in each namespace where it answers for the tuples of names.
//
// # Ownership
//
// The Bridge owns the server, the connection and its goroutines until Close. Bytes
// given to Publish and SetName are copied.
//
// # Concurrency
//
// All methods may be called from any goroutine. Publish, Interest, SetName and
// DeleteName never wait for the network. The bridge's own connection subscribes to
// its inbox and what its service answers on; none of these
// counts as interest. No lock of the package is held while another is taken, nor over
// the network, nor while a log is written.
//
// # Hostile peers
//
// A process that has the seed or the operator's rights may publish and subscribe to
// anything; of what arrives, the bridge reads acknowledgements, the headers of
// its own buckets, and requests for tuples of names, which any client of the server may
// read, and nothing else. A subscriber that does not read is
// disconnected by the server; until then it may hold 64 MiB of this process and slow
// the publishing goroutine, which drops when its queue is full. Subjects and keys are checked here again, so that
// no wildcard and no empty token can reach the wire.
//
// # Death
//
// A killed process takes the embedded server with it and leaves nats.json, which
// ReadInfo recognises as stale by pid, start time and boot id; the kernel drops the
// lock. What was queued is lost: messages are hints, references live elsewhere.
// After a lost connection nothing old is sent, because a stale handle is worse than
// none: Publish refuses and counts until the connection is back.
package natsbridge
