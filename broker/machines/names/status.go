package names

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

// NameState describes how far a name is the same on all hosts, "" if there is nothing to say.
func (n *Names) NameState(ns, name string) string {
	s := n.space(ns)
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.names[name]
	st := n.cfg.Local.State(ns, name)
	switch {
	case k == nil && !st.Set:
		return ""
	case !s.synced && s.trouble != nil:
		return "as it was last agreed: " + protocol.Plain(s.trouble)
	case !s.synced:
		return "as it was last agreed: the bucket is being read"
	case k == nil || !k.set():
		return "here alone until it is set again"
	case s.epochs.number(k.Seq) <= st.Agreed.Revision:
		return k.where()
	case k.err != nil:
		return "a newer revision of " + k.where() + " does not come: " + protocol.Plain(k.err)
	case k.bringing:
		return "a newer revision of " + k.where() + " comes"
	}
	return "a newer revision is on " + k.where()
}

// listTime is how long a listing waits for a bucket to be read.
const listTime = 2 * time.Second

// Row is a name that is set on another host, and not here.
type Row struct {
	Namespace, Name string
	Revision        uint64
	Bytes           uint64
	Tensors         uint16
	Ephemeral       bool
	Setter, State   string
}

// Far lists the names of a namespace that are not here, in order; "*": of all that are followed.
func (n *Names) Far(ns string) (all []Row) {
	spaces := n.known()
	if ns != protocol.AnyNamespace {
		if spaces = nil; n.Spans(ns) {
			s := n.space(ns)
			ctx, cancel := context.WithTimeout(n.ctx, listTime)
			s.until(ctx, func() bool { return s.synced || s.trouble != nil }) // late: what is known
			cancel()
			spaces = []*space{s}
		}
	}
	for _, s := range spaces {
		here := n.cfg.Local.States(s.ns)
		s.mu.Lock()
		for name, k := range s.names {
			if !k.set() || here[name].Set {
				continue
			}
			r := Row{Namespace: s.ns, Name: name, Revision: s.epochs.number(k.Seq), Bytes: k.Bytes, Tensors: k.Tensors, Ephemeral: k.Ephemeral, Setter: k.Setter, State: "on " + k.where()}
			switch {
			case k.bringing:
				r.State += ", comes"
			case k.err != nil:
				r.State += ": " + protocol.Plain(k.err)
			}
			all = append(all, r)
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Row) int { return strings.Compare(a.Namespace+" "+a.Name, b.Namespace+" "+b.Name) })
	return all
}

// Status is how names of a namespace are.
type Status struct {
	Namespace string `json:"namespace"`
	Agreed    bool   `json:"agreed"` // its bucket is read
	Error     string `json:"error,omitempty"`
	Names     int    `json:"names"`  // that are set
	Here      int    `json:"here"`   // whose newest revision is here
	Behind    int    `json:"behind"` // of which an older one is here
	Failed    int    `json:"failed"` // that were wanted and did not come
	// ErrorCode and Remedy are of Error, Waits is for how many seconds the bucket has not been read.
	ErrorCode protocol.Code `json:"error_code,omitempty"`
	Remedy    string        `json:"remedy,omitempty"`
	Waits     float64       `json:"waits,omitempty"`
	// Stale are the names that are set here and may have a newer revision. StaleFor is for how many seconds that has been so
	// of one of them, at most; Stalest is that one, and StaleWhy what is known of the reason.
	Stale    int     `json:"stale"`
	Current  int     `json:"current"` // are set here, and are not
	StaleFor float64 `json:"stale_for,omitempty"`
	Stalest  string  `json:"stalest,omitempty"`
	StaleWhy string  `json:"stale_why,omitempty"`
	// Replicas are those of the bucket, Lacks is why there are fewer than there are servers for.
	Replicas int    `json:"replicas,omitempty"`
	Lacks    string `json:"lacks,omitempty"`
	Counts
}

// Status tells how names are, by namespaces that are followed. It does not wait for the network.
func (n *Names) Status() []Status {
	all := []Status{}
	for _, s := range n.known() {
		here := n.cfg.Local.States(s.ns)
		st := Status{Namespace: s.ns}
		s.mu.Lock()
		if st.Agreed = s.synced; !s.synced {
			st.Waits = time.Since(s.lostAt).Seconds()
			if s.trouble != nil {
				st.Error, st.ErrorCode, st.Remedy = protocol.Plain(s.trouble), protocol.CodeOf(s.trouble), remedyOf(s.trouble)
			}
		}
		for _, local := range here {
			if local.Set {
				st.Current++
			}
		}
		s.staleLocked(&st, here)
		st.Replicas, st.Lacks = s.replicas, s.lacks
		st.Current -= st.Stale
		st.Counts = s.counts
		st.Took = slices.Clone(s.counts.Took)
		for name, k := range s.names {
			if !k.set() {
				continue
			}
			st.Names++
			switch local := here[name]; {
			case local.Set && local.Agreed.Revision >= s.epochs.number(k.Seq):
				st.Here++
			case local.Set:
				st.Behind++
			}
			if k.err != nil {
				st.Failed++
			}
		}
		s.mu.Unlock()
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Namespace, b.Namespace) })
	return all
}

// staleLocked tells which names that are set here may have a newer revision.
func (s *space) staleLocked(st *Status, here map[string]State) {
	for name, since := range s.stale {
		if !here[name].Set {
			delete(s.stale, name)
			continue
		}
		st.Stale++
		if age := time.Since(since).Seconds(); age > st.StaleFor || st.Stalest == "" {
			st.StaleFor, st.Stalest = age, name
		}
	}
	if k := s.names[st.Stalest]; k != nil && k.err != nil {
		st.StaleWhy = protocol.Plain(k.err)
	}
}
