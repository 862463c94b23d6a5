package natsbridge

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Defaults of Config.
const (
	DefaultMaxMemory  = 64 << 20
	DefaultMaxStore   = 256 << 20
	DefaultQueueBytes = 8 << 20
)

// Config says which NATS to use and where to keep its files.
type Config struct {
	// RuntimeDir is the broker's private directory. It is made with mode 0700
	// where it is missing, and refused where others can write it.
	RuntimeDir string
	// Owner identifies the broker: the same in all of its lives, different from
	// every other broker's. Required when joining, else a random one is made; it tags
	// keys in buckets and stands in subjects, so it is one token of them.
	Owner string
	// HostName and Machine say where it runs, for others. "": what the machine calls
	// itself, and its boot id.
	HostName, Machine string
	// Version of the broker, for lists of the services of NATS.
	Version string
	// Namespace is that of the broker's surroundings: it answers there from its start
	// on, in others from their first name on. "": default.
	Namespace string
	// Logger gets what the bridge and the embedded server have to say. nil: it is dropped.
	Logger *slog.Logger
	// Join names the operator's NATS; nil starts the embedded server.
	Join *JoinConfig
	// Port of the embedded server on 127.0.0.1. 0: that of the previous broker, else any.
	Port int
	// MaxMemory and MaxStore bound JetStream in the embedded server, in bytes.
	// 0: the defaults.
	MaxMemory, MaxStore int64
	// QueueBytes bounds what Publish queues, in bytes. 0: the default.
	QueueBytes int
	// Names says how buckets are made on a joined server.
	Names NamesConfig
	// Tell returns when the bridge knows each name that was set or deleted
	// before the call, or when its context ends. A client of the embedded server is
	// admitted after it. It is called from any goroutine. nil: the bridge knows them.
	Tell func(context.Context)
	// Call answers a request to a function that was listed by Functions. It is called
	// from any goroutine, and returns at once. nil: no function is called over NATS.
	Call func(f Function, r FunctionRequest)
}

// Function is one that is called over NATS, on the subject that FunctionSubject gives.
type Function struct{ Namespace, Name, Description string }

// FunctionRequest is a request to a function. One of its methods answers it, once.
type FunctionRequest interface {
	Data() []byte
	// Header returns the first value of a header, "" where there is none.
	Header(name string) string
	// Room is the size in bytes of the largest answer that the server takes now, without headers.
	Room() int
	// Respond answers. Fail answers with an error: a code of three digits, a text, and JSON.
	Respond(data []byte) error
	Fail(code, text string, data []byte) error
}

// NamesConfig says how buckets are made on a joined server. A bucket that the
// operator made beforehand is used as it is.
type NamesConfig struct {
	Replicas int   // 0: 1
	MaxBytes int64 // 0: no limit but the account's
	// Keep leaves the keys in the bucket at Close, for a broker whose names
	// outlive it.
	Keep bool
	// Silence is how long another broker must be away from NATS before its keys of
	// names that are set here are taken. 0: DefaultSilence. In less than brokers need to
	// connect again, the first one back after a restart of the server takes the keys of all others.
	Silence time.Duration
}

// JoinConfig names an operator's NATS. At most one of Creds, Seed and User is
// given, or credentials stand in the URLs.
type JoinConfig struct {
	URLs     []string // nats://host:port or tls://host:port, tried in random order
	Creds    string   // file with a user's JWT and seed
	Seed     string   // file with an nkey seed
	User     string
	Password string // never shown, logged or written
	CA       string // file with the authorities that sign the server's certificate
	Cert     string // file with our certificate, together with Key
	Key      string
	TLSFirst bool // the server wants the TLS handshake before anything else
}

// LogValue keeps the password and credentials in URLs out of logs.
func (j *JoinConfig) LogValue() slog.Value {
	return slog.GroupValue(slog.String("url", displayURLs(j.URLs)), slog.String("user", j.User),
		slog.String("creds", j.Creds), slog.String("seed", j.Seed), slog.String("ca", j.CA),
		slog.String("cert", j.Cert), slog.Bool("tls_first", j.TLSFirst))
}

func configError(remedy, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalid, remedy, format+": %w", append(args, ErrConfig)...)
}

