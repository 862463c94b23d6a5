package machines

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/baton-ipc/baton/internal/lasting"
	"github.com/baton-ipc/baton/protocol"
)

const (
	// Bucket is the directory of hosts: an entry for each, which ends after entryAge unless it is renewed.
	Bucket = "baton-hosts"
	// entryAge, renewTime: three renewals may be lost.
	entryAge  = time.Minute
	renewTime = 20 * time.Second
	// soonTime is the pause after a renewal that failed.
	soonTime = 2 * time.Second
	// bucketTime is how long JetStream may take.
	bucketTime = 2 * time.Second
	// mostEntry bounds an entry, mostListed how many are listed.
	mostEntry  = 8 << 10
	mostListed = 1024
	// listTime is how long hosts that are listed may take to answer a ping.
	listTime = time.Second
)

// States of a host in a listing.
const (
	StateOwn         = "own"
	StateReachable   = "reachable"
	StateUnreachable = "unreachable"
)

// ReasonSilent is the reason of a host that is connected to NATS and does not answer, ReasonGone of one that has ended, or
// whose link to NATS is down.
const (
	ReasonSilent = "it does not answer"
	ReasonGone   = "it is not connected to NATS"
)

// Host is an entry of the directory.
type Host struct {
	Host     string   `json:"host"`
	HostName string   `json:"host_name"`
	Machine  string   `json:"machine"`
	PID      int      `json:"pid"`
	Life     string   `json:"life"` // of the process
	Lowest   int      `json:"lowest"`
	Highest  int      `json:"highest"`
	Data     []string `json:"data"`
	// Certificate is the fingerprint of the host's, if its direct connections are encrypted.
	Certificate string   `json:"certificate,omitempty"`
	Namespaces  []string `json:"namespaces"`

	// State, Reason and SeenAgo are of listings. SeenAgo is how long ago the entry was written, by the clock of NATS.
	State   string        `json:"-"`
	Reason  string        `json:"-"`
	SeenAgo time.Duration `json:"-"`
}

// directory keeps this host's entry, and reads those of others.
type directory struct {
	m       *Machines
	woken   chan struct{}
	trouble lasting.Trouble
	first   chan struct{} // closed once it was tried to write the entry

	certificates certificates

	mu       sync.Mutex
	revision uint64 // of this host's entry; 0: not known
	err      string // why the entry could not be written
}

func newDirectory(m *Machines) *directory {
	return &directory{m: m, woken: make(chan struct{}, 1), first: make(chan struct{})}
}

// wake has the entry written soon.
func (d *directory) wake() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

// run renews the entry until the host ends, and answers other hosts once no other process is this host.
func (d *directory) run() {
	var wrote sync.Once
	for {
		pause := renewTime
		if nc := d.m.current(); nc != nil {
			err := d.renew(nc)
			wrote.Do(func() { close(d.first) })
			if protocol.CodeOf(err) == protocol.CodeConflict {
				d.m.setTwin(true)
				d.m.unsubscribe()
			} else {
				d.m.setTwin(false)
				if e := d.m.subscribe(nc); e != nil {
					err = errors.Join(err, e)
				}
			}
			d.mu.Lock()
			if d.err = ""; err != nil {
				d.err = protocol.Plain(err)
				pause = soonTime
			}
			d.mu.Unlock()
			if d.m.ctx.Err() == nil {
				d.trouble.Note(d.m.log, "this host is not in the directory of hosts", err)
			}
		}
		select {
		case <-d.m.ctx.Done():
			return
		case <-d.woken:
		case <-time.After(pause):
		}
	}
}

