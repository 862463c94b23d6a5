package names

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// bringTime is how long a revision may take to come.
	bringTime = 30 * time.Second
	// retryTime is the pause before it is tried again for sessions that have the name open.
	retryTime = 5 * time.Second
	// silentTime is how long a host that NATS does not know, or that does not have what it has set, counts as one that
	// is coming back; absentTime the same of one that is silent.
	silentTime = 2 * time.Second
	absentTime = 5 * time.Second
	// onceTime is how long one question waits.
	onceTime = time.Second
	// unknownTime is how long a session that opens a name waits for the bucket to be read.
	unknownTime = 5 * time.Second
	// mostAtOnce is how many storages of a revision, and how many hosts are asked for at a time.
	mostAtOnce = 8
	// mostDescription bounds a description: refs and body of the largest message.
	mostDescription = 4 * protocol.MaxSpill
)

// Await waits until what a reader of a name may see is here. Errors: HostLost, Unsupported, Unreachable and those of a
// fetch; none if an older revision is here, which says that it is stale.
func (n *Names) Await(ctx context.Context, ns, name string) error {
	s := n.space(ns)
	s.lookUp(ctx, name)
	s.waits(name, 1)
	defer s.waits(name, -1)
	late := time.NewTimer(unknownTime)
	defer late.Stop()
	for tried := false; ; {
		s.mu.Lock()
		synced, here, trouble, changed := s.synced, s.hereLocked(name), s.trouble, s.changed
		bringing, err := false, error(nil)
		if k := s.names[name]; k != nil {
			bringing, err = k.bringing, k.err
		}
		s.mu.Unlock()
		set := n.cfg.Local.State(ns, name).Set
		var unknown <-chan time.Time
		switch {
		case synced && here, !synced && set:
			return nil
		case !synced && protocol.CodeOf(trouble) == protocol.CodeUnsupported:
			return trouble
		case !synced:
			unknown = late.C
		case !bringing && err != nil && tried:
			if set {
				return nil
			}
			return err
		case !bringing:
			tried = true
			s.bring(name)
		}
		select {
		case <-changed:
		case <-n.ctx.Done():
			return ErrEnds
		case <-unknown:
			return s.errWaits("it is not known whether name " + name + " is set on another host")
		case <-ctx.Done():
			if set {
				return nil
			}
			if !synced {
				return s.errWaits("it is not known whether name " + name + " is set on another host")
			}
			return protocol.Errorf(protocol.CodeUnreachable, "look at baton ls hosts, or give it more time", "name %s has not come from another host in time", name)
		}
	}
}

// waits notes that a session waits for a name, or does so no more.
func (s *space) waits(name string, change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.names[name]; k != nil {
		k.ahead = false
	}
	if s.waiting[name] += change; s.waiting[name] == 0 {
		delete(s.waiting, name)
	}
}

// lookUp waits for a name that is not known to be set here, and is: a set that has returned on another host is found.
func (s *space) lookUp(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, onceTime)
	defer cancel()
	s.mu.Lock()
	b, known := s.bucket, !s.synced || s.setLocked(name)
	s.mu.Unlock()
	if b == nil || known {
		return
	}
	if e, err := b.read(ctx, name); err == nil && e.set() {
		s.until(ctx, func() bool { return s.made != b.made || s.cursor >= e.Seq }) // late: as if it was set later
	}
}

// bring has the newest revision of a name come here. It returns at once.
func (s *space) bring(name string) {
	s.mu.Lock()
	k := s.nameLocked(name)
	comes := k.bringing
	k.bringing, k.err = true, nil
	s.mu.Unlock()
	if !comes && !s.n.begin(func() { s.bringAll(name) }) {
		s.mu.Lock()
		k.bringing, k.err = false, ErrEnds
		s.tellLocked()
		s.mu.Unlock()
	}
}

