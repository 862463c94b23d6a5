package machines

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// keepTime is how long a storage is held here after its last use. Then it is free once no program holds it, and is known
	// until it is used anew.
	keepTime = 30 * time.Second
	// sweepTime is the pause between looks at what is kept.
	sweepTime = 10 * time.Second
	// fullTime is the pause between looks for room.
	fullTime = 100 * time.Millisecond
)

// key names immutable bytes, and the namespace in which they were asked for.
type key struct {
	ns, host                    string
	segment, serial, generation uint64
	index                       uint32
	offset, bytes               uint64
}

func keyOf(ns string, h *protocol.Handle) key {
	return key{ns, h.Host, h.Segment, h.Serial, h.Generation, h.Index, h.Offset, h.Bytes}
}

// keptStorage is a storage of another host that is here, or comes.
type keptStorage struct {
	key    key
	ready  chan struct{} // closed when what follows is there
	into   Filling
	err    error
	cancel context.CancelFunc

	why atomic.Pointer[error] // why it is not there yet

	using int // under kept.mu: those that wait for it, or make a handle of it

	mu      sync.Mutex // held while the reference is looked at
	held    bool
	gone    bool
	used    time.Time
	claimed map[uint64]bool // leases that were redeemed at the source
}

// kept are the storages of other hosts that are here.
type kept struct {
	m     *Machines
	limit uint64

	mu       sync.Mutex
	storages map[key]*keptStorage
	bytes    uint64 // of all, also of those that come
	sweeping *time.Timer
	closed   bool
}

func newKept(m *Machines, limit uint64) *kept {
	return &kept{m: m, limit: limit, storages: map[key]*keptStorage{}}
}

// open returns a handle of this host for a storage of another one, fetched once for all that open it.
func (k *kept) open(ctx context.Context, ns string, h *protocol.Handle) (protocol.Handle, error) {
	if h.Bytes > k.limit {
		return protocol.Handle{}, protocol.Errorf(protocol.CodeOutOfMemory, "raise --remote-memory of this host's broker",
			"a storage of %d bytes of host %s is larger than the %d bytes for storages of other hosts", h.Bytes, h.Host, k.limit)
	}
	for {
		s, err := k.enter(ns, h)
		if err != nil {
			return protocol.Handle{}, err
		}
		select {
		case <-s.ready:
		case <-ctx.Done():
			k.leave(s)
			return protocol.Handle{}, s.late(h)
		}
		if s.err != nil {
			k.leave(s)
			return protocol.Handle{}, s.err
		}
		near, again, err := s.share(ctx, h)
		if again {
			k.remove(s)
		}
		k.leave(s)
		if again {
			continue
		}
		if err == nil && h.Lease != nil && s.redeems(*h.Lease) {
			k.m.redeem(ns, *h)
		}
		return near, err
	}
}

// enter finds the storage or begins to fetch it.
func (k *kept) enter(ns string, h *protocol.Handle) (*keptStorage, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return nil, errEnds
	}
	s := k.storages[keyOf(ns, h)]
	if s != nil {
		s.using++
		return s, nil
	}
	s = &keptStorage{key: keyOf(ns, h), ready: make(chan struct{}), using: 1, claimed: map[uint64]bool{}}
	if h.Lease != nil {
		s.claimed[*h.Lease] = true
	}
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(k.m.ctx)
	handle := *h
	begun := k.m.begin(func() {
		defer s.cancel()
		k.fetch(ctx, s, &handle)
	})
	if !begun {
		s.cancel()
		return nil, errEnds
	}
	k.storages[s.key] = s
	return s, nil
}

// leave ends a use. A fetch that is wanted no more is given up.
func (k *kept) leave(s *keptStorage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.using--; s.using > 0 {
		return
	}
	select {
	case <-s.ready:
	default:
		s.cancel()
		k.forgetLocked(s) // one that comes now begins anew
	}
}