// wasWritten waits until other hosts may find this one in the directory, and its certificate, once there is a link to NATS.
func (d *directory) wasWritten(ctx context.Context) error {
	select {
	case <-d.first:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *Machines) setTwin(is bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.twin = is
}

// own is this host's entry.
func (d *directory) own() Host {
	h := Host{Host: d.m.cfg.Instance, HostName: d.m.cfg.HostName, Machine: d.m.cfg.Machine, PID: d.m.cfg.PID, Life: d.m.life, Lowest: Lowest, Highest: Highest,
		Data: []string{}, Certificate: d.m.certificate(), Namespaces: d.m.cfg.Namespaces}
	if d.m.tcp != nil {
		h.Data = append(h.Data, d.m.tcp.listens()...)
	}
	return h
}

// renew writes the entry by compare-and-set. An entry of another process is taken if that one does not answer.
func (d *directory) renew(nc *nats.Conn) error {
	ctx, cancel := context.WithTimeout(d.m.ctx, bucketTime)
	defer cancel()
	kv, err := d.bucket(ctx, nc, true)
	if err != nil {
		return err
	}
	value, err := json.Marshal(d.own())
	if err != nil {
		return err
	}
	for range 3 {
		if d.revision == 0 {
			e, err := kv.Get(ctx, d.m.cfg.Instance)
			switch {
			case errors.Is(err, jetstream.ErrKeyNotFound):
				rev, err := kv.Create(ctx, d.m.cfg.Instance, value)
				if errors.Is(err, jetstream.ErrKeyExists) {
					continue
				}
				d.revision = rev
				return err
			case err != nil:
				return err
			}
			if other, ok := readHost(d.m.cfg.Instance, e.Value()); ok && other.Life != d.m.life && d.lives(ctx, nc, &other) {
				return errTwin(d.m.cfg.Instance)
			}
			d.revision = e.Revision()
		}
		rev, err := kv.Update(ctx, d.m.cfg.Instance, value, d.revision)
		if err == nil {
			d.revision = rev
			return nil
		}
		d.revision = 0
		if !errors.Is(err, jetstream.ErrKeyExists) {
			return err
		}
	}
	return protocol.Errorf(protocol.CodeBusy, "it is tried again", "another process writes this host's entry")
}

// lives tells whether the process of an entry answers.
func (d *directory) lives(ctx context.Context, nc *nats.Conn, h *Host) bool {
	ns := protocol.DefaultNamespace
	if len(h.Namespaces) > 0 && h.Namespaces[0] != AllNamespaces {
		ns = h.Namespaces[0]
	}
	if protocol.CheckNamespace(ns) != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	inbox := nc.NewInbox()
	came := make(chan *nats.Msg, 8)
	sub, err := nc.ChanSubscribe(inbox, came)
	if err != nil {
		return false
	}
	defer sub.Unsubscribe()
	if nc.PublishRequest(protocol.HostSubject(ns, h.Host, subjectPing), inbox, nil) != nil {
		return false
	}
	for { // this process may answer as well
		select {
		case m := <-came:
			var p pong
			if m.Header.Get("Status") == "503" {
				return false
			}
			if json.Unmarshal(m.Data, &p) == nil && p.Life == h.Life {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

func (d *directory) bucket(ctx context.Context, nc *nats.Conn, create bool) (jetstream.KeyValue, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, Bucket)
	if create && errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: Bucket, TTL: entryAge, Storage: jetstream.MemoryStorage,
			MaxValueSize: mostEntry, Description: "hosts of Baton"})
		if errors.Is(err, jetstream.ErrBucketExists) {
			kv, err = js.KeyValue(ctx, Bucket)
		}
	}
	return kv, err
}

// readHost reads an entry that another host has written.
func readHost(key string, value []byte) (h Host, ok bool) {
	if len(value) > mostEntry || json.Unmarshal(value, &h) != nil || h.Host != key || !isInstance(key) {
		return h, false
	}
	h.HostName, h.Machine, h.Life = shortened(h.HostName), shortened(h.Machine), shortened(h.Life)
	if len(h.Data) > mostAddresses {
		h.Data = h.Data[:mostAddresses]
	}
	h.Namespaces = slices.DeleteFunc(h.Namespaces, func(ns string) bool { return ns != AllNamespaces && protocol.CheckNamespace(ns) != nil })
	return h, true
}

// find reads the entry of a host. An error says that nothing is known.
func (d *directory) find(ctx context.Context, host string) (h Host, found bool, err error) {
	nc := d.m.current()
	if nc == nil {
		return h, false, nats.ErrDisconnected
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTime)
	defer cancel()
	kv, err := d.bucket(ctx, nc, false)
	if err != nil {
		return h, false, err
	}
	e, err := kv.Get(ctx, host)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		made, now, err := times(ctx, kv)
		if err == nil && now.Sub(made) < entryAge {
			err = errors.New("the directory is younger than its entries may be")
		}
		return h, false, err
	}
	if err != nil {
		return h, false, err
	}
	h, found = readHost(host, e.Value())
	return h, found, nil
}

// times are when a bucket was made, and what time it is, by the clock of NATS.
func times(ctx context.Context, kv jetstream.KeyValue) (made, now time.Time, err error) {
	s, err := kv.Status(ctx)
	if err != nil {
		return made, now, err
	}
	b, is := s.(interface{ StreamInfo() *jetstream.StreamInfo })
	if !is || b.StreamInfo() == nil {
		return made, now, errors.New("the directory does not tell its age")
	}
	return b.StreamInfo().Created, b.StreamInfo().TimeStamp, nil
}

