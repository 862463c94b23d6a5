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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/natsbridge"
)

// Options of a Server.
type Options struct {
	Network, Address string // as net.Listen takes them: "unix" or "tcp"
	PProf            bool
	// Token is what a request must show as a bearer, but those for /healthz and /readyz,
	// which tell nothing else than yes or why not; "": none must.
	Token     string
	Cert, Key string // files, with which TLS is spoken; "": plain HTTP

	Version  string
	Requests *Requests // nil: none are counted
	// Traffic sums what topics and queues count, and shows each; nil: not counted. Topics is how
	// many of them have metrics of their own.
	Traffic func(func(*broker.TopicRow)) broker.TrafficStatus
	Topics  int
	// Look is what the page shows; nil, or false: nothing yet.
	Look func() (broker.Look, bool)
	// Alive returns when the broker can answer; nil: when it has reported its status.
	Alive  func()
	Broker func() broker.Status
	NATS   func() *natsbridge.Status // nil, or gives nil: no NATS, or none yet
	Ready  func() error              // why clients should not come yet, or any more
	Log    *slog.Logger
}

// healthTime is how long the broker may take to tell its status before it counts
// as stuck.
const healthTime = 2 * time.Second

// Server is the HTTP endpoint.
type Server struct {
	http    *http.Server
	address string
	socket  *socket // nil: it listens elsewhere
	keeping context.CancelFunc
	kept    chan struct{} // closed when the socket is watched no more
	serving sync.WaitGroup
	token   atomic.Pointer[string]
	cert    atomic.Pointer[tls.Certificate] // nil: plain HTTP
}

// Start listens and serves. A Unix socket gets mode 0600.
func Start(o Options) (*Server, error) {
	s := &Server{kept: make(chan struct{})}
	if _, err := s.Reload(o.Token, o.Cert, o.Key); err != nil {
		return nil, err
	}
	listener, err := s.listen(&o)
	if err != nil {
		return nil, fmt.Errorf("HTTP endpoint: %w", err)
	}
	s.address = listener.Addr().String()
	mux := http.NewServeMux()
	if o.Alive == nil {
		o.Alive = func() { o.Broker() }
	}
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
	mux.Handle("GET /metrics", s.withToken(promhttp.HandlerFor(newRegistry(&o), promhttp.HandlerOpts{MaxRequestsInFlight: 4})))
	if o.Look != nil {
		mux.HandleFunc("GET /{$}", page)
		mux.Handle("GET /api/look", s.withToken(looker(o.Look)))
	}
	if o.PProf {
		profiles := http.NewServeMux()
		profiles.HandleFunc("/debug/pprof/", pprof.Index)
		profiles.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
		profiles.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.Handle("/debug/pprof/", s.withToken(profiles))
	}
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	if o.Cert != "" {
		s.http.TLSConfig = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.cert.Load(), nil }}
	}
	var ctx context.Context
	ctx, s.keeping = context.WithCancel(context.Background())
	s.serve(listener, o.Log)
	go s.keep(ctx, listener, o.Log)
	return s, nil
}

// listen binds the address.
func (s *Server) listen(o *Options) (net.Listener, error) {
	if o.Network != "unix" {
		return net.Listen(o.Network, o.Address)
	}
	s.socket = &socket{path: o.Address, log: o.Log}
	return s.socket.bind()
}

// serve answers at a listener until it is closed.
func (s *Server) serve(l net.Listener, log *slog.Logger) {
	s.serving.Go(func() {
		serve := func() error { return s.http.Serve(l) }
		if s.cert.Load() != nil {
			serve = func() error { return s.http.ServeTLS(l, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			log.Error("the HTTP endpoint has ended", "error", err)
		}
	})
}

// keep makes a socket that was removed again until ctx ends. l is where the server listens.
func (s *Server) keep(ctx context.Context, l net.Listener, log *slog.Logger) {
	defer close(s.kept)
	if s.socket == nil {
		return
	}
	tick := time.NewTicker(lookAtSocket)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if next := s.socket.again(); next != nil {
			l.Close()
			l = next
			s.serve(l, log)
		}
	}
}

// Reload has the server ask for another token and show another certificate, of the files
// cert and key, from the next request and connection on. It tells what is another one than
// before. An error changes nothing.
func (s *Server) Reload(token, cert, key string) (changed Changed, err error) {
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return changed, fmt.Errorf("the certificate of the HTTP endpoint: %w", err)
		}
		was := s.cert.Swap(&pair)
		changed.Cert = was != nil && !slices.EqualFunc(was.Certificate, pair.Certificate, bytes.Equal)
	}
	was := s.token.Swap(&token)
	changed.Token = was != nil && *was != token
	return changed, nil
}

// Changed tells what a Reload has changed.
type Changed struct{ Token, Cert bool }

// Addr is where the server listens.
func (s *Server) Addr() string { return s.address }

// Close ends the server, letting requests finish until ctx ends, and removes the
// socket, where it is this server's.
func (s *Server) Close(ctx context.Context) error {
	s.keeping()
	<-s.kept
	if s.socket != nil {
		s.socket.remove() // as long as it is listened at, no other file is taken for it
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		s.http.Close()
	}
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

// withToken refuses requests that do not show the token.
func (s *Server) withToken(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := *s.token.Load()
		if token == "" {
			h.ServeHTTP(w, r)
			return
		}
		shown, is := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !is || subtle.ConstantTimeCompare([]byte(shown), []byte(token)) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "show the token of --http-token-file: Authorization: Bearer TOKEN", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
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
