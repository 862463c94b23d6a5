package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/cmd/baton/internal/hosts"
	"github.com/baton-ipc/baton/cmd/baton/internal/settings"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/termtext"
)

// span begins to open handles of other hosts, and to let them open this one's, if the settings ask for it.
func (d *daemon) span(s *settings.Settings, socket string) error {
	if len(s.Span) == 0 || d.bridge == nil {
		return nil
	}
	log := d.log.With(events.Of(events.NATS))
	name, _ := os.Hostname() // for show
	join := joinConfig(s)
	memory := hosts.New("unix:"+socket, d.broker, s.Span, log)
	agreed := names.New(names.Config{Instance: d.broker.ID(), HostName: name, Namespaces: s.Span, Local: hosts.NewLocal(d.broker, memory), Timeout: s.SpanTimeout, Log: log})
	cfg := machines.Config{Instance: d.broker.ID(), HostName: name, Machine: sys.BootID(), PID: os.Getpid(), Namespaces: s.Span,
		Connect: func(up func(*nats.Conn)) (machines.Connection, error) {
			return join.Connect(log.With("for", "hosts"), up)
		},
		Memory: memory, Evict: agreed.Evict, Answers: map[string]func(string, []byte) []byte{names.Subject: agreed.Answer}, Data: s.Data, Listen: s.DataListen, Encrypted: join.Encrypts(), TLS: s.DataTLS,
		RemoteMemory: s.RemoteMemory, Log: log}
	if cfg.RemoteMemory == 0 {
		cfg.RemoteMemory = d.broker.Status().Memory.Limit / 2
	}
	m, err := machines.Start(cfg)
	if err != nil {
		return err
	}
	agreed.Start(m)
	d.hosts, d.names = m, agreed
	d.broker.SetHosts(otherHosts{m})
	d.broker.SetNames(hosts.Agreeing{Names: agreed})
	d.broker.AddStatus("hosts", func() any { return m.Status() })
	d.broker.AddStatus("names", func() any { return agreed.Status() })
	return nil
}

// spanOf tells which namespaces span several hosts; nil: none.
func spanOf(s *settings.Settings) func(string) bool {
	if len(s.Span) == 0 {
		return nil
	}
	return func(namespace string) bool { return machines.Spans(s.Span, namespace) }
}

// closeHosts ends what goes to other hosts and comes from them, before the sessions of clients end.
func (d *daemon) closeHosts() {
	if d.hosts != nil {
		d.names.Close()
		d.hosts.Close()
	}
}

// otherHosts is the broker's view of them.
type otherHosts struct{ *machines.Machines }

func (o otherHosts) Hosts(ctx context.Context) ([]broker.HostRow, error) {
	all, err := o.Machines.Hosts(ctx)
	rows := make([]broker.HostRow, len(all))
	for i, h := range all {
		rows[i] = broker.HostRow{Host: h.Host, HostName: h.HostName, Machine: h.Machine, PID: h.PID, Own: h.State == machines.StateOwn, State: h.State, Reason: h.Reason,
			Lowest: h.Lowest, Highest: h.Highest, Data: h.Data, Certificate: h.Certificate, Namespaces: h.Namespaces, SeenAgo: h.SeenAgo.Seconds()}
	}
	return rows, err
}

func hostCells(r *broker.HostRow) []string {
	versions := number(r.Highest)
	if r.Lowest != r.Highest {
		versions = fmt.Sprintf("%d to %d", r.Lowest, r.Highest)
	}
	namespaces := strings.Join(r.Namespaces, ", ")
	if namespaces == machines.AllNamespaces {
		namespaces = "all"
	}
	data := strings.Join(r.Data, ", ")
	if r.Certificate != "" {
		data += " (TLS)"
	}
	return []string{r.Host, r.HostName, number(r.PID), r.State, namespaces, data, versions, seconds(r.SeenAgo), r.Reason}
}

// hostPairs are the lines of a status about other hosts.
func hostPairs(s *machines.Status) [][2]string {
	state := s.State
	if s.Error != "" {
		state += ": " + s.Error
	}
	way := s.Data
	if s.TLS {
		way += ", TLS"
	}
	if len(s.Listens) > 0 {
		way += ", data port " + strings.Join(s.Listens, ", ")
	}
	if s.DataError != "" {
		way += ": " + s.DataError
	}
	rows := [][2]string{{"other hosts", state}, {"bytes of hosts by", way},
		{"kept of other hosts", fmt.Sprintf("%s of %s, in %d", size(s.Kept.Bytes), size(s.Kept.Limit), s.Kept.Storages)},
		{"fetched and given", fmt.Sprintf("%s (%s), %s (%s)", termtext.Count(int64(min(s.Fetched, 1<<62))), size(s.FetchedBytes), termtext.Count(int64(min(s.Served, 1<<62))), size(s.ServedBytes))}}
	if len(s.OverNATS) > 0 {
		rows = append(rows, [2]string{"over NATS", "no direct connection to " + strings.Join(s.OverNATS, ", ")})
	}
	for _, r := range s.NATSRefuses {
		rows = append(rows, [2]string{"NATS refuses it", "for hosts, the broker " + r})
	}
	if s.Failed+s.BadPieces+s.Refused > 0 {
		rows = append(rows, [2]string{"trouble with hosts", fmt.Sprintf("%d fetches failed, %d pieces with wrong sums, %d refused", s.Failed, s.BadPieces, s.Refused)})
	}
	return rows
}

// namePairs are the lines of a status about names of several hosts.
func namePairs(all []names.Status) (rows [][2]string) {
	for _, s := range all {
		text := fmt.Sprintf("%d set, %d here", s.Names, s.Here)
		if s.Behind > 0 {
			text += fmt.Sprintf(", %d behind", s.Behind)
		}
		if s.Failed > 0 {
			text += fmt.Sprintf(", %d do not come", s.Failed)
		}
		if !s.Agreed {
			text += "; as they were last agreed: " + cmp.Or(s.Error, "the bucket is being read")
		}
		rows = append(rows, [2]string{"names of " + s.Namespace, text})
		if s.Lacks != "" {
			rows = append(rows, [2]string{"bucket of " + s.Namespace, s.Lacks})
		}
		if s.Stalest != "" {
			rows = append(rows, [2]string{"stale names of " + s.Namespace, staleText(&s)})
		}
		if s.SetsAgreed+s.SetsConflict+s.SetsUnreachable+s.SetsRefused > 0 {
			rows = append(rows, [2]string{"sets in " + s.Namespace, setsText(&s)})
		}
	}
	return rows
}

// staleText shows which names may have a newer revision on another host.
func staleText(s *names.Status) string {
	text := fmt.Sprintf("%d, for %s at most: %s", s.Stale, seconds(s.StaleFor), s.Stalest)
	if s.StaleWhy != "" {
		text += ": " + s.StaleWhy
	}
	return text
}

// setsText shows how sets were answered.
func setsText(s *names.Status) string {
	text := fmt.Sprintf("%d agreed", s.SetsAgreed)
	if s.SetsAgreed > 0 {
		text += ", " + termtext.Duration(time.Duration(s.TookSeconds/float64(s.SetsAgreed)*float64(time.Second))) + " each"
	}
	for _, n := range []struct {
		many uint64
		what string
	}{{s.SetsConflict, "in conflict"}, {s.SetsUnreachable, "unreachable"}, {s.SetsRefused, "refused"}} {
		if n.many > 0 {
			text += fmt.Sprintf(", %d %s", n.many, n.what)
		}
	}
	return text
}
