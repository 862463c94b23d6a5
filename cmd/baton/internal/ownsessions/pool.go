// Package ownsessions keeps sessions of the broker in whose process it is, one for each namespace that is used.
//
// A session is opened at the first use, and closed when it has had none for a while: it would keep a broker from its
// idle exit.
package ownsessions

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// Pool are the sessions. Make it with New, end it with Close.
type Pool struct {
	address, name string
	idleAfter     time.Duration // how long a session is kept that is not used
	log           *slog.Logger
	ctx           context.Context // sessions are opened within it

	mu       sync.Mutex
	sessions map[string]*Session // by namespace
}

// Session is a client of one namespace.
type Session struct {
	ns    string
	ready chan struct{} // closed when what follows is there
	c     *client.Client
	err   error
	users int
	idle  *time.Timer
}

// Client is the session.
func (s *Session) Client() *client.Client { return s.c }

// New makes a pool of sessions of the broker at an address. They have a name in listings, and are closed when they have
// had no use for a while. ctx bounds how they are opened.
func New(ctx context.Context, address, name string, idleAfter time.Duration, log *slog.Logger) *Pool {
	return &Pool{address: address, name: name, idleAfter: idleAfter, log: log, ctx: ctx, sessions: map[string]*Session{}}
}

// Get returns the session of a namespace, to be given back by Release.
func (p *Pool) Get(ctx context.Context, ns string) (*Session, error) {
	p.mu.Lock()
	s := p.sessions[ns]
	begins := s == nil
	if begins {
		s = &Session{ns: ns, ready: make(chan struct{})}
		p.sessions[ns] = s
	}
	s.users++
	if s.idle != nil {
		s.idle.Stop()
	}
	p.mu.Unlock()
	if begins {
		s.c, s.err = client.Connect(p.ctx, client.WithAddress(p.address), client.WithNamespace(ns), client.WithName(p.name), client.WithStart(false))
		if s.err != nil {
			p.mu.Lock()
			delete(p.sessions, ns) // the next one tries again
			p.mu.Unlock()
		}
		close(s.ready)
	}
	select {
	case <-s.ready:
	case <-ctx.Done():
		p.Release(s)
		return nil, protocol.Errorf(protocol.CodeTimeout, "ask again", "the broker was not reached in time").Because(ctx.Err())
	}
	if s.err != nil {
		return nil, s.err
	}
	return s, nil
}

// Release ends a use of a session. One that is not used for a while is closed.
func (p *Pool) Release(s *Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.users--
	if s.users > 0 || p.sessions[s.ns] != s {
		return
	}
	s.idle = time.AfterFunc(p.idleAfter, func() {
		p.mu.Lock()
		over := s.users == 0 && p.sessions[s.ns] == s
		if over {
			delete(p.sessions, s.ns)
		}
		p.mu.Unlock()
		if over {
			s.close(p.log)
		}
	})
}

// Forget lets the next use have another session than one that is over.
func (p *Pool) Forget(s *Session) {
	p.mu.Lock()
	was := p.sessions[s.ns] == s
	if was {
		delete(p.sessions, s.ns)
	}
	p.mu.Unlock()
	if was {
		s.close(p.log)
	}
}

// Each calls do with each session that is open.
func (p *Pool) Each(do func(*client.Client)) {
	p.mu.Lock()
	var all []*Session
	for _, s := range p.sessions {
		all = append(all, s)
	}
	p.mu.Unlock()
	for _, s := range all {
		select {
		case <-s.ready:
			if s.c != nil {
				do(s.c)
			}
		default:
		}
	}
}

// Close closes all sessions. They are used no more, and none is opened.
func (p *Pool) Close() {
	p.mu.Lock()
	all := p.sessions
	p.sessions = map[string]*Session{}
	p.mu.Unlock()
	for _, s := range all {
		if s.idle != nil {
			s.idle.Stop()
		}
		s.close(p.log)
	}
}

func (s *Session) close(log *slog.Logger) {
	<-s.ready
	if s.c == nil {
		return
	}
	if err := s.c.Close(); err != nil {
		log.Debug("a session of the broker's own did not end in order", "namespace", s.ns, "error", err)
	}
}
