package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/internal/termtext"
	"github.com/baton-ipc/baton/protocol"
)

// Kinds of findings about other hosts.
const (
	KindTwin       = "two brokers with one instance"
	KindJoining    = "no link to other hosts"
	KindRight      = "right on NATS"
	KindDirectory  = "directory of hosts"
	KindMessages   = "small messages on NATS"
	KindVersion    = "version of a host"
	KindSilent     = "host that does not answer"
	KindEncryption = "encryption of a host"
	KindAddress    = "data address of a host"
	KindBucket     = "bucket of names"
	KindAgreement  = "names that are not agreed on"
	KindStale      = "stale names"
)

const (
	// fewPayload is a largest message of NATS far below its default of 1 MiB: pieces of 256 KiB just fit into twice that.
	fewPayload = 512 << 10
	// hostsTime is how long a listing of hosts and attempts at their addresses may take.
	hostsTime = 6 * time.Second
	// dialTime bounds an attempt at a data address.
	dialTime = time.Second
	// staleTime is how long a name may be on its way.
	staleTime = time.Minute
	// mostDialed bounds the hosts whose addresses are tried.
	mostDialed = 64
)

// kind says what a finding is about.
func (f Finding) kind(k string) Finding {
	f.Kind = k
	return f
}

// hosts looks at the way to other hosts and back. Clocks are not looked at: nothing between hosts depends on them.
func (p Place) hosts(ctx context.Context) (all []Finding) {
	a, err := p.Ask(ctx)
	if err != nil || a.Hosts == nil {
		return []Finding{ok("none: the broker does not span hosts")}
	}
	s := a.Hosts
	switch s.State {
	case machines.StateRefused:
		return []Finding{fail("give one of the two brokers a runtime directory and memory of its own, and do not copy those of another one (--memory-dir, --runtime-dir)",
			"another broker lives with this one's instance: other hosts do not reach this one, nor it them").kind(KindTwin)}
	case machines.StateJoining:
		return []Finding{warn("see the check of NATS, and the broker's log", "the broker has no link to other hosts%s", because(s.Error)).kind(KindJoining)}
	}
	for _, r := range s.NATSRefuses {
		all = append(all, warn("grant the broker's user the right: baton nats permissions prints all that it needs; the broker looks for it by itself",
			"NATS refuses what hosts need: the broker %s", r).kind(KindRight))
	}
	if s.Error != "" && len(s.NATSRefuses) == 0 {
		all = append(all, warn("see that the NATS server has JetStream, and that the broker may use it (baton nats permissions)",
			"the directory of hosts does not have this one, so that others cannot know why it does not answer, and bytes go over NATS where connections are encrypted: %s", s.Error).kind(KindDirectory))
	}
	if s.Data != machines.DataTCP && s.MaxPayload > 0 && s.MaxPayload < fewPayload {
		all = append(all, warn("set max_payload to 1 MiB on the NATS server, as by default",
			"a message of NATS holds %s: bytes over NATS go in many small pieces, or not at all", bytes(uint64(s.MaxPayload))).kind(KindMessages))
	}
	for i := range a.Names {
		if f := ofNames(&a.Names[i]); f != nil {
			all = append(all, *f)
		}
	}
	rows, err := p.Hosts(ctx)
	if err != nil {
		return append(all, warn("see the check of the broker", "the broker does not list the hosts: %s", message(err)).kind(KindDirectory))
	}
	own := &broker.HostRow{}
	for i := range rows {
		if rows[i].Own {
			own = &rows[i]
		}
	}
	reached := 0
	var dial []*broker.HostRow
	for i := range rows {
		r := &rows[i]
		if r.Own {
			continue
		}
		switch f := p.host(own, r); {
		case f != nil:
			all = append(all, *f)
		case r.State == machines.StateReachable:
			reached++
			if s.Data != machines.DataNATS && len(r.Data) > 0 && len(dial) < mostDialed {
				dial = append(dial, r)
			}
		}
	}
	if all = append(all, unanswered(ctx, dial, s.Data == machines.DataTCP)...); len(all) == 0 {
		all = append(all, ok("%d other hosts answer, and each of their data ports that was tried", reached))
	}
	return all
}