// bringAll brings revisions of a name until the newest is here, or does not come.
func (s *space) bringAll(name string) {
	local := s.n.cfg.Local
	for {
		s.mu.Lock()
		k := s.names[name]
		e, number, made := k.stored, s.epochs.number(k.Seq), s.made
		s.mu.Unlock()
		st := local.State(s.ns, name)
		over := !e.set() || st.Agreed.Revision >= number || !st.Open || s.n.ctx.Err() != nil
		var err error
		if !over {
			ctx, cancel := context.WithTimeout(s.n.ctx, bringTime)
			err = s.bringOne(ctx, name, &e, protocol.Agreed{Revision: number, Bucket: made})
			cancel()
			s.tried(name, err)
			s.n.cfg.Log.Debug("a revision of another host", "namespace", s.ns, "name", name, "revision", number, "host", e.Host, "error", err)
		}
		if protocol.CodeOf(err) == protocol.CodeBusy && s.pause(s.n.ctx, err) == nil {
			continue // the stream is about to bring a newer one
		}
		s.mu.Lock()
		switch {
		case over && (k.Seq != e.Seq): // a newer one since
		case over, err != nil && k.Seq == e.Seq:
			k.bringing, k.err = false, err
			s.tellLocked()
			s.mu.Unlock()
			if over {
				s.judge(name)
			} else {
				time.AfterFunc(retryTime, func() { s.retry(name) })
			}
			return
		}
		s.mu.Unlock()
	}
}

// retry tries again what a session waits for.
func (s *space) retry(name string) {
	s.mu.Lock()
	k := s.names[name]
	failed := k.err != nil && s.synced
	s.mu.Unlock()
	if failed && s.n.ctx.Err() == nil && s.n.cfg.Local.State(s.ns, name).Open {
		s.bring(name)
	}
}

// bringOne brings a revision, from its host or from another one that has it.
func (s *space) bringOne(ctx context.Context, name string, e *stored, want protocol.Agreed) error {
	host, d, err := s.described(ctx, name, e, want)
	if err != nil {
		return err
	}
	defer s.done(host, name)
	near, err := s.fetch(ctx, host, d.Storages)
	if err != nil {
		return err
	}
	r := &protocol.NameSet{Name: name, Bytes: d.Bytes, Tensors: d.Tensors, Body: d.Body, Refs: []protocol.StorageRef{}}
	var leases []uint64
	for i := range near {
		h := &near[i]
		r.Refs = append(r.Refs, protocol.StorageRef{Index: h.Index, Serial: h.Serial, Generation: h.Generation})
		if h.Lease != nil {
			leases = append(leases, *h.Lease)
		}
	}
	release, err := s.spill(ctx, r, &leases)
	if err != nil {
		return err
	}
	defer release()
	setter := printable(d.Setter) + " on " + e.where()
	if host != e.Host {
		setter = printable(d.Setter)
	}
	want.Age = d.Age
	if err := s.n.cfg.Local.Publish(s.ns, r, want, setter, leases); err != nil {
		return err
	}
	for _, st := range d.Storages {
		s.n.hosts.LetGo(s.ns, handleOf(host, st)) // the name holds it
	}
	return nil
}

// described finds a host that has a revision, and what it says of it.
func (s *space) described(ctx context.Context, name string, e *stored, want protocol.Agreed) (host string, d *description, err error) {
	if e.Host != s.n.cfg.Instance {
		if d, err = s.ask(ctx, e.Host, name, want, true); err == nil {
			return e.Host, d, nil
		}
		switch protocol.CodeOf(err) {
		case protocol.CodeHostLost, protocol.CodeExpired:
		case protocol.CodeUnsupported:
			return "", nil, protocol.Errorf(protocol.CodeUnsupported, remedyOf(err), "name %s is on %s: %w", name, e.where(), err).With("host", e.Host)
		default:
			return "", nil, err
		}
	}
	if host, d := s.elsewhere(ctx, name, e.Host, want); d != nil {
		return host, d, nil
	}
	return "", nil, protocol.Errorf(protocol.CodeHostLost, "set it again", "name %s was set by %s on %s, and no host that answers has its bytes", name, e.Setter, e.where()).With("host", e.Host)
}

