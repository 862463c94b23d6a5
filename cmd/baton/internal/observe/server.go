package observe

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/cmd/baton/internal/logqueue"
	"github.com/baton-ipc/baton/protocol"
)

// Guard is where a Server is, what it shows, and to which requests. These settings belong
// together: an address beyond loopback is fit for a guarded endpoint alone.
type Guard struct {
	Network, Address string // as net.Listen takes them: "unix" or "tcp"
	PProf            bool
	// Token is what a request must show as a bearer, but those for /healthz and /readyz,
	// which tell nothing else than yes or why not; "": none must.
	Token     string
	Cert      *tls.Certificate // with which TLS is spoken; nil: plain HTTP
	Topics    int              // how many topics and queues have metrics of their own
	Functions int              // and how many functions
}

// Options of a Server.
type Options struct {
	Guard

	Version  string
	Requests *Requests // nil: none are counted
	// Traffic sums what topics and queues count, and shows each; false: the sum is not whole. nil: not counted.
	Traffic func(func(*broker.TopicRow)) (broker.TrafficStatus, bool)
	// Calls is the same of functions.
	Calls func(func(*broker.FunctionRow)) (broker.CallStatus, bool)
	// Look is what the page shows; nil, or false: nothing yet.
	Look func() (broker.Look, bool)
	// Alive returns when the broker can answer; nil: when it has reported its status.
	Alive  func()
	Broker func() broker.Status
	NATS   func() *natsbridge.Status // nil, or gives nil: no NATS, or none yet
	Hosts  func() *machines.Status   // nil, or gives nil: no other hosts
	Names  func() []names.Status     // as Hosts
	Ready  func() error              // why clients should not come yet, or any more
	Log    *slog.Logger
	// LogStatus tells how the log is; nil: not counted.
	LogStatus func() logqueue.Status
}

// healthTime is how long the broker may take to tell its status before it counts
// as stuck.
const healthTime = 2 * time.Second

// Server is the HTTP endpoint. Where it is, what it shows, and to which requests, may be changed
// while it runs, all at once: no request is judged by a part of the settings.
type Server struct {
	options  Options // its Guard is that in force
	registry *prometheus.Registry
	// How many topics and functions have metrics of their own.
	topics, functions atomic.Int64

	door    *door
	now     *generation
	serving sync.WaitGroup
}

// generation answers requests by some settings. The next one takes its place.
type generation struct {
	http     *http.Server
	token    string
	cert     *tls.Certificate // nil: plain HTTP
	host     string           // the name that was bound; of a Unix socket none
	checks   bool             // requests must name an address as their host
	outdated atomic.Bool      // further requests are refused
}

// Start listens and serves. A Unix socket gets mode 0600.
func Start(o Options) (*Server, error) {
	s := &Server{options: o}
	if s.options.Alive == nil {
		s.options.Alive = func() { o.Broker() }
	}
	s.topics.Store(int64(o.Topics))
	s.functions.Store(int64(o.Functions))
	s.registry = newRegistry(&s.options, &s.topics, &s.functions)
	next := s.generation(&o.Guard)
	var err error
	if s.door, err = openDoor(o.Network, o.Address, nil, o.Log); err != nil {
		return nil, unbound(err)
	}
	s.serve(next)
	return s, nil
}

// unbound is the error of an address that cannot be bound.
func unbound(err error) error {
	if errors.As(err, new(*protocol.Error)) { // which says what to do
		return fmt.Errorf("HTTP endpoint: %w", err)
	}
	remedy := "choose another address (--http)"
	if errors.Is(err, syscall.EADDRINUSE) {
		remedy += ", or end what has this one (ss -ltnp)"
	}
	return protocol.Errorf(protocol.CodeConflict, remedy, "HTTP endpoint: %w", err)
}

// Change has the server go by other settings. It listens at another address before it leaves the
// former one, and stays at one that is the same. It tells what is another than before. An error
// changes nothing. Requests under way are answered; connections end.
func (s *Server) Change(to Guard) (changed Changed, err error) {
	next := s.generation(&to)
	was := s.options.Guard
	changed = Changed{Token: was.Token != to.Token, Cert: !sameCertificate(was.Cert, to.Cert)}
	moved := was.Network != to.Network || was.Address != to.Address
	if was.Cert = to.Cert; was == to && !changed.Cert {
		return changed, nil
	}
	former, door := s.now, s.door
	if moved {
		if s.door, err = openDoor(to.Network, to.Address, door, s.options.Log); err != nil {
			s.door = door
			return Changed{}, unbound(err)
		}
	}
	former.outdated.Store(true)
	s.options.Guard = to
	s.topics.Store(int64(to.Topics))
	s.functions.Store(int64(to.Functions))
	s.serve(next)
	if moved {
		door.close()
	}
	s.serving.Go(func() {
		bounded, cancel := context.WithTimeout(context.Background(), lastAnswers)
		defer cancel()
		former.end(bounded)
	})
	return changed, nil
}