// host is what is wrong with another host, nil if nothing is. One that has ended stays listed for a while.
func (p Place) host(own, r *broker.HostRow) *Finding {
	var f Finding
	switch {
	case max(own.Lowest, r.Lowest) > min(own.Highest, r.Highest):
		f = warn("update the older one of the two brokers", "%s speaks other versions of the protocol between hosts (%d to %d) than this one (%d to %d)",
			called(r), r.Lowest, r.Highest, own.Lowest, own.Highest).kind(KindVersion)
	case r.Reason == machines.ReasonGone:
		return nil
	case r.Reason != "" && len(r.Data) > 0 && (r.Certificate == "") != (own.Certificate == ""):
		f = warn("have both reach NATS by TLS, or give both the same --data-tls", "%s: %s", called(r), r.Reason).kind(KindEncryption)
	case r.Reason == machines.ReasonSilent:
		f = warn("look at its machine: the process may be suspended, or NATS may refuse it a right (baton doctor there)", "%s is connected to NATS and does not answer", called(r)).kind(KindSilent)
	default:
		return nil
	}
	return &f
}

// called names a host for people.
func called(r *broker.HostRow) string {
	return fmt.Sprintf("host %s (%s)", r.Host, cmp.Or(r.HostName, "without a name"))
}

// unanswered finds the hosts of which no data address answers from here.
func unanswered(ctx context.Context, rows []*broker.HostRow, alone bool) (all []Finding) {
	found := make([]Finding, len(rows))
	var dialing sync.WaitGroup
	for i, r := range rows {
		dialing.Go(func() {
			if err := anyAnswers(ctx, r.Data); err != nil {
				instead := "its bytes come over NATS, at several times the cost"
				if alone {
					instead = "its bytes do not come at all (--data=tcp)"
				}
				found[i] = warn("open its data port between the machines, or give it an address that is reached from here (--data-listen)",
					"no data address of %s answers from here (%s): %s: %v", called(r), strings.Join(r.Data, ", "), instead, err).kind(KindAddress)
			}
		})
	}
	dialing.Wait()
	for _, f := range found {
		if f.State != "" {
			all = append(all, f)
		}
	}
	return all
}

// anyAnswers tells whether one of the addresses takes a connection. They are numbers, as brokers give them: no name is looked up.
func anyAnswers(ctx context.Context, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	came := make(chan error, len(addresses))
	for _, at := range addresses {
		go func() {
			host, _, err := net.SplitHostPort(at)
			if err == nil && net.ParseIP(host) == nil {
				err = fmt.Errorf("%q is no address", at)
			}
			if err == nil {
				var d net.Dialer
				var c net.Conn
				if c, err = d.DialContext(ctx, "tcp", at); err == nil {
					c.Close()
				}
			}
			came <- err
		}()
	}
	var last error
	for range addresses {
		err := <-came
		if err == nil {
			return nil
		}
		last = err
	}
	return last
}

// ofNames is what is wrong with the names of a namespace, nil if nothing is.
func ofNames(s *names.Status) *Finding {
	stream := names.StreamName(s.Namespace)
	var f Finding
	switch {
	case s.ErrorCode == protocol.CodeUnsupported:
		f = fail(s.Remedy, "names of namespace %s are not set on several hosts: %s", s.Namespace, s.Error).kind(KindBucket)
	case s.Error != "":
		f = warn("see that most servers of the stream run, reach each other and have a leader of it (nats stream info "+stream+"), and that the broker may use it (baton nats permissions)",
			"for %s the names of namespace %s have not been agreed on, are read as they were, and are not set: %s", elapsed(s.Waits), s.Namespace, s.Error).kind(KindAgreement)
	case s.Lacks != "":
		f = warn("give the broker's user the right to edit it (baton nats permissions), or its account the replicas; or edit it: nats stream edit "+stream+" --replicas 3",
			"the bucket of names of namespace %s does not outlive the loss of a server as it should: %s", s.Namespace, s.Lacks).kind(KindBucket)
	case s.Agreed && s.StaleFor > staleTime.Seconds():
		f = warn("look at its host (baton ls names, baton ls hosts there and here), and at room for it (--remote-memory); setting it anew heals it if that host is gone",
			"for %s the newest revision of name %s of namespace %s has not come (%d names are stale): %s", elapsed(s.StaleFor), s.Stalest, s.Namespace, s.Stale,
			cmp.Or(s.StaleWhy, "no program has asked for it")).kind(KindStale)
	default:
		return nil
	}
	return &f
}

func elapsed(seconds float64) string {
	return termtext.Duration(time.Duration(seconds * float64(time.Second)))
}