func remedyOf(err error) string {
	var e *protocol.Error
	if errors.As(err, &e) {
		return e.Remedy
	}
	return ""
}

// elsewhere asks all other hosts.
func (s *space) elsewhere(ctx context.Context, name, but string, want protocol.Agreed) (host string, d *description) {
	all, err := s.n.hosts.Spanning(ctx, s.ns)
	if err != nil {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*onceTime)
	defer cancel()
	var mu sync.Mutex
	var asking sync.WaitGroup
	places := make(chan struct{}, mostAtOnce)
	for _, h := range all {
		if h.Host == but || h.Host == s.n.cfg.Instance {
			continue
		}
		asking.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			if ctx.Err() != nil {
				return
			}
			found, err := s.ask(ctx, h.Host, name, want, false)
			if err != nil {
				return
			}
			mu.Lock()
			first := d == nil
			if first {
				host, d = h.Host, found
			}
			mu.Unlock()
			cancel()
			if !first {
				s.done(h.Host, name)
			}
		})
	}
	asking.Wait()
	return host, d
}

// ask asks a host for a revision; patient: as long as it may come.
func (s *space) ask(ctx context.Context, host, name string, want protocol.Agreed, patient bool) (*description, error) {
	q, err := json.Marshal(question{Host: s.n.cfg.Instance, Name: name})
	if err != nil {
		return nil, err
	}
	var began time.Time
	for {
		nc := s.n.hosts.Current()
		if nc == nil {
			began, err = time.Time{}, errDown
		} else {
			if began.IsZero() {
				began = time.Now()
			}
			var d *description
			if d, err = s.askOnce(ctx, nc, host, q); err == nil {
				switch {
				case d.Bucket == want.Bucket && d.Revision == want.Revision:
					return d, nil
				case d.Bucket == want.Bucket && d.Revision > want.Revision:
					return nil, protocol.Errorf(protocol.CodeBusy, "it is tried again", "host %s has a newer revision of name %s", host, name)
				}
				err = protocol.Errorf(protocol.CodeExpired, "set it again", "host %s has not got the revision %d of name %s", host, want.Revision, name)
			}
			silent := time.Since(began)
			code := protocol.CodeOf(err)
			switch {
			case code == protocol.CodeExpired && silent < silentTime && patient: // it is about to be visible there
			case code == protocol.CodeBusy:
			case errors.Is(err, nats.ErrNoResponders) && (silent >= silentTime || !patient):
				return nil, protocol.Errorf(protocol.CodeHostLost, "set it again", "host %s is not connected to NATS", host).With("host", host)
			case isTimeout(err) && silent >= absentTime:
				return nil, protocol.Errorf(protocol.CodeHostLost, "set it again", "host %s answers nothing for more than %s", host, absentTime).With("host", host)
			case errors.Is(err, nats.ErrNoResponders), isTimeout(err) && ctx.Err() == nil:
			default:
				return nil, err
			}
		}
		select {
		case <-time.After(soonTime):
		case <-ctx.Done():
			return nil, protocol.Errorf(protocol.CodeUnreachable, "look at baton ls hosts", "host %s has not given name %s in time: %w", host, name, err)
		}
	}
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}

// askOnce puts a question, and reads its answer.
func (s *space) askOnce(ctx context.Context, nc *nats.Conn, host string, q []byte) (*description, error) {
	once, cancel := context.WithTimeout(ctx, onceTime)
	defer cancel()
	m, err := nc.RequestWithContext(once, protocol.HostSubject(s.ns, host, Subject), q)
	if err != nil {
		return nil, err
	}
	var a answer
	if json.Unmarshal(m.Data, &a) != nil {
		return nil, malformed("host %s gave an answer that cannot be read", host)
	}
	switch {
	case a.Error != nil:
		return nil, machines.RefusedBy(host, a.Error)
	case a.Description != nil:
		return a.Description, checkDescription(a.Description)
	case a.Stored == nil || a.Stored.Host != host || a.Stored.Bytes > mostDescription || a.Stored.Check() != nil:
		return nil, malformed("host %s does not describe a name", host)
	}
	near, err := s.n.hosts.Fetch(ctx, s.ns, *a.Stored)
	if err != nil {
		return nil, err
	}
	text, err := s.n.cfg.Local.Read(ctx, s.ns, near)
	if err != nil {
		return nil, err
	}
	var d description
	if json.Unmarshal(text, &d) != nil {
		return nil, malformed("host %s does not describe a name", host)
	}
	return &d, checkDescription(&d)
}

