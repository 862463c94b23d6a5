package settings

import (
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/baton-ipc/baton/internal/address"
)

// Settings of a broker process. The comments of [Define] say what each means.
type Settings struct {
	Config string // the file's path; empty: the default place, if there is a file

	Address       string
	RuntimeDir    string
	Memory        uint64 // bytes; 0: half of what the machine or container has
	SessionMemory uint64 // bytes; 0: no limit
	DeviceMemory  uint64 // bytes on each GPU; 0: no limit
	// SessionDeviceMemory is one session's part of it; 0: no limit.
	SessionDeviceMemory uint64
	MemoryDir           string
	UnreadPickles       time.Duration
	IdleExit            time.Duration // 0: never
	DrainTimeout        time.Duration
	// AllowUIDs and AllowGIDs may connect besides the broker's user; ObserveUIDs and
	// ObserveGIDs may connect and look.
	AllowUIDs, AllowGIDs, ObserveUIDs, ObserveGIDs []uint32
	SocketMode                                     fs.FileMode
	// Shared: other users reach the socket, where no flag says how.
	Shared bool

	NATS          string
	NATSCreds     string
	NATSNkey      string
	NATSUser      string
	NATSPassword  string
	NATSCA        string
	NATSCert      string
	NATSKey       string
	NATSPort      uint16 // of the embedded server; 0: any
	NoNATS        bool
	NATSFunctions bool

	// Span are the namespaces that other hosts reach and that reach them; "*": all. Data, DataListen, DataTLS and RemoteMemory
	// say how: by which way, at which address bytes are given, whether they are encrypted on it, and how many of other hosts
	// are kept (0: half of Memory).
	Span         []string
	Data         string
	DataListen   string
	DataTLS      string
	RemoteMemory uint64
	// SpanTimeout is how long a set or delete of a name of several hosts takes at most, where its program does not say.
	SpanTimeout time.Duration

	HTTP string
	// HTTPToken is a file; HTTPCert and HTTPKey are files with which TLS is spoken.
	HTTPToken, HTTPCert, HTTPKey string
	PProf                        bool
	MetricsTopics                uint
	MetricsFunctions             uint

	// NoRemoteTraces keeps traces of functions' errors in the providers' processes.
	NoRemoteTraces bool

	LogFormat string
	LogLevel  slog.Level

	// StandIn: a client has started the broker.
	StandIn bool
	// Replace: take over from a living broker, also from one that an operator runs.
	Replace bool

	// Socket and Dir follow from Address and RuntimeDir; Load fills them in.
	Socket string
	Dir    string

	// Files is what the files hold that the settings name.
	Files Files

	listen bool
	// reading is told before a file is read, and nil where that is of no interest.
	reading func(key, path string)
	// reloaded: a broker that is shared runs already, and reads them again.
	reloaded bool
	flags    *pflag.FlagSet
	own      []string // names of our flags, in the order of definition
	sources  map[string]string
}

// The address and the runtime directory exist for `serve` only.
const (
	keyAddress    = "address"
	keyRuntimeDir = "runtime-dir"
	keyConfig     = "config"
	keySpan       = "span"

	keySpanTimeout = "span-timeout"

	keyShared     = "shared"
	keySocketMode = "socket-mode"

	keyNATSPassword   = "nats-password"
	keyNoRemoteTraces = "no-remote-traces"
)

// spanAll stands for all namespaces in --span.
const spanAll = "*"

// dataWays are the possible ways of bytes between hosts, the default first.
var dataWays = []string{"auto", "tcp", "nats"}

// dataTLS says whether direct connections between hosts are encrypted, the default first.
var dataTLS = []string{"auto", "on", "off"}

// logFormats are the possible forms of the log, the default first.
var logFormats = []string{"text", "json"}

// SharedSocket is where a broker for several users listens by default.
const SharedSocket = "/run/baton/broker.sock"