// late is the error of one whose time is over before the storage is here.
func (s *keptStorage) late(h *protocol.Handle) error {
	const remedy = "look at baton ls hosts, or give it more time"
	why := s.why.Load()
	if why == nil {
		return protocol.Errorf(protocol.CodeUnreachable, remedy, "%d bytes of host %s are not here in time", h.Bytes, h.Host).With("host", h.Host)
	}
	if protocol.CodeOf(*why) == protocol.CodeOutOfMemory {
		return *why
	}
	return protocol.Errorf(protocol.CodeUnreachable, remedy, "%d bytes of host %s are not here in time: %w", h.Bytes, h.Host, *why).With("host", h.Host)
}

// forget lets the next one that opens the storage fetch it.
func (k *kept) forget(s *keptStorage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgetLocked(s)
}

func (k *kept) forgetLocked(s *keptStorage) {
	if k.storages[s.key] == s {
		delete(k.storages, s.key)
	}
}

// fetch brings the storage here.
func (k *kept) fetch(ctx context.Context, s *keptStorage, h *protocol.Handle) {
	k.m.count(func(c *counts) { c.fetching++ })
	defer k.m.count(func(c *counts) { c.fetching-- })
	note := func(err error) { s.why.Store(&err) }
	err := k.reserve(ctx, h, note)
	if err == nil {
		f := &fetch{m: k.m, ns: s.key.ns, handle: *h, note: note, make: func(ctx context.Context) (Filling, error) {
			return k.m.cfg.Memory.Make(ctx, s.key.ns, h.Bytes)
		}}
		if err = f.run(ctx); err == nil {
			s.into, s.held, s.used = f.into, true, time.Now()
			k.m.count(func(c *counts) { c.fetched++ })
		} else {
			if f.into != nil {
				f.into.Release()
			}
			k.unreserve(h.Bytes)
		}
	}
	if err != nil {
		k.m.count(func(c *counts) { c.failed++ })
		s.err = err
		k.forget(s)
	}
	k.mu.Lock()
	close(s.ready)
	abandoned := err == nil && k.storages[s.key] != s // given up at the last moment
	k.sweepLaterLocked()
	k.mu.Unlock()
	if abandoned {
		s.release()
		k.unreserve(s.key.bytes)
	}
}

// share makes a handle for one that opens the storage. again: its memory is used for something else by now.
func (s *keptStorage) share(ctx context.Context, h *protocol.Handle) (near protocol.Handle, again bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return near, true, nil
	}
	if !s.held {
		if err := s.into.Again(ctx); err != nil {
			s.gone = isOver(err)
			return near, s.gone, err
		}
		s.held = true
	}
	s.used = time.Now()
	near, err = s.into.Handle(ctx)
	if err != nil {
		s.gone = isOver(err)
		return near, s.gone, err
	}
	near.DType, near.Shape, near.Strides, near.Device, near.ReadOnly = h.DType, h.Shape, h.Strides, "cpu", true
	near.ByteOffset += h.ByteOffset
	return near, false, nil
}

// isOver tells whether a storage that was kept is no more: its memory is used anew, or the session that held it is over.
func isOver(err error) bool {
	code := protocol.CodeOf(err)
	return code == protocol.CodeExpired || code == protocol.CodeSessionLost || code == protocol.CodeClosed
}

// redeems notes that a lease is redeemed, and tells whether it is so for the first time.
func (s *keptStorage) redeems(lease uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := !s.claimed[lease]
	if len(s.claimed) < 1024 {
		s.claimed[lease] = true
	}
	return first
}

func (s *keptStorage) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		s.into.Release()
		s.held = false
	}
}

// letGo lets go of a storage that is not being opened.
func (k *kept) letGo(of key) {
	k.mu.Lock()
	s := k.storages[of]
	if s != nil {
		select {
		case <-s.ready:
			if s.using > 0 {
				s = nil
			}
		default:
			s = nil
		}
	}
	k.mu.Unlock()
	if s != nil {
		s.release()
	}
}