// complete checks the settings and fills in the defaults.
func (c Config) complete() (Config, error) {
	if c.RuntimeDir == "" {
		return c, configError("name the runtime directory", "NATS has no runtime directory")
	}
	dir, err := filepath.Abs(c.RuntimeDir)
	if err != nil {
		return c, configError("name it from the root", "NATS runtime directory %q has no absolute path", c.RuntimeDir)
	}
	c.RuntimeDir = dir
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Port < 0 || c.Port > 65535 {
		return c, configError("use 0 for any port", "%d is not a port for NATS", c.Port)
	}
	if c.MaxMemory < 0 || c.MaxStore < 0 || c.QueueBytes < 0 || c.Names.MaxBytes < 0 || c.Names.Replicas < 0 {
		return c, configError("use 0 for the default", "a NATS limit is negative")
	}
	if c.MaxMemory == 0 {
		c.MaxMemory = DefaultMaxMemory
	}
	if c.MaxStore == 0 {
		c.MaxStore = DefaultMaxStore
	}
	if c.QueueBytes == 0 {
		c.QueueBytes = DefaultQueueBytes
	}
	if c.Join != nil && c.Owner == "" {
		return c, configError("give the broker's identity", "joining NATS without an owner for the names")
	}
	if c.Owner == "" {
		c.Owner = rand.Text()
	}
	if !validSubject(c.Owner) || strings.Contains(c.Owner, ".") || len(c.Owner) > mostOwner {
		return c, configError("use A-Z a-z 0-9 _ -", "NATS owner %q is not one token of a subject", c.Owner)
	}
	if c.HostName == "" {
		c.HostName, _ = os.Hostname() // without one it is left out
	}
	if c.Machine == "" {
		c.Machine = sys.BootID()
	}
	if c.Namespace == "" {
		c.Namespace = protocol.DefaultNamespace
	}
	if err := protocol.CheckNamespace(c.Namespace); err != nil {
		return c, configError("give one token", "the NATS namespace cannot be used (%v)", err)
	}
	if c.Names.Silence < 0 {
		return c, configError("use 0 for the default", "the time that a broker must be away is negative")
	}
	if c.Names.Silence == 0 {
		c.Names.Silence = DefaultSilence
	}
	return c, nil
}

// identity is what the bridge says of its broker. It stands in headers, which end at the
// end of a line.
func (c *Config) identity() identity {
	return identity{owner: c.Owner, hostName: printable(c.HostName, mostOwner), machine: printable(c.Machine, mostOwner),
		version: c.Version, pid: os.Getpid()}
}

// options checks the settings and makes the options of a connection.
func (j *JoinConfig) options() (nats.Options, error) {
	o := nats.GetDefaultOptions()
	servers, err := checkURLs(j.URLs)
	if err != nil {
		return o, err
	}
	o.Servers = servers
	var opts []nats.Option
	ways := 0
	if j.Creds != "" {
		ways++
		opt, err := creds(j.Creds)
		if err != nil {
			return o, err
		}
		opts = append(opts, opt)
	}
	if j.Seed != "" {
		ways++
		opt, err := seed(j.Seed)
		if err != nil {
			return o, err
		}
		opts = append(opts, opt)
	}
	if j.User != "" {
		ways++
		opts = append(opts, nats.UserInfo(j.User, j.Password))
	}
	if ways > 1 {
		return o, configError("give one of them", "more than one of creds, seed and user for NATS")
	}
	if j.Password != "" && j.User == "" {
		return o, configError("give the user", "a NATS password without a user")
	}
	if j.CA != "" {
		opts = append(opts, authorities(j.CA))
	}
	if (j.Cert == "") != (j.Key == "") {
		return o, configError("give both", "one of certificate and key for NATS without the other")
	}
	if j.Cert != "" {
		opts = append(opts, certificate(j.Cert, j.Key))
	}
	if j.TLSFirst {
		opts = append(opts, nats.TLSHandshakeFirst())
	}
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return o, unusable("NATS settings cannot be used", "check the files", err)
		}
	}
	return o, nil
}

// checkURLs accepts nats and tls addresses, comma lists included. Its errors do
// not repeat what was given, which may hold a password.
func checkURLs(given []string) ([]string, error) {
	const remedy = "use nats://host:port or tls://host:port"
	var out []string
	for _, s := range strings.Split(strings.Join(given, ","), ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		if !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		u, err := url.Parse(s)
		if err != nil {
			return nil, configError(remedy, "NATS address %d cannot be read", len(out)+1)
		}
		if u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
			return nil, configError(remedy, "NATS address %s is of another form", displayURL(s))
		}
		if u.Port() == "" {
			u.Host = net.JoinHostPort(u.Hostname(), "4222")
		}
		out = append(out, u.String())
	}
	if len(out) == 0 {
		return nil, configError(remedy, "no NATS address")
	}
	return out, nil
}

// displayURL is a URL without credentials; a token stands where a user would.
func displayURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "(unreadable)"
	}
	u.User = nil
	return u.String()
}

func displayURLs(urls []string) string {
	shown := make([]string, 0, len(urls))
	for _, s := range urls {
		shown = append(shown, displayURL(s))
	}
	return strings.Join(shown, ",")
}