// Define adds the flags of a broker to a flag set and returns the settings that
// they fill. With listen false the address and what goes with it are left out:
// such a broker finds a place of its own.
func Define(flags *pflag.FlagSet, listen bool) *Settings {
	s := &Settings{listen: listen, flags: flags, sources: map[string]string{}}
	mine := pflag.NewFlagSet("", pflag.ContinueOnError)
	mine.SortFlags = false
	mine.Var(&fileValue{to: &s.Config}, keyConfig, "configuration `file` (TOML); default $XDG_CONFIG_HOME/baton/baton.toml if it exists")
	if listen {
		mine.StringVar(&s.Address, keyAddress, "", "socket to listen at, `unix:/path` or /path; default that of this user's broker")
		mine.StringVar(&s.RuntimeDir, keyRuntimeDir, "", "private `directory` for lock, state and keys; default the socket's")
		mine.DurationVar(&s.IdleExit, "idle-exit", 0, "end after so long without session and lease; 0: stay")
		mine.BoolVar(&s.Shared, keyShared, false, "a broker for several users: socket "+SharedSocket+" and mode 0666 by default, in a directory that they may enter")
		mine.Var(&uidsValue{to: &s.AllowUIDs}, "allow-uid", "user `id` that may connect besides this one; may be repeated")
		mine.Var(&gidsValue{to: &s.AllowGIDs}, "allow-group", "`group`, by name or number, whose members may connect; may be repeated")
		mine.Var(&uidsValue{to: &s.ObserveUIDs}, "observe-uid", "user `id` that may look (status, ls, ping) and change nothing; may be repeated")
		mine.Var(&gidsValue{to: &s.ObserveGIDs}, "observe-group", "`group`, by name or number, whose members may look and change nothing; may be repeated")
		mine.Var(newMode(&s.SocketMode, 0o600), keySocketMode, "`mode` of the socket, octal")
	}
	mine.Var(&sizeValue{to: &s.Memory}, "memory", "`size` of all shared memory together (8GiB, 512M); default half of the machine's memory or of the smallest container limit")
	mine.Var(&sizeValue{to: &s.SessionMemory}, "session-memory", "`size` that one session may be granted, with lanes and 1 KiB a segment; default no limit")
	mine.Var(&sizeValue{to: &s.DeviceMemory}, "device-memory", "`size` of all memory together on each GPU; default no limit")
	mine.Var(&sizeValue{to: &s.SessionDeviceMemory}, "session-device-memory", "`size` that one session may be granted on each GPU; default no limit")
	mine.StringVar(&s.MemoryDir, "memory-dir", "", "keep shared memory in files of this `directory`, so that names outlive the broker; default memfds")
	mine.DurationVar(&s.UnreadPickles, "unread-pickles", time.Minute, "how old the handle in a pickle that was not read has to be before it may be given up where memory is refused")
	mine.BoolVar(&s.NoRemoteTraces, keyNoRemoteTraces, false, "traces of errors stay in the process that provides the function; kind and message go to the caller")
	mine.DurationVar(&s.DrainTimeout, "drain-timeout", 10*time.Second, "how long an orderly end may take")
	mine.StringVar(&s.NATS, "nats", "", "join this NATS server or cluster, `nats://host:port[,…]`; default an embedded server on loopback")
	mine.Var(&fileValue{to: &s.NATSCreds}, "nats-creds", "credentials `file` of a NATS user")
	mine.Var(&fileValue{to: &s.NATSNkey}, "nats-nkey", "`file` with an nkey seed for NATS")
	mine.StringVar(&s.NATSUser, "nats-user", "", "NATS user `name`")
	mine.StringVar(&s.NATSPassword, keyNATSPassword, "", "NATS `password`; better given as $BATON_NATS_PASSWORD, which ps does not show")
	mine.Var(&fileValue{to: &s.NATSCA}, "nats-ca", "`file` with the authorities that sign the NATS server's certificate")
	mine.Var(&fileValue{to: &s.NATSCert}, "nats-cert", "`file` with the broker's certificate for NATS")
	mine.Var(&fileValue{to: &s.NATSKey}, "nats-key", "`file` with the key of that certificate")
	mine.Uint16Var(&s.NATSPort, "nats-port", 0, "`port` of the embedded NATS server on loopback; default that of the previous broker if free, else any")
	mine.BoolVar(&s.NATSFunctions, "nats-functions", false, "answer requests over NATS to functions that are registered for it, from every client that may publish there")
	mine.BoolVar(&s.NoNATS, "no-nats", false, "no NATS at all")
	s.Data, s.DataTLS, s.SpanTimeout = dataWays[0], dataTLS[0], 15*time.Second
	if listen {
		mine.Var(&spanValue{to: &s.Span}, keySpan, "open handles of other hosts' brokers on the same NATS, and let them open this one's: of all namespaces, or with =`namespace`[,…] of some; default off")
		mine.Lookup(keySpan).NoOptDefVal = spanAll
		mine.Var(NewChoice(&s.Data, dataWays...), "data", "`way` of bytes between hosts: "+Or(dataWays)+"; auto uses NATS where no direct connection can be opened")
		mine.StringVar(&s.DataListen, "data-listen", "", "`host:port` of the data port for other hosts; default a free port at the address by which NATS is reached")
		mine.Var(NewChoice(&s.DataTLS, dataTLS...), "data-tls", "`when` direct connections between hosts are encrypted: "+Or(dataTLS)+"; auto: where NATS is reached by TLS")
		mine.Var(&sizeValue{to: &s.RemoteMemory}, "remote-memory", "`size` of all storages of other hosts together that are kept here; default half of --memory")
		mine.DurationVar(&s.SpanTimeout, keySpanTimeout, s.SpanTimeout, "how long a set or delete of a name of several hosts waits until they agree, where its program does not say: an election of JetStream takes half of the default")
		mine.StringVar(&s.HTTP, "http", "", "serve a page, /healthz, /readyz and /metrics at this socket `path` or host:port, beyond loopback with a token or TLS; default off")
		mine.Var(&fileValue{to: &s.HTTPToken}, "http-token-file", "`file` with the token that /metrics, /api/look and /debug/pprof ask for, as Authorization: Bearer")
		mine.Var(&fileValue{to: &s.HTTPCert}, "http-cert", "`file` with the certificate of the HTTP endpoint, which then speaks TLS")
		mine.Var(&fileValue{to: &s.HTTPKey}, "http-key", "`file` with the key of that certificate")
		mine.UintVar(&s.MetricsTopics, "metrics-topics", 0, "`number` of topics and queues that have metrics of their own")
		mine.UintVar(&s.MetricsFunctions, "metrics-functions", 0, "`number` of functions that have metrics of their own")
		mine.BoolVar(&s.PProf, "pprof", false, "serve /debug/pprof as well")
	} else {
		s.SocketMode = 0o600
	}
	s.LogFormat = logFormats[0]
	mine.Var(NewChoice(&s.LogFormat, logFormats...), "log-format", "`format` of the log on standard error: "+Or(logFormats))
	level := slog.LevelInfo
	if !listen {
		level = slog.LevelWarn
	}
	mine.Var(newLevel(&s.LogLevel, level), "log-level", "least `level` to log: "+Or(levels))
	mine.VisitAll(func(f *pflag.Flag) { s.own = append(s.own, f.Name) })
	flags.AddFlagSet(mine)
	return s
}