// reserve takes room for a storage, and waits for it.
func (k *kept) reserve(ctx context.Context, h *protocol.Handle, note func(error)) error {
	for {
		k.mu.Lock()
		free := k.limit - min(k.bytes, k.limit)
		fits := h.Bytes <= free
		if fits {
			k.bytes += h.Bytes
		}
		k.mu.Unlock()
		if fits {
			return nil
		}
		if k.sweep(ctx, 0) || k.m.cfg.Evict != nil && k.m.cfg.Evict(h.Bytes-free) && k.sweep(ctx, 0) {
			continue
		}
		note(protocol.Errorf(protocol.CodeOutOfMemory, "release tensors of other hosts, or raise --remote-memory", "no room for %d bytes of host %s: %s", h.Bytes, h.Host, k.largest()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(fullTime):
		}
	}
}

func (k *kept) unreserve(n uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bytes -= min(n, k.bytes)
}

// largest shows of which hosts most is kept.
func (k *kept) largest() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := map[string]uint64{}
	for key := range k.storages {
		of[key.host] += key.bytes
	}
	var hosts []string
	for host := range of {
		hosts = append(hosts, host)
	}
	slices.SortFunc(hosts, func(a, b string) int { return int(min(max(int64(of[b])-int64(of[a]), -1), 1)) })
	var parts []string
	for _, host := range hosts[:min(3, len(hosts))] {
		parts = append(parts, fmt.Sprintf("%d bytes of host %s", of[host], host))
	}
	return fmt.Sprintf("%d of %d bytes are used, most by %s", k.bytes, k.limit, strings.Join(parts, ", "))
}

// sweep lets go of what was not used for a while, forgets what is no more, and tells whether anything was freed.
func (k *kept) sweep(ctx context.Context, idle time.Duration) (freed bool) {
	k.mu.Lock()
	var all []*keptStorage
	for _, s := range k.storages {
		select {
		case <-s.ready:
			if s.using == 0 {
				all = append(all, s)
			}
		default:
		}
	}
	k.mu.Unlock()
	var loose []*keptStorage
	for _, s := range all {
		s.mu.Lock()
		if s.held && time.Since(s.used) >= idle {
			s.into.Release()
			s.held = false
		}
		if !s.held && !s.gone {
			loose = append(loose, s)
		}
		s.mu.Unlock()
	}
	if len(loose) == 0 {
		return false
	}
	k.m.cfg.Memory.Collect()
	for _, s := range loose {
		s.mu.Lock()
		if !s.held && !s.gone {
			if err := s.into.Again(ctx); err == nil {
				s.into.Release()
			} else {
				s.gone = isOver(err)
			}
		}
		gone := s.gone && !s.held
		s.mu.Unlock()
		if gone && k.remove(s) {
			freed = true
		}
	}
	return freed
}

// remove forgets a storage that is no more, and gives its room back, once.
func (k *kept) remove(s *keptStorage) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.storages[s.key] != s {
		return false
	}
	delete(k.storages, s.key)
	k.bytes -= min(s.key.bytes, k.bytes)
	return true
}

func (k *kept) sweepLaterLocked() {
	if k.sweeping != nil || k.closed || len(k.storages) == 0 {
		return
	}
	k.sweeping = time.AfterFunc(sweepTime, func() {
		k.sweep(k.m.ctx, keepTime)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.sweeping = nil
		k.sweepLaterLocked()
	})
}

// close lets go of all. What programs have open stays theirs.
func (k *kept) close() {
	k.mu.Lock()
	k.closed = true
	if k.sweeping != nil {
		k.sweeping.Stop()
	}
	all := k.storages
	k.storages = map[key]*keptStorage{}
	k.mu.Unlock()
	for _, s := range all {
		select {
		case <-s.ready:
			s.release()
		default:
		}
	}
}

// KeptStatus is what is kept of other hosts.
type KeptStatus struct {
	Storages int    `json:"storages"`
	Bytes    uint64 `json:"bytes"`
	Limit    uint64 `json:"limit"`
}

func (k *kept) status() KeptStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	return KeptStatus{len(k.storages), k.bytes, k.limit}
}