// lastAnswers is how long requests under way may take once the settings have changed.
const lastAnswers = 10 * time.Second

func sameCertificate(a, b *tls.Certificate) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.EqualFunc(a.Certificate, b.Certificate, bytes.Equal)
}

// generation makes what answers by some settings.
func (s *Server) generation(g *Guard) *generation {
	n := &generation{token: g.Token, cert: g.Cert, checks: g.Network != "unix" && g.Token == "" && g.Cert == nil}
	if host, _, err := net.SplitHostPort(g.Address); err == nil {
		n.host = host
	}
	o := &s.options
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		answer(w, Healthy(r.Context(), o.Alive))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		err := o.Ready()
		if err == nil {
			err = Healthy(r.Context(), o.Alive)
		}
		answer(w, err)
	})
	mux.Handle("GET /metrics", n.guarded(promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})))
	if o.Look != nil {
		mux.Handle("GET /{$}", n.named(http.HandlerFunc(page)))
		mux.Handle("GET /api/look", n.guarded(looker(o.Look)))
	}
	if g.PProf {
		profiles := http.NewServeMux()
		profiles.HandleFunc("/debug/pprof/", pprof.Index)
		profiles.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
		profiles.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.Handle("/debug/pprof/", n.guarded(profiles))
	}
	n.http = &http.Server{
		Handler:           n.current(mux),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnState:         noteState,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	if n.cert != nil {
		n.http.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*n.cert}}
	}
	return n
}

// serve has a generation answer what comes in at the door.
func (s *Server) serve(n *generation) {
	s.now = n
	l := s.door.lease()
	s.serving.Go(func() {
		serve := func() error { return n.http.Serve(l) }
		if n.cert != nil {
			serve = func() error { return n.http.ServeTLS(l, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.options.Log.Error("the HTTP endpoint has ended", "error", err)
		}
	})
}

// end lets requests finish until ctx ends.
func (n *generation) end(ctx context.Context) error {
	err := n.http.Shutdown(ctx)
	if err != nil {
		n.http.Close()
	}
	return err
}

// Changed tells what a Change has changed beside names of files.
type Changed struct{ Token, Cert bool }

// Addr is where the server listens.
func (s *Server) Addr() string { return s.door.addr().String() }

// Close ends the server, letting requests finish until ctx ends, and removes the
// socket, where it is this server's.
func (s *Server) Close(ctx context.Context) error {
	s.door.close()
	err := s.now.end(ctx)
	s.serving.Wait()
	return err
}

// Healthy tells whether the broker answers: a nil error when alive returns in time.
func Healthy(ctx context.Context, alive func()) error {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	answered := make(chan struct{})
	go func() {
		alive()
		close(answered)
	}()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return errors.New("the broker does not answer")
	}
}

// How long a client may take to read an answer, and a profile, which is made for as long as the
// request says.
const (
	toRead     = 10 * time.Second
	toReadLong = 10 * time.Minute
)

// current refuses requests by former settings, and clients that do not read.
func (n *generation) current(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.outdated.Load() {
			w.Header().Set("Connection", "close")
			http.Error(w, "the settings of this endpoint have changed: connect again", http.StatusServiceUnavailable)
			return
		}
		long := toRead
		if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			long = toReadLong
		}
		http.NewResponseController(w).SetWriteDeadline(time.Now().Add(long))
		h.ServeHTTP(w, r)
	})
}

// named refuses requests that name a host by which no operator finds the endpoint, where there is neither a token nor a
// certificate: a page of another site whose name leads to this address (DNS rebinding) would read what a browser can reach.
func (n *generation) named(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.checks && !n.isNamed(r.Host) {
			http.Error(w, "ask by an address or by localhost: this endpoint has neither a token (--http-token-file) nor a certificate, and answers to no other name", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// guarded is named for what has data: it refuses requests that do not show the token as well.
func (n *generation) guarded(h http.Handler) http.Handler {
	return n.named(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n.token == "" {
			h.ServeHTTP(w, r)
			return
		}
		scheme, shown, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare([]byte(shown), []byte(n.token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "show the token of --http-token-file: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
}

// isNamed tells whether a Host header names an address, localhost, or what was bound.
func (n *generation) isNamed(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return host == "" || strings.EqualFold(host, "localhost") || strings.EqualFold(host, n.host)
}

func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, err.Error()+"\n")
		return
	}
	io.WriteString(w, "ok\n")
}