func malformed(text string, args ...any) error {
	return protocol.Errorf(protocol.CodeProtocol, "update the other host", text, args...)
}

// checkDescription refuses what no revision is.
func checkDescription(d *description) error {
	if len(d.Storages) > protocol.MaxRefs || len(d.Body) > protocol.MaxBody || d.Revision == 0 {
		return malformed("a revision with %d storages and %d bytes beside them", len(d.Storages), len(d.Body))
	}
	body, err := protocol.ParseBody(d.Body)
	if err != nil {
		return err
	}
	return body.CheckRefs(len(d.Storages))
}

// done tells a host that nothing need be held there any more.
func (s *space) done(host, name string) {
	nc := s.n.hosts.Current()
	q, err := json.Marshal(question{Host: s.n.cfg.Instance, Name: name, Done: true})
	if err == nil && nc != nil {
		err = nc.Publish(protocol.HostSubject(s.ns, host, Subject), q)
	}
	if err != nil {
		s.n.cfg.Log.Debug("a host was not told that a name has come", "host", host, "error", err)
	}
}

func handleOf(host string, st storage) protocol.Handle {
	return protocol.Handle{Host: host, Segment: st.Segment, Serial: st.Serial, Index: st.Index, Generation: st.Generation, Offset: st.Offset, Bytes: st.Bytes,
		DType: "uint8", Shape: []int64{int64(st.Bytes)}, Device: "cpu", ReadOnly: true}
}

// fetch brings storages here, some at a time. With an error those that came are held for their leases' time.
func (s *space) fetch(ctx context.Context, host string, all []storage) ([]protocol.Handle, error) {
	near := make([]protocol.Handle, len(all))
	failed := make(chan error, len(all))
	places := make(chan struct{}, mostAtOnce)
	var fetching sync.WaitGroup
	for i, st := range all {
		places <- struct{}{}
		fetching.Go(func() {
			defer func() { <-places }()
			h := handleOf(host, st)
			err := h.Check()
			if err == nil {
				near[i], err = s.n.hosts.Fetch(ctx, s.ns, h)
			}
			if err != nil {
				failed <- err
			}
		})
	}
	fetching.Wait()
	select {
	case err := <-failed:
		return nil, err
	default:
		return near, nil
	}
}

// spill puts refs and body into a storage if they do not fit in a slot. What is released holds it until it is published.
func (s *space) spill(ctx context.Context, r *protocol.NameSet, leases *[]uint64) (release func(), err error) {
	if len(r.Refs)*protocol.RefSize+len(r.Body) <= protocol.DefaultDescription {
		return func() {}, nil
	}
	n, err := protocol.SpillLen(len(r.Refs), len(r.Body))
	if err != nil {
		return nil, err
	}
	f, err := s.n.hosts.Make(ctx, s.ns, uint64(n))
	if err != nil {
		return nil, err
	}
	refs := make([]protocol.Ref, len(r.Refs))
	for i, ref := range r.Refs {
		refs[i] = protocol.Ref{Serial: ref.Serial, Generation: ref.Generation, Index: ref.Index}
	}
	var h protocol.Handle
	if _, err = protocol.AppendSpill(f.Bytes()[:0], refs, r.Body); err == nil {
		h, err = f.Handle(ctx)
	}
	if err != nil {
		f.Release()
		return nil, err
	}
	if h.Lease != nil {
		*leases = append(*leases, *h.Lease)
	}
	r.Refs = append([]protocol.StorageRef{{Index: h.Index, Serial: h.Serial, Generation: h.Generation}}, r.Refs...)
	r.Spilled, r.Body = true, nil
	return f.Release, nil
}