// Hosts lists the hosts of the directory, this one first, and finds out which answer.
func (m *Machines) Hosts(ctx context.Context) ([]Host, error) {
	own := m.dir.own()
	own.State = StateOwn
	nc := m.current()
	if nc == nil {
		own.Reason = "the link to NATS is down: nothing is known of other hosts"
		return []Host{own}, nil
	}
	m.dir.mu.Lock()
	own.Reason = m.dir.err
	m.dir.mu.Unlock()
	all := []Host{own}
	listed, cancel := context.WithTimeout(ctx, bucketTime)
	defer cancel()
	kv, err := m.dir.bucket(listed, nc, false)
	if err != nil {
		all[0].Reason = "the directory of hosts cannot be read: " + err.Error()
		return all, nil
	}
	_, now, err := times(listed, kv)
	if err != nil {
		all[0].Reason = "the directory of hosts cannot be read: " + err.Error()
		return all, nil
	}
	w, err := kv.WatchAll(listed, jetstream.IgnoreDeletes())
	if err != nil {
		all[0].Reason = "the directory of hosts cannot be read: " + err.Error()
		return all, nil
	}
	defer w.Stop()
	for e := range untilNil(listed, w.Updates()) {
		if h, ok := readHost(e.Key(), e.Value()); ok && h.Host != own.Host && len(all) < mostListed {
			h.SeenAgo = max(now.Sub(e.Created()), 0)
			all = append(all, h)
		}
	}
	m.pingAll(ctx, nc, all[1:])
	slices.SortStableFunc(all[1:], func(a, b Host) int {
		return strings.Compare(a.HostName+"\x00"+a.Host, b.HostName+"\x00"+b.Host)
	})
	return all, nil
}

// Spanning lists the other hosts of the directory that span a namespace.
func (m *Machines) Spanning(ctx context.Context, ns string) (all []Host, err error) {
	nc := m.current()
	if nc == nil {
		return nil, nats.ErrDisconnected
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTime)
	defer cancel()
	kv, err := m.dir.bucket(ctx, nc, false)
	if err != nil {
		return nil, err
	}
	w, err := kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	for e := range untilNil(ctx, w.Updates()) {
		if h, ok := readHost(e.Key(), e.Value()); ok && h.Host != m.cfg.Instance && Spans(h.Namespaces, ns) && len(all) < mostListed {
			all = append(all, h)
		}
	}
	return all, ctx.Err()
}

// untilNil gives the entries that there were when a watch began.
func untilNil(ctx context.Context, updates <-chan jetstream.KeyValueEntry) func(func(jetstream.KeyValueEntry) bool) {
	return func(yield func(jetstream.KeyValueEntry) bool) {
		for {
			select {
			case e := <-updates:
				if e == nil || !yield(e) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// pingAll finds out which hosts answer.
func (m *Machines) pingAll(ctx context.Context, nc *nats.Conn, all []Host) {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	var asking sync.WaitGroup
	for i := range all {
		h := &all[i]
		h.State = StateUnreachable
		ns, common := m.common(h)
		if _, err := agree(h.Lowest, h.Highest, h.Host); err != nil {
			h.Reason = protocol.Plain(err)
			continue
		}
		if !common {
			h.Reason = "it spans none of the namespaces that this host spans"
			continue
		}
		asking.Go(func() {
			_, err := nc.RequestWithContext(ctx, protocol.HostSubject(ns, h.Host, subjectPing), nil)
			switch {
			case err == nil:
				h.State = StateReachable
				m.judge(h)
			case natsGone(err):
				h.Reason = ReasonGone
			default:
				h.Reason = ReasonSilent
			}
		})
	}
	asking.Wait()
}

// judge says why bytes of a host that answers do not go directly.
func (m *Machines) judge(h *Host) {
	encrypts := h.Certificate != ""
	if m.tcp == nil || len(h.Data) == 0 && !encrypts || encrypts == m.encrypts() {
		return
	}
	h.Reason = protocol.Plain(errUnencrypted(h.Host, !encrypts))
	if m.usesNATS() {
		h.Reason += "; bytes go over NATS, if that host permits it"
	} else {
		h.State = StateUnreachable
	}
}

// common is a namespace that this host and another one span.
func (m *Machines) common(h *Host) (string, bool) {
	for _, ns := range h.Namespaces {
		switch {
		case ns == AllNamespaces && m.cfg.Namespaces[0] == AllNamespaces:
			return protocol.DefaultNamespace, true
		case ns == AllNamespaces:
			return m.cfg.Namespaces[0], true
		case m.spans(ns):
			return ns, true
		}
	}
	return "", false
}
