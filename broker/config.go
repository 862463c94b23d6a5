package broker

import (
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Config says what a broker serves and within which limits. Only Dir is needed.
type Config struct {
	// Dir is the runtime directory: made with mode 0700, or refused when others
	// can write it. Lock, state file and, by default, the socket stand in it.
	Dir string
	// Socket is the path to listen at; by default broker.sock in Dir.
	Socket string
	// SocketMode is the socket's mode, 0600 by default.
	SocketMode os.FileMode
	// Access lists the users that may connect besides the broker's own user and root.
	Access Access
	// Shared: other users reach the socket, whose directory they may enter.
	Shared bool

	// Memory is how many bytes all segments together may have; 0: half of the
	// machine's memory or of the smallest limit of our control groups.
	Memory uint64
	// SessionMemory is how many bytes one session may be granted; 0: no limit of
	// its own.
	SessionMemory uint64
	// DeviceMemory and SessionDeviceMemory are how many bytes all segments on one
	// GPU together may have, and those of one session there; 0: as many as there are.
	DeviceMemory, SessionDeviceMemory uint64
	// MemoryDir makes all shared memory files in this directory instead of
	// memfds, so that names outlive the broker. "": memfds. Files cannot be sealed:
	// a client that shrinks one that it may write crashes all processes that read it.
	MemoryDir string

	// NoRemoteTraces: the trace of an error stays in the process of the function's provider, and its
	// caller has kind and message alone.
	NoRemoteTraces bool

	// Hosts: SetHosts will be called. What clients ask for of other hosts until then waits.
	Hosts bool
	// Span tells whether the names of a namespace span several hosts; nil: none do. SetNames will be called then.
	Span func(namespace string) bool

	// UnreadLimit is how old the handle of a pickle that was not read has to be before it may be
	// given up where memory is refused; 0: leases.DefaultUnreadLimit.
	UnreadLimit time.Duration

	// IdleExit ends the broker after so long without session and lease; 0: never.
	IdleExit time.Duration
	// RecoverWait is how long a new broker waits for the clients of one that
	// died; 0: five seconds.
	RecoverWait time.Duration

	// Supervised: an operator or a service manager runs this broker, and will run the
	// next one: its clients wait for that and start none.
	Supervised bool
	// Replace: take over from a living broker, also from one that an operator runs. A
	// supervised broker takes over from one that a client started in any case.
	Replace bool
	// Lock is that of Dir, which this process has taken and signed; New takes ownership of it. nil: New takes the lock.
	Lock *sys.FD
	// Settings are the flags of `baton serve` that give a broker which stands in for this
	// one the same behaviour.
	Settings []string

	// Descriptors takes shared memory when the broker leaves it to the next one; nil: there
	// is none. Kept is what it passed on, by name, which New takes ownership of.
	Descriptors DescriptorStore
	Kept        map[string]*sys.FD

	// EndsProcess: the process ends soon after Serve has returned. The connection of an op stop
	// stays open until then, so that its caller sees the end of all that the process has.
	EndsProcess bool

	// Early, if not nil, is called with the broker before New has returned, while it may be
	// taking over. The caller may use only its Status and AddStatus.
	Early func(*Broker)

	// Version is the program's, shown to clients.
	Version string
	// Log receives what operators should know; nil: nothing is logged.
	Log *slog.Logger
	// Events keep what is logged; nil: the broker makes them. A caller that sets Events has them behind Log.
	Events *events.Ring
	// KeepLog, if not nil, makes the file that Log writes to again where it was removed, and tells
	// whether it has. It is called when the broker checks its other files.
	KeepLog func() (again bool, err error)
	// Observe, if not nil, is called for each request that was carried out: its op,
	// how long that took, and the code of its error, "" for none. Called by many goroutines.
	Observe func(op string, took time.Duration, code protocol.Code)
	// ObserveHold, if not nil, is called for each time that the broker's mutex was held, after it
	// was released. Called by many goroutines; the broker is slower for it.
	ObserveHold func(Hold)
	// ReadMemory tells the machine's memory; nil: sys.ReadMemory.
	ReadMemory func() (sys.Memory, error)
}

// Names in the runtime directory.
const (
	socketName = "broker.sock"
	// maxSocketPath is what fits in sun_path with its closing zero.
	maxSocketPath = 107
)

// withDefaults fills in what was left out.
func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" {
		return c, protocol.Errorf(protocol.CodeInvalid, "give the broker a runtime directory", "no runtime directory")
	}
	if c.Socket == "" {
		c.Socket = filepath.Join(c.Dir, socketName)
	}
	if len(c.Socket) > maxSocketPath {
		return c, protocol.Errorf(protocol.CodeInvalid, "choose a shorter path",
			"socket path of %d bytes is longer than the %d that a Unix socket can have: %s", len(c.Socket), maxSocketPath, c.Socket)
	}
	if c.SocketMode == 0 {
		c.SocketMode = 0o600
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Events == nil {
		c.Events = events.New()
		c.Log = slog.New(c.Events.Handler(c.Log.Handler()))
	}
	if c.ReadMemory == nil {
		c.ReadMemory = sys.ReadMemory
	}
	if c.RecoverWait == 0 {
		c.RecoverWait = 5 * time.Second
	}
	if c.Memory == 0 {
		var err error
		if c.Memory, err = DefaultMemory(c.ReadMemory); err != nil {
			return c, err
		}
	}
	return c, nil
}

// DefaultMemory is the quota of a broker that is given none. read reports the machine's memory; nil
// is this machine. The error is that of read.
func DefaultMemory(read func() (sys.Memory, error)) (uint64, error) {
	if read == nil {
		read = sys.ReadMemory
	}
	m, err := read()
	return m.Bound() / 2, err
}
