package client

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/baton-ipc/baton/internal/address"
	"github.com/baton-ipc/baton/protocol"
)

// Option configures Connect.
type Option func(*options) error

type options struct {
	address   string
	namespace string
	start     bool
	name      string
	binary    string
	alloc     allocOptions
	modest    bool
	devices   Devices // nil: none
}

// WithAddress names the broker's socket: unix:/path or /path. Default:
// $BATON_ADDRESS, else the user's broker.
func WithAddress(a string) Option {
	return func(o *options) error { o.address = a; return nil }
}

// WithNamespace sets where names live: one token. Default: $BATON_NAMESPACE,
// else "default".
func WithNamespace(ns string) Option {
	return func(o *options) error { o.namespace = ns; return protocol.CheckNamespace(ns) }
}

// WithStart tells whether the user's broker is started when none runs (default
// true). A broker named by address is never started.
func WithStart(start bool) Option {
	return func(o *options) error { o.start = start; return nil }
}

// WithName sets the name shown in listings, 1 to 48 bytes of UTF-8 without control characters; default: $BATON_NAME,
// else the program's.
func WithName(name string) Option {
	return func(o *options) error {
		if name == "" || len(name) > 48 || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			return protocol.Errorf(protocol.CodeInvalid, "use 1 to 48 bytes of UTF-8, without control characters", "client name %q is unusable", name)
		}
		o.name = name
		return nil
	}
}

// WithBinary names the baton binary that starts the broker. Default:
// $BATON_BINARY, else this program if it is baton, else baton on PATH.
func WithBinary(path string) Option {
	return func(o *options) error { o.binary = path; return nil }
}

// WithMemoryWait sets how long allocations wait for memory when there is none
// (default 0: not at all), those of bundles and long descriptions too.
// WaitForMemory overrides it.
func WithMemoryWait(d time.Duration) Option {
	return func(o *options) error { o.alloc.wait = d; return nil }
}

// WithModestMemory makes the session take only as much memory as its tensors need,
// instead of some megabytes at first: for a program that publishes something and
// ends. What it took stays whole as long as any of it is held.
func WithModestMemory() Option {
	return func(o *options) error { o.modest = true; return nil }
}

func newOptions(opts []Option) (options, error) {
	o := options{start: true, namespace: os.Getenv(address.EnvNamespace), name: cmp.Or(os.Getenv(address.EnvName), filepath.Base(os.Args[0]))}
	if o.namespace == "" {
		o.namespace = protocol.DefaultNamespace
	}
	if len(o.name) > 48 {
		o.name = o.name[:48]
	}
	for _, f := range opts {
		if err := f(&o); err != nil {
			return o, err
		}
	}
	return o, protocol.CheckNamespace(o.namespace)
}

// hello is what a connection to a broker begins with.
func (o *options) hello() protocol.Hello {
	h := protocol.Hello{Protocol: protocol.Version, Layout: protocol.Layout,
		Client:    protocol.Client{Name: o.name, Language: "go", Version: Version},
		Namespace: o.namespace, PID: os.Getpid()}
	if o.devices != nil {
		h.Features = []string{protocol.FeatureCUDA}
	}
	return h
}
