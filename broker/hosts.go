package broker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// Hosts gives what is on other hosts. Its methods are called without the broker's mutex held, by many goroutines.
type Hosts interface {
	// Fetch brings the storage of another host's handle here, and returns a handle of this host for it.
	Fetch(ctx context.Context, namespace string, h protocol.Handle) (protocol.Handle, error)
	// Hosts lists the hosts that are known, this one too.
	Hosts(ctx context.Context) ([]HostRow, error)
}

// HostRow is a row of the listing of hosts.
type HostRow struct {
	Host     string   `json:"host"` // its instance
	HostName string   `json:"host_name"`
	Machine  string   `json:"machine"` // its boot id
	PID      int      `json:"pid"`
	Own      bool     `json:"own,omitempty"`
	State    string   `json:"state"`
	Reason   string   `json:"reason,omitempty"` // why it cannot be talked to
	Lowest   int      `json:"lowest"`           // of the protocol between hosts
	Highest  int      `json:"highest"`
	Data     []string `json:"data"` // addresses at which it gives bytes
	// Certificate is the fingerprint of its certificate, if it gives them by TLS.
	Certificate string   `json:"certificate,omitempty"`
	Namespaces  []string `json:"namespaces"` // that it spans; "*": all
	SeenAgo     float64  `json:"seen_ago_seconds"`
}

const (
	// mostFetches bounds the fetches of one connection that are under way.
	mostFetches = 256
	// mostFetchTime bounds what a fetch may ask for.
	mostFetchTime = time.Hour
	// hostsTime is how long a listing of hosts waits for them.
	hostsTime = 3 * time.Second
)

// SetHosts says what gives what is on other hosts, once. Without it there are none.
func (b *Broker) SetHosts(h Hosts) {
	b.hosts.Store(&h)
	close(b.hostsAre)
}

func (b *Broker) otherHosts() Hosts {
	if h := b.hosts.Load(); h != nil {
		return *h
	}
	return nil
}

// Origin tells in whose namespace the storage of a handle was made, and whether a live name has it, so that it is written.
// The namespace is "" if it is not known, as after the end of the session that made it; it is the one that is asked for if
// a name of that one has the storage, whichever session made it. The caller holds the storage, so that the answer is of the present one.
func (b *Broker) Origin(asked string, h *protocol.Handle) (namespace string, live bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spans(asked) && b.topics.NamesHold(asked, h.Index) {
		return asked, b.topics.IsLive(h.Index)
	}
	slot, serial, ok := b.memory.MakerOf(h.Index, h.Serial)
	if ok && int(slot) < len(b.slots) {
		if s := b.slots[slot]; s != nil && s.Serial == serial {
			namespace = s.namespace
		}
	}
	return namespace, b.topics.IsLive(h.Index)
}

// fetches are the fetches of one connection.
type fetches struct{ running atomic.Int32 }

// fetchHandle begins to bring what a handle of another host names. It is answered once that is here: other requests
// of the connection go on meanwhile.
func (c *conn) fetchHandle(id uint64, data []byte) {
	began := time.Now()
	ended := func(ok any, err error) {
		c.carriedOut(protocol.OpHandleFetch, data, began, err)
		c.answerLate(id, ok, nil, err)
	}
	var r protocol.HandleFetch
	namespace, err := c.mayFetch(data, &r)
	if err != nil {
		ended(nil, err)
		return
	}
	if c.b.otherHosts() == nil && !c.b.cfg.Hosts || r.Handle.Host == c.b.id {
		ended(nil, protocol.Errorf(protocol.CodeHandle, "open it with a client of the broker that made it, or start both brokers with --nats URL --span",
			"the handle is of broker %s, this is %s, which reaches no other hosts", r.Handle.Host, c.b.id))
		return
	}
	if c.fetches.running.Add(1) > mostFetches {
		c.fetches.running.Add(-1)
		ended(nil, protocol.Errorf(protocol.CodeTooMany, "wait for some of them", "%d handles of other hosts are being opened already", mostFetches))
		return
	}
	seconds := r.Seconds
	if !(seconds > 0) {
		seconds = protocol.DefaultFetch
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(min(seconds, mostFetchTime.Seconds())*float64(time.Second)))
	go func() {
		defer cancel()
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-c.ended: // its client has gone, or asks the next broker
				cancel()
			case <-over:
			}
		}()
		h, err := c.b.fetchFar(ctx, namespace, r.Handle)
		c.fetches.running.Add(-1) // before the client knows, and asks again
		ended(protocol.HandleFetched{Handle: h}, err)
	}()
}

// fetchFar has what is on another host fetched. A broker that begins waits for its part for other hosts.
func (b *Broker) fetchFar(ctx context.Context, namespace string, h protocol.Handle) (protocol.Handle, error) {
	select {
	case <-b.hostsAre:
		return b.otherHosts().Fetch(ctx, namespace, h)
	case <-ctx.Done():
		return protocol.Handle{}, protocol.Errorf(protocol.CodeUnreachable, "look at baton status, and try again", "this broker does not reach other hosts yet, nor host %s", h.Host)
	}
}

// mayFetch reads such a request, and returns the namespace of the session.
func (c *conn) mayFetch(data []byte, r *protocol.HandleFetch) (string, error) {
	if err := decode(data, r); err != nil {
		return "", err
	}
	if err := r.Handle.Check(); err != nil {
		return "", err
	}
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if err := c.b.usable(c.session); err != nil {
		return "", err
	}
	return c.session.namespace, nil
}

// answerLate writes the reply to a request after which others were carried out.
// It takes ownership of the descriptors.
func (c *conn) answerLate(id uint64, ok any, fds []*sys.FD, err error) {
	frame, fds := encodedReply(id, ok, fds, err)
	defer wire.CloseAll(fds)
	c.writing.Lock()
	defer c.writing.Unlock()
	c.writeReply(frame, fds)
}

// hostRows lists the hosts whose names fit.
func (b *Broker) hostRows(r *protocol.List) (reply listReply, err error) {
	reply.Rows = []any{}
	hosts := b.otherHosts()
	if hosts == nil || r.Cursor != "" {
		return reply, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), hostsTime)
	defer cancel()
	all, err := hosts.Hosts(ctx)
	for _, row := range all {
		row.HostName = sessionfiles.Printable(row.HostName, protocol.MaxHost)
		if protocol.MatchName(r.Pattern, row.HostName) || protocol.MatchName(r.Pattern, row.Host) {
			reply.Rows = append(reply.Rows, row)
		}
	}
	return reply, err
}
