// Package hosts is the shared memory of a broker as its part for other hosts (broker/machines) has it: ordinary sessions
// of the broker in whose process it is.
//
// Ownership: a reference that is held for another host, and a tensor that came from one, are of the session of their
// namespace, which stays open as long as there are any. Concurrency: all methods may be called from any goroutine. Death: what the
// sessions hold ends with the process, as that of any client.
package hosts

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/cmd/baton/internal/ownsessions"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/protocol"
)

// leaseTime is how long the handle of a tensor that came from another host can be opened.
const leaseTime = 30 * time.Second

// IdleTime is how long a session is kept that has no use: longer than the pause between looks at what is kept of other hosts, each of which uses a session.
const IdleTime = 30 * time.Second

// Origins reports in whose namespace a storage was made, and whether a live name has it.
type Origins interface {
	// A storage that a name of the namespace has that is asked for counts as made there.
	Origin(asked string, h *protocol.Handle) (namespace string, live bool)
}

// Memory gives and takes as sessions of a broker do.
type Memory struct {
	cancel   context.CancelFunc
	sessions *ownsessions.Pool
	origins  Origins
	spanned  []string
}

// New makes it for the broker at an address. Storages of sessions that have ended, whose namespace is not known any more, are
// given only if all namespaces are spanned.
func New(address string, origins Origins, spanned []string, log *slog.Logger) *Memory {
	ctx, cancel := context.WithCancel(context.Background())
	return &Memory{cancel: cancel, sessions: ownsessions.New(ctx, address, "hosts", IdleTime, log), origins: origins, spanned: spanned}
}

// Hold takes a reference, as one that opens the handle.
func (m *Memory) Hold(ctx context.Context, ns string, h *protocol.Handle) (machines.Held, error) {
	whole := *h
	whole.DType, whole.Shape, whole.Strides, whole.ByteOffset = "uint8", []int64{int64(h.Bytes)}, nil, 0
	whole.ReadOnly, whole.Lease = true, nil
	var out *held
	err := m.with(ctx, ns, func(s *ownsessions.Session) error {
		t, err := s.Client().Open(ctx, whole)
		if err != nil {
			return err
		}
		b, err := t.Bytes()
		if err == nil {
			err = m.mayGive(ns, h)
		}
		if err != nil {
			t.Release()
			return err
		}
		out = &held{m, s, t, b, *h}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// with does something with the session of a namespace, which is to be given back if that succeeds. If the session is over,
// as after an operator has evicted it, another is opened: no client has anything to do with that.
func (m *Memory) with(ctx context.Context, ns string, do func(*ownsessions.Session) error) error {
	for again := true; ; again = false {
		s, err := m.sessions.Get(ctx, ns)
		if err != nil {
			return err
		}
		if err = do(s); err == nil {
			return nil
		}
		m.ended(s, err)
		if !again || protocol.CodeOf(err) != protocol.CodeSessionLost {
			return err
		}
	}
}

// mayGive refuses what is of another namespace, and what is written in place.
func (m *Memory) mayGive(ns string, h *protocol.Handle) error {
	of, live := m.origins.Origin(ns, h)
	switch {
	case live:
		return protocol.Errorf(protocol.CodeUnsupported, "set a copy under a name that is not live, or send a handle of a copy", "a live name has the tensor, which is written in place on its machine")
	case of == ns, of == "" && slices.Contains(m.spanned, machines.AllNamespaces):
		return nil
	case of == "":
		return protocol.Errorf(protocol.CodePermission, "open it while the session lives that made it, or span all namespaces (--span)", "the session that made the tensor has ended, and its namespace is not known")
	}
	return protocol.Errorf(protocol.CodePermission, "open it with a client of the namespace in which it was made", "the tensor was made in another namespace")
}

// ended gives a session back after an error.
func (m *Memory) ended(s *ownsessions.Session, err error) {
	m.sessions.Release(s)
	if protocol.CodeOf(err) == protocol.CodeSessionLost {
		m.sessions.Forget(s)
	}
}

type held struct {
	m      *Memory
	s      *ownsessions.Session
	t      *client.Tensor
	bytes  []byte
	handle protocol.Handle
}

func (h *held) Bytes() []byte { return h.bytes }

// Claim redeems the lease by opening the handle as it was made.
func (h *held) Claim(ctx context.Context) error {
	if h.handle.Lease == nil {
		return nil
	}
	t, err := h.s.Client().Open(ctx, h.handle, client.OpenReadOnly())
	if err != nil {
		return err
	}
	t.Release()
	return nil
}

func (h *held) Release() {
	h.t.Release()
	h.m.sessions.Release(h.s)
}

// Make allocates a tensor of bytes.
func (m *Memory) Make(ctx context.Context, ns string, bytes uint64) (machines.Filling, error) {
	if bytes > math.MaxInt64 {
		return nil, protocol.Errorf(protocol.CodeHandle, "use the handle as it was made", "a storage of %d bytes", bytes)
	}
	uint8s, err := dlpack.ParseDType("uint8")
	if err != nil {
		return nil, err
	}
	var out *filling
	err = m.with(ctx, ns, func(s *ownsessions.Session) error {
		t, err := s.Client().Alloc(ctx, uint8s, []int64{int64(bytes)})
		out = &filling{m: m, s: s, t: t, ns: ns}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Collect runs the free test over what was allocated here.
func (m *Memory) Collect() { m.sessions.Each(func(c *client.Client) { c.Collect() }) }

// Close ends the sessions. What programs have open stays theirs.
func (m *Memory) Close() {
	m.cancel()
	m.sessions.Close()
}

// filling is a tensor that is filled.
type filling struct {
	m  *Memory
	s  *ownsessions.Session
	t  *client.Tensor // nil: released
	ns string
	h  protocol.Handle // of the last lease
}

func (f *filling) Bytes() []byte {
	b, err := f.t.Bytes()
	if err != nil {
		return nil // it is contiguous and not released
	}
	return b
}

func (f *filling) Handle(ctx context.Context) (protocol.Handle, error) {
	h, err := f.t.Handle(ctx, client.LeaseOnce(), client.LeaseFor(leaseTime))
	if err == nil {
		f.h = h
	}
	return h, err
}

func (f *filling) Release() {
	f.t.Release()
	f.t = nil
	f.m.sessions.Release(f.s)
	f.s = nil
}

// Again opens the storage by its generation. One of which no handle was made has never been shared: it is over.
func (f *filling) Again(ctx context.Context) error {
	if f.h.Host == "" {
		return protocol.Errorf(protocol.CodeExpired, "fetch it again", "no handle of it was made")
	}
	bare := f.h
	bare.Lease = nil
	return f.m.with(ctx, f.ns, func(s *ownsessions.Session) error {
		t, err := s.Client().Open(ctx, bare, client.OpenReadOnly())
		if err == nil {
			f.t, f.s = t, s
		}
		return err
	})
}