// Source tells where a setting came from: "flag", "environment", "file" or
// "default".
func (s *Settings) Source(key string) string {
	if from := s.sources[key]; from != "" {
		return from
	}
	return "default"
}

// Line is one setting as --check-config shows it.
type Line struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Lines lists all settings with the values in force. Passwords are hidden.
func (s *Settings) Lines() []Line {
	var out []Line
	for _, name := range s.own {
		value := s.flags.Lookup(name).Value.String()
		switch {
		case name == keyAddress:
			value = s.Socket
		case name == keyRuntimeDir:
			value = s.Dir
		case name == keyNATSPassword && value != "":
			value = "(hidden)"
		case name == "nats":
			value = HideSecrets(value)
		}
		out = append(out, Line{name, value, s.Source(name)})
	}
	return out
}

// envName is the environment variable of a setting.
func envName(key string) string {
	return "BATON_" + strings.ToUpper(strings.ReplaceAll(key, "-", "_"))
}

// resolve fills in what follows from other settings.
func (s *Settings) resolve() error {
	if !s.listen {
		return nil
	}
	if s.Shared && s.sources[keyAddress] == "" {
		s.Address = SharedSocket
	}
	if s.Shared && s.sources[keySocketMode] == "" {
		s.SocketMode = 0o666 // the broker checks the user that the kernel reports, not the file's mode
	}
	socket, _, err := address.Resolve(s.Address)
	if err != nil {
		return s.wrong(keyAddress, err)
	}
	s.Socket = socket
	s.Dir = s.RuntimeDir
	if s.Dir == "" {
		s.Dir = dirOf(socket)
	}
	return nil
}
